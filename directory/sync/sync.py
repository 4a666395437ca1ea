"""Synchronises the control log and the directory, in a thread of the process that owns the log (the gateway).

Edits in the directory become control records; topics from the engine are written to the directory. The decisions are in
`reconcile`; this module has the scheduling and the handling of failures. While the directory is unavailable, the engine
uses the tree of the log, and both sides are reconciled afterwards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from arborcast.core.backoff import Backoff
from arborcast.core.threads import Service
from arborcast.directory.entries.changes import Change, Move, Put
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind, canonical
from arborcast.directory.errors import DirectoryError
from arborcast.directory.stores.contract import Directory, touched
from arborcast.directory.sync.problems import ProblemFile
from arborcast.directory.sync.reconcile import Plan, load_known, lost, reconcile, save_known
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath

_log = logging.getLogger(__name__)

# The pause between two runs, as a multiple of a run's processor time, with limits in seconds: for any tree and any rate
# of new topics the sync uses at most a fifth of a core, and a burst becomes one run. Waits for the server do not count,
# and the longest pause is that after a run with a million topics: edits must not wait for an hour after an import.
_REST, _REST_SECONDS, _LONGEST_REST_SECONDS = 4, 0.02, 60.0
_BACKOFF = Backoff(0.2, 10.0)
# The time until a refused change (for instance with a too long name) is tried again.
_REFUSED_SECONDS = 60.0
# A directory with many foreign entries must not fill the log.
_MAX_LOGGED = 20
# Records in one append. It delays the appends of clients, which fail after `kafka.request_timeout_s`; the rename of a
# large subtree has hundreds of thousands of records.
_APPENDED_AT_ONCE = 1_000
# Maximum share of the time for saving the state.
_SAVE_SHARE = 0.02


@dataclass(frozen=True)
class SyncStatus:
    """The state of the sync. `problems` are skipped entries and unwritten changes of the last run."""

    directory: str
    connected: bool = False
    detail: str = "not read yet"
    topics: int = 0
    problems: tuple[EntryProblem, ...] = ()


class _Tree:
    """The topics of the control log, and the ones changed since the last run. `apply` is for the log's thread and does
    not wait for a run, which takes seconds for a million topics; the other methods are for the sync's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: dict[TopicPath, TopicRecord | None] = {}  # since the begin of the last run
        self.topics: dict[TopicPath, TopicRecord] = {}
        # Appended by the sync and not yet read back from the log. Until then they count as applied, and earlier records
        # of the log are ignored: otherwise the engine would seem to have undone an edit of the directory.
        self._pending: dict[TopicPath, TopicRecord | None] = {}
        self._ignored: dict[TopicPath, TopicRecord | None] = {}  # valid if the append fails
        self._changed: set[TopicPath] = set()
        self._under_way: set[TopicPath] = set()

    @property
    def behind(self) -> int:
        """The number of changed topics that are not written yet."""
        return len(self._arrived) + len(self._changed) + len(self._under_way)

    def apply(self, path: TopicPath, value: TopicRecord | None) -> None:
        """Apply a record of the log; None for a removal."""
        with self._lock:
            if path in self._pending:
                if self._pending[path] != value:
                    self._ignored[path] = value
                    return
                del self._pending[path]
                self._ignored.pop(path, None)
            if value is None and path not in self.topics:
                self._arrived.pop(path, None)  # added and removed since the last run
            else:
                self._arrived[path] = value

    def catch_up(self) -> None:
        """Add the arrived records to the topics."""
        with self._lock:
            for path, value in self._arrived.items():
                self._set(path, value)
            self._arrived.clear()

    def begin(self) -> set[TopicPath]:
        """Start a run; returns the changed topics."""
        self.catch_up()
        self._under_way, self._changed = self._changed, set()
        return self._under_way

    def end(self, failed: bool = False) -> None:
        """End the run. After a failure its topics count as changed."""
        if failed:
            self._changed |= self._under_way
        self._under_way = set()

    def expect(self, values: Mapping[TopicPath, TopicRecord | None]) -> None:
        """Note values before their append, since they may be read back before it returns."""
        with self._lock:
            self._pending.update(values)
            self._ignored.update({path: self._arrived.pop(path) for path in values if path in self._arrived})

    def appended(self, values: Mapping[TopicPath, TopicRecord | None], failed: bool = False) -> None:
        """Note that the expected values are in the log, or that the append has failed."""
        with self._lock:
            for path, value in values.items():
                if failed:
                    self._pending.pop(path, None)
                    if path in self._ignored:
                        self._arrived.setdefault(path, self._ignored.pop(path))
                elif path in self._pending:
                    self._set(path, value)

    def _set(self, path: TopicPath, value: TopicRecord | None) -> None:
        if value is None:
            self.topics.pop(path, None)
        else:
            self.topics[path] = value
        self._changed.add(path)


