"""Keeps the control log and the directory in step, in a thread of the process that owns the log (the gateway).

Edits in the directory become control records; topics that came through the engine are written to the directory. The
decisions are in `reconcile`; here is only when to decide and what to do with failures. The directory may be away at any
time, from the start or in the middle: the engine goes on with the tree it has, and both sides are reconciled when the
directory is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arborcast.core.backoff import Backoff
from arborcast.core.threads import Service
from arborcast.directory.entries.changes import Change, Move
from arborcast.directory.entries.mapping import EntryProblem, Listing
from arborcast.directory.errors import DirectoryError
from arborcast.directory.stores.contract import Directory, touched
from arborcast.directory.sync.problems import SyncProblems, load_problems, save_problems
from arborcast.directory.sync.reconcile import Plan, first_contact, load_known, reconcile, save_known
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath

_log = logging.getLogger(__name__)

# Between two runs it rests this many times as long as a run takes, and at least this long: with a tree of any size,
# and however fast topics come, the sync takes no more than a fifth of a core and a burst becomes one run.
_REST, _REST_SECONDS = 4, 0.02
_BACKOFF = Backoff(0.2, 10.0)
# A change that the directory refuses (a name too long for it, say) is tried again after so long, not at every run.
_REFUSED_SECONDS = 60.0
# A directory full of foreign entries shall not fill the log.
_MAX_LOGGED = 20
# Saving what is known may take this fraction of the time.
_SAVE_SHARE = 0.02


@dataclass(frozen=True)
class SyncStatus:
    """How things stand. `problems` are entries skipped and changes not written, as of the last run."""

    directory: str
    connected: bool = False
    detail: str = "not read yet"
    topics: int = 0
    problems: tuple[EntryProblem, ...] = ()


class DirectorySync:
    """The two-way sync. Feed `applied` with the whole control log up to its end, then `start`.

    `append` writes control records (`ControlLog.append`); it may raise InfrastructureError, then it is tried again.
    """

    def __init__(
        self,
        directory: Directory,
        append: Callable[[Sequence[ControlRecord]], object],
        state_file: Path | None = None,
        problems_file: Path | None = None,
    ) -> None:
        self._directory = directory
        self._append = append
        self._state_file = state_file
        self._problems_file = problems_file
        self._lock = threading.Lock()
        self._service = Service(
            "topic-sync", self._step, delay_s=_REFUSED_SECONDS, backoff=_BACKOFF, what="the sync with the directory"
        )
        self._tree: dict[TopicPath, TopicRecord] = {}
        # Appended by us and not yet come back through `applied`; until then they count as applied, and what the log
        # holds before them does not: else our own edit would look as if the engine had undone it.
        self._pending: dict[TopicPath, TopicRecord | None] = {}
        self._dirty: set[TopicPath] = set()
        self._under_way = 0
        self._known: dict[TopicPath, TopicRecord] = {}
        self._listing: Listing | None = None
        self._reconciled: Listing | None = None
        self._away = False
        self._moves = True
        self._refused: dict[Change, tuple[EntryProblem, float]] = {}
        self._look_at = 0.0  # with refused changes: when to look at everything again
        self._paused = False
        self._allowed: Callable[[], bool] = lambda: True
        self._unsaved = False
        self._save_after = 0.0
        self._status = SyncStatus(directory.name)
        self._listed = load_problems(problems_file) if problems_file else SyncProblems()

    @property
    def status(self) -> SyncStatus:
        """How things stand now."""
        return self._status

    @property
    def behind(self) -> int:
        """How many topics have changed that the directory does not have yet; 0 where another process writes it."""
        return 0 if self._paused else len(self._dirty) + self._under_way

    def applied(self, record: ControlRecord) -> None:
        """The control log holds this record, which is now part of the tree. In the log's order; never blocks long."""
        match record:
            case TopicRecord(path=path):
                value: TopicRecord | None = record.facts
            case TopicRemoved(path=path):
                value = None
            case _:
                return
        with self._lock:
            if path in self._pending:
                if self._pending[path] != value:
                    return
                del self._pending[path]
            self._set(path, value)
        self._service.wake()

    def start(self) -> None:
        """Begin. Returns at once, whether the directory is there or not."""
        if self._state_file is not None and self._tree:
            # With an empty tree (a new control log) nothing was agreed on: the directory is read, not emptied.
            self._known = load_known(self._state_file, self._directory.name)
        self._directory.watch(self)
        self._service.start()

    def allow_while(self, condition: Callable[[], bool]) -> None:
        """Look at this before each run, and do nothing where it is False. Before `start`."""
        self._allowed = condition

    def pause(self) -> None:
        """Another process does this for now. What is applied, and what the directory holds, goes on to be followed."""
        self._paused = True

    def resume(self) -> None:
        """It is ours again: look at everything."""
        self._paused = False
        self._service.wake()

    def close(self) -> None:
        """Stop, write down what is known, close the directory."""
        self._service.stop(None)
        self._directory.close()
        self._save()

    def changed(self, listing: Listing) -> None:
        """From the directory: this is what it holds now."""
        with self._lock:
            # Our own write may have brought a newer one while this was on its way.
            if self._listing is None or listing.version > self._listing.version:
                self._listing = listing
            was_away, self._away = self._away, False
            first = not self._status.connected
            self._status = replace(self._status, connected=True, detail="", topics=len(listing.entries))
        if was_away or first:
            _log.info("directory.connected %s: %d topics", self._directory.name, len(listing.entries))
        self._service.wake()

    def away(self, error: DirectoryError) -> None:
        """From the directory: it cannot be read."""
        with self._lock:
            self._away = True
            topics = len(self._tree)
            news = str(error) != self._status.detail
            self._status = replace(self._status, connected=False, detail=str(error))
        if news:
            _log.warning("directory.away %s; going on with the %d topics of the control log", error, topics)

    def _set(self, path: TopicPath, value: TopicRecord | None) -> None:
        if value is None:
            self._tree.pop(path, None)
        else:
            self._tree[path] = value
        self._dirty.add(path)

    def _step(self) -> float:
        started = time.monotonic()
        if self._refused and started >= self._look_at:
            self._reconciled = None
        try:
            self._reconcile()
        except BaseException:
            self._reconciled = None  # look at everything again
            raise
        worked_s = time.monotonic() - started
        self._save_now_and_then()
        self._service.wait(max(_REST_SECONDS, _REST * worked_s))
        self._look_at = time.monotonic() + _REFUSED_SECONDS
        return _REFUSED_SECONDS

    def _reconcile(self) -> None:
        if self._paused or not self._allowed():
            self._reconciled = None
            return
        with self._lock:
            listing = self._listing
            if listing is None or self._away:
                return
            dirty, self._dirty = self._dirty, set()
            self._under_way = len(dirty)
            if first_contact(self._known, listing, self._tree):
                if self._known:
                    _log.warning(
                        "directory.empty %s holds no topics: taken for a new one and filled with the %d of the tree",
                        self._directory.name,
                        len(self._tree),
                    )
                self._known = {}
            only = dirty if listing is self._reconciled else None
            plan = reconcile(self._known, listing, self._tree, only=only, moves=self._moves)
            # Before they are appended, since they may come back before `append` returns.
            for record in plan.records:
                if isinstance(record, TopicRecord):
                    self._pending[record.path] = record
                elif isinstance(record, TopicRemoved):
                    self._pending[record.path] = None
        try:
            self._append_records(plan)
            self._agree(plan, listing)
            refused = self._write_changes(plan, listing)
        except BaseException:
            with self._lock:
                self._dirty |= dirty
                self._under_way = 0
            raise
        self._under_way = 0
        if only is None or plan.problems or refused:
            self._report((*listing.problems, *plan.problems, *refused))

    def _append_records(self, plan: Plan) -> None:
        if not plan.records:
            return
        records = [r for r in plan.records if isinstance(r, TopicRecord | TopicRemoved)]
        try:
            self._append(plan.records)
        except BaseException:
            with self._lock:
                for record in records:
                    self._pending.pop(record.path, None)
            raise
        with self._lock:
            for record in records:
                if record.path in self._pending:
                    self._set(record.path, self._pending[record.path])
        _log.info("directory.taken-over %d edits from %s", len(records), self._directory.name)

    def _write_changes(self, plan: Plan, listing: Listing) -> tuple[EntryProblem, ...]:
        """Write what is to be written; returns the changes that the directory refuses, now or since a while ago."""
        now = time.monotonic()
        self._refused = {change: (problem, until) for change, (problem, until) in self._refused.items() if until > now}
        refused = tuple(self._refused[change][0] for change in plan.changes if change in self._refused)
        changes = [change for change in plan.changes if change not in self._refused]
        if not changes:
            self._reconciled = listing
            return refused
        written = self._directory.write(changes, listing)
        with self._lock:
            if self._listing is None or written.listing.version > self._listing.version:
                self._listing = written.listing
        self._agree(plan, written.listing)
        # The listing may hold edits of others beside our changes: look at everything once more.
        self._reconciled = None
        self._service.wake()
        by_path = {problem.path: problem for problem in written.problems}
        for change in changes:
            problem = next((by_path[path] for path in touched(change) if path in by_path), None)
            if problem is not None:
                self._refused[change] = (problem, now + _REFUSED_SECONDS)
                self._moves &= not isinstance(change, Move)
        _log.info("directory.written %d changes to %s", len(changes) - len(written.problems), self._directory.name)
        return (*refused, *written.problems)

    def _agree(self, plan: Plan, listing: Listing) -> None:
        """Note what the directory holds of what the plan was after (the tree holds it already, or did a moment ago)."""
        for path, record in plan.agreed.items():
            entry = listing.entries.get(path)
            if (entry.record if entry is not None else None) != record:
                continue
            self._unsaved = True
            if record is None:
                self._known.pop(path, None)
            else:
                self._known[path] = record

    def _report(self, problems: tuple[EntryProblem, ...]) -> None:
        with self._lock:
            news = [problem for problem in problems if problem not in self._status.problems]
            self._status = replace(self._status, problems=problems)
        for problem in news[:_MAX_LOGGED]:
            _log.warning("directory.problem %s", problem)
        if len(news) > _MAX_LOGGED:
            _log.warning("directory.problem %d more like these", len(news) - _MAX_LOGGED)
        listed = self._listed.now(self._directory.name, problems, time.time_ns() // 1_000_000)
        if self._problems_file is None or listed == self._listed:
            return
        try:
            save_problems(self._problems_file, listed)
        except OSError as error:
            _log.warning("directory.problems-not-saved %s: %s", self._problems_file, error)
        else:
            self._listed = listed

    def _save_now_and_then(self) -> None:
        if self._unsaved and time.monotonic() >= self._save_after:
            started = time.monotonic()
            self._save()
            self._save_after = time.monotonic() + (time.monotonic() - started) / _SAVE_SHARE

    def _save(self) -> None:
        if self._state_file is None or not self._unsaved:
            return
        try:
            save_known(self._state_file, self._directory.name, self._known.values())
            self._unsaved = False
        except OSError as error:
            _log.warning("directory.state-not-saved %s: %s", self._state_file, error)
