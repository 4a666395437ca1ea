"""Builders for tests of the topic directory: topics, entries, and random trees."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from arborcast.directory.entries.changes import Change, Put, Workspace
from arborcast.directory.entries.dn import Dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import Listing, canonical
from arborcast.directory.entries.reader import read_listing
from arborcast.directory.errors import DirectoryError
from arborcast.directory.stores.contract import Directory
from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.sync.problems import FILE
from arborcast.directory.sync.sync import DirectorySync
from arborcast.topic_model.records.control import ControlRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath, make_path, parse_path
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import topic_steps

NAMES = ("a", "b", "Größe", "温度", "x-1.y", "z_")
NAMESPACES = ("", "", "urn:t", "http://example.org/a,b=c+d#e")

WAIT_SECONDS = 120.0


def topic(path: str, **facts: object) -> TopicRecord:
    """A topic record, with facts of the policy by name."""
    policy = {k: facts.pop(k) for k in ("retain", "priority", "routing", "publishers") if k in facts}
    return TopicRecord(parse_path(path), policy=TopicPolicy(**policy), **facts)  # type: ignore[arg-type]


Open = Callable[..., LdapDirectory]
"""Opens a directory on a real server for a test."""


def fill(directory: Directory, *paths: str) -> Listing:
    """Write these topics."""
    result = directory.write([Put(topic(path)) for path in paths], directory.load())
    assert result.problems == ()
    return result.listing


def carry_out(changes: Sequence[Change], entries: EntrySet, base: Dn) -> None:
    """Apply these changes, as a directory does."""
    workspace = Workspace(entries, read_listing(entries, base), base)
    assert workspace.write(changes) == ([], 0)


paths = topic_steps(NAMES, NAMESPACES, 4).map(make_path)

# LDAP's Directory String: any text but the empty string. Characters outside XML are refused by the tree's own rules.
texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"),
    min_size=1,
    max_size=12,
)


@st.composite
def records(draw: st.DrawFn) -> TopicRecord:
    """Topic records that a directory can hold, in canonical form."""
    policy = TopicPolicy(
        retain=draw(st.none() | st.booleans()),
        priority=draw(st.integers(-(10**9), 10**9)),
        routing=draw(st.sampled_from(["", "local", "reliable group", "to:G1,G-2 split"])),
        publishers=tuple(draw(st.lists(texts, max_size=3))),
        queue=draw(st.booleans()),
        merge=draw(st.booleans()),
    )
    return canonical(
        TopicRecord(
            path=draw(paths),
            code=draw(st.just("") | texts),
            message_types=tuple(draw(st.lists(texts, max_size=3))),
            final=draw(st.booleans()),
            policy=policy,
        )
    )


class Watch:
    """Collects the calls of a directory's watcher."""

    def __init__(self) -> None:
        self.listings: list[tuple[float, Listing]] = []
        self.errors: list[DirectoryError] = []
        self._news = threading.Condition()

    def changed(self, listing: Listing) -> None:
        with self._news:
            self.listings.append((time.monotonic(), listing))
            self._news.notify_all()

    def unavailable(self, error: DirectoryError) -> None:
        with self._news:
            self.errors.append(error)
            self._news.notify_all()

    def wait(self, condition: Callable[[Listing], bool], timeout: float = WAIT_SECONDS) -> tuple[float, Listing]:
        """(time, listing) of the newest listing once it satisfies the condition."""
        with self._news:
            good = self._news.wait_for(lambda: bool(self.listings) and condition(self.listings[-1][1]), timeout)
            assert good, f"no such listing within {timeout} s; last: {self.listings[-1:]}, errors: {self.errors[-1:]}"
            return self.listings[-1]

    def wait_paths(self, *expected: str, timeout: float = WAIT_SECONDS) -> tuple[float, Listing]:
        """`wait` until the directory has exactly these topics."""
        return self.wait(lambda listing: set(listing.entries) == set(expected), timeout)

    def wait_error(self) -> DirectoryError:
        with self._news:
            assert self._news.wait_for(lambda: self.errors, WAIT_SECONDS), "no error was reported"
            return self.errors[-1]


class Log:
    """A control log in memory whose records are read back at once, as by a follower."""

    def __init__(self) -> None:
        self.records: list[ControlRecord] = []
        self.tree = TopicTree()
        self.sync: DirectorySync | None = None
        self._lock = threading.Lock()

    def append(self, batch: Sequence[ControlRecord]) -> int:
        with self._lock:
            for record in batch:
                self.records.append(record)
                self.tree.apply(record)
                if self.sync is not None:
                    self.sync.applied(record)
            return len(self.records) - 1

    def topics(self) -> dict[TopicPath, TopicRecord]:
        with self._lock:
            return {record.path: canonical(record) for record in self.tree.records()}


@contextmanager
def synced(directory: Directory, state: Path, *records: ControlRecord) -> Iterator[tuple[Log, DirectorySync]]:
    """A sync between this directory and a log in memory, as in the gateway."""
    log = Log()
    sync = log.sync = DirectorySync(directory, log.append, state, state.with_name(FILE))
    log.append(records)
    sync.start()
    try:
        yield log, sync
    finally:
        sync.close()