class _Known:
    """The common state of both sides, stored in a file."""

    def __init__(self, directory: str, file: Path) -> None:
        self._directory = directory
        self._file = file
        self._unsaved = False
        self._save_after = 0.0
        self._followed: Listing | None = None  # that of the last call of `follow`; None after `agree`
        self.topics: dict[TopicPath, TopicRecord] = {}
        self.log = ""

    def load(self) -> None:
        self.topics = load_known(self._file, self._directory, self.log)

    def agree(self, agreed: Mapping[TopicPath, TopicRecord | None], listing: Listing) -> None:
        """Add the topics of the plan that are equal in the directory to the common state."""
        self._followed = None
        for path, record in agreed.items():
            entry = listing.entries.get(path)
            if (entry.record if entry is not None else None) == record:
                self._set(path, record)

    def follow(self, listing: Listing, tree: Mapping[TopicPath, TopicRecord], changed: Iterable[TopicPath]) -> None:
        """Add the topics that are equal in the directory and the tree to the common state. `changed` are those of the
        tree since the last call, which are sufficient for the same listing."""
        paths = changed if listing is self._followed else {*self.topics, *listing.entries}
        self._followed = listing
        for path in paths:
            entry, ours = listing.entries.get(path), tree.get(path)
            theirs = entry.record if entry is not None else None
            if path not in listing.held and theirs == (canonical(ours) if ours is not None else None):
                self._set(path, theirs)

    def _set(self, path: TopicPath, record: TopicRecord | None) -> None:
        if self.topics.get(path) == record:
            return
        self._unsaved = True
        if record is None:
            del self.topics[path]
        else:
            self.topics[path] = record

    def save(self, *, now: bool = True) -> None:
        """With `now` False only after a while, so that saving takes a small share of the time."""
        started = time.monotonic()
        if not self._unsaved or (started < self._save_after and not now):
            return
        try:
            save_known(self._file, self._directory, self.topics.values(), self.log)
            self._unsaved = False
        except OSError as error:
            _log.warning("directory.state-not-saved %s: %s", self._file, error)
        self._save_after = time.monotonic() + (time.monotonic() - started) / _SAVE_SHARE


class _Refusals:
    """Changes that the directory has refused, with the time of the next attempt."""

    def __init__(self) -> None:
        self._until: dict[Change, tuple[EntryProblem, float]] = {}
        # False once the server has refused a move: moves are then written as a removal and an addition. But if it also
        # refuses the addition, the reason is the name: later moves keep the other attributes of their entries.
        self.moves = True
        self._unmoved: set[TopicPath] = set()  # the new paths of these moves

    def __bool__(self) -> bool:
        return bool(self._until)

    def split(self, changes: Sequence[Change]) -> tuple[list[Change], tuple[EntryProblem, ...]]:
        """The changes to try now, and the problems of the others."""
        now = time.monotonic()
        self._until = {change: (problem, until) for change, (problem, until) in self._until.items() if until > now}
        refused = tuple(self._until[change][0] for change in changes if change in self._until)
        return [change for change in changes if change not in self._until], refused

    def add(self, tried: Sequence[Change], problems: Sequence[EntryProblem]) -> None:
        by_path = {problem.path: problem for problem in problems}
        until = time.monotonic() + _REFUSED_SECONDS
        for change in tried:
            problem = next((by_path[path] for path in touched(change) if path in by_path), None)
            if problem is not None:
                self._until[change] = (problem, until)
                if problem.kind is not ProblemKind.REFUSED:
                    continue
                if isinstance(change, Move):
                    self.moves = False
                    self._unmoved.add(change.new)
                elif isinstance(change, Put) and change.record.path in self._unmoved:
                    self.moves = True
                    self._unmoved.clear()


class _Latest:
    """The state of the directory as last reported, by threads of its own."""

    def __init__(self) -> None:
        self.listing: Listing | None = None
        self.checked: Listing | None = None
        """The last one that was checked for lost topics."""
        self._lock = threading.Lock()

    def store(self, listing: Listing) -> None:
        """Keep the newer listing: a listing from before a write may arrive after it. It replaces a fresh one that was
        not checked for lost topics, for instance that of a server while its backup is loaded: then it is fresh, too."""
        with self._lock:
            last = self.listing
            if last is not None and listing.version <= last.version:
                return
            if last is not None and last is not self.checked and (last.fresh or not last.initialised):
                listing = replace(listing, fresh=True)
            self.listing = listing


Recorded = Callable[[Sequence[ControlRecord], Mapping[TopicPath, TopicRecord | None]], AbstractContextManager[object]]


class DirectorySync:
    """The two-way sync. Call `applied` for all records of the control log up to its end, then `start`.

    `append` writes control records (`ControlLog.append`); after an InfrastructureError it is called again.
    """

    def __init__(
        self,
        directory: Directory,
        append: Callable[[Sequence[ControlRecord]], object],
        state_file: Path,
        problems_file: Path,
        recorded: Recorded = lambda _records, _before: nullcontext(),
    ) -> None:
        """`recorded` surrounds each append, with the former values of its topics."""
        self._directory = directory
        self._append = append
        self._recorded = recorded
        self._tree = _Tree()
        self._known = _Known(directory.name, state_file)
        self._refusals = _Refusals()
        self._lock = threading.Lock()
        self._service = Service(
            "topic-sync", self._step, delay_s=_REFUSED_SECONDS, backoff=_BACKOFF, what="the sync with the directory"
        )
        self._full_run_at = 0.0  # with refused changes: the time of the next complete run
        self.allowed: Callable[[], bool] = lambda: True
        """While it returns False another process writes: the log and the directory are only followed. Call `wake` when
        it changes to True."""
        self._latest = _Latest()
        self._reconciled: Listing | None = None  # the last one with which the tree was reconciled
        self.status = SyncStatus(directory.name)
        self._problems = ProblemFile(problems_file, directory.name)

    @property
    def behind(self) -> int:
        """The number of changed topics not yet written to the directory; 0 if another process writes it."""
        return self._tree.behind if self.allowed() else 0

    def applied(self, record: ControlRecord) -> None:
        """Apply a record of the control log. Called in the log's order; never blocks long."""
        match record:
            case TopicRecord(path=path):
                value: TopicRecord | None = record.facts
            case TopicRemoved(path=path):
                value = None
            case _:
                return
        self._tree.apply(path, value)
        self._service.wake()

    def of_log(self, topic_id: str) -> None:
        """Before `start`: the id of the control log's Kafka topic. A state saved with another log is not used."""
        self._known.log = topic_id

    def start(self) -> None:
        """Start the thread. Returns at once, even if the directory is unavailable."""
        self._tree.catch_up()
        if self._tree.topics:
            # With an empty tree (a new control log) there is no common state: the directory is imported, not emptied.
            self._known.load()
        self._directory.watch(self)
        self._service.start()

    def wake(self) -> None:
        """Begin a run soon."""
        self._service.wake()

    def close(self) -> None:
        """Stop, save the state, close the directory."""
        self._service.stop(None)
        self._directory.close()
        self._known.save()

    def changed(self, listing: Listing) -> None:
        """Called by the directory with its current state."""
        self._latest.store(listing)
        with self._lock:
            was_connected = self.status.connected
            self.status = replace(self.status, connected=True, detail="", topics=len(listing.entries))
        if not was_connected:
            _log.info("directory.connected %s: %d topics", self._directory.name, len(listing.entries))
        self._service.wake()

    def unavailable(self, error: DirectoryError) -> None:
        """Called by the directory if it cannot be read."""
        with self._lock:
            new = str(error) != self.status.detail
            self.status = replace(self.status, connected=False, detail=str(error))
        if new:
            topics = len(self._tree.topics)
            _log.warning("directory.unavailable %s; using the %d topics of the control log", error, topics)

    def _step(self) -> float:
        started_s = time.thread_time()
        if self._refusals and time.monotonic() >= self._full_run_at:
            self._reconciled = None
        try:
            self._reconcile()
        except BaseException:
            self._reconciled = None  # the next run is complete
            raise
        worked_s = time.thread_time() - started_s
        self._known.save(now=False)
        self._service.wait(min(max(_REST_SECONDS, _REST * worked_s), _LONGEST_REST_SECONDS))
        self._full_run_at = time.monotonic() + _REFUSED_SECONDS
        return _REFUSED_SECONDS

    def _reconcile(self) -> None:
        listing = self._latest.listing
        if self._must_not_write():
            # The next run is complete: it does not need the changed topics, which another process writes. It needs the
            # common state: without it the removals that the other process could not complete would be undone.
            changed = self._tree.begin()
            if listing is not None:
                self._known.follow(listing, self._tree.topics, changed)
            self._reconciled = None
            self._tree.end()
            return
        if listing is None or not self.status.connected:
            return
        tree, known = self._tree, self._known
        changed = tree.begin()
        missing = lost(known.topics, listing)
        if missing:
            _log.warning(
                "directory.incomplete %s lacks %d of %d topics and gets them from the tree; "
                "deliberate removals must be repeated",
                self._directory.name,
                len(missing),
                len(known.topics),
            )
        for path in missing:
            del known.topics[path]
        self._latest.checked = listing
        only = changed if listing is self._reconciled else None
        plan = reconcile(known.topics, listing, tree.topics, only=only, moves=self._refusals.moves)
        edits = {
            record.path: record if isinstance(record, TopicRecord) else None
            for record in plan.records
            if isinstance(record, TopicRecord | TopicRemoved)
        }
        before = {path: tree.topics.get(path) for path in edits}
        tree.expect(edits)
        try:
            self._append_records(plan, edits, before)
            known.agree(plan.agreed, listing)
            refused = self._write_changes(plan, listing)
        except BaseException:
            tree.end(failed=True)
            raise
        tree.end()
        if only is None or plan.problems or refused:
            self._report((*listing.problems, *plan.problems, *refused))

    def _must_not_write(self) -> bool:
        return not self.allowed() or self._service.stopping

    def _append_records(
        self, plan: Plan, edits: Mapping[TopicPath, TopicRecord | None], before: Mapping[TopicPath, TopicRecord | None]
    ) -> None:
        if not plan.records:
            return
        try:
            with self._recorded(plan.records, before):
                for start in range(0, len(plan.records), _APPENDED_AT_ONCE):
                    self._append(plan.records[start : start + _APPENDED_AT_ONCE])
        except BaseException:
            self._tree.appended(edits, failed=True)
            raise
        self._tree.appended(edits)
        _log.info("directory.taken-over %d edits from %s", len(edits), self._directory.name)

    def _write_changes(self, plan: Plan, listing: Listing) -> tuple[EntryProblem, ...]:
        """Write pending changes; returns the changes that the directory refuses, now or since earlier attempts."""
        changes, refused = self._refusals.split(plan.changes)
        if not changes:
            self._reconciled = listing
            return refused
        # After the loss of the lease another process writes: an older value would seem to be an edit in the directory.
        written = self._directory.write(changes, listing, self._must_not_write)
        self._latest.store(written.listing)
        self._known.agree(plan.agreed, written.listing)
        # The listing may have edits of other clients besides these changes, so the next run is complete.
        self._reconciled = None
        self._service.wake()
        self._refusals.add(changes, written.problems)
        count = len(changes) - len(written.problems) - written.left
        _log.info("directory.written %d changes to %s", count, self._directory.name)
        return (*refused, *written.problems)

    def _report(self, problems: tuple[EntryProblem, ...]) -> None:
        known = set(self.status.problems)
        new = [problem for problem in problems if problem not in known]
        with self._lock:
            self.status = replace(self.status, problems=problems)
        for problem in new[:_MAX_LOGGED]:
            _log.warning("directory.problem %s", problem)
        if len(new) > _MAX_LOGGED:
            _log.warning("directory.problem %d more problems", len(new) - _MAX_LOGGED)
        try:
            self._problems.save(problems, time.time_ns() // 1_000_000)
        except OSError as error:
            _log.warning("directory.problems-not-saved %s", error)
