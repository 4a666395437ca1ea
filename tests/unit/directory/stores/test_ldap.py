"""The watch of an LDAP server with a scripted session; what it does with a real server is in tests/integration."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.directory.entries.changes import Put
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.mapping import Listing, write_base, write_entry
from arborcast.directory.entries.reader import ListingReader
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores import ldap
from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.stores.ldap_client import EntryChanged, LdapSession
from arborcast.directory.stores.syncrepl import Mirror, SyncState
from arborcast.topic_model.topics import TopicPath
from tests.support.directory import Watch, topic

SETTINGS = DirectorySettings(kind="ldap", base_dn="ou=topics,dc=x")
BASE = parse_dn(SETTINGS.base_dn)
ROOT = list(filter(None, [write_base(BASE)]))


def test_listings_of_a_large_tree_leave_time_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, listed, read = SimpleNamespace(now=0.0), list[float](), ListingReader.read
    directory, watch = LdapDirectory(SETTINGS), Watch()
    monkeypatch.setattr(ldap, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def slow(reader: ListingReader, *args: Any, **options: Any) -> Listing:
        listed.append(clock.now)
        clock.now += 5.0
        return read(reader, *args, **options)

    class Session:
        """An edit each second, for a minute."""

        edits = 0

        def receive(self, timeout_s: float) -> EntryChanged | None:
            clock.now += timeout_s
            if self.edits == 60:
                directory._service.stop()
            if clock.now < self.edits:
                return None
            self.edits += 1
            entry = write_entry(TopicPath(f"t{self.edits}"), topic(f"t{self.edits}"), BASE)
            return EntryChanged(entry, SyncState.ADD, self.edits.to_bytes(16), False)

    monkeypatch.setattr(ListingReader, "read", slow)
    mirror = Mirror(ROOT)
    directory._mirror, directory._watcher = mirror, watch
    directory._apply_stream(cast(LdapSession, Session()), mirror, watch)
    assert len(listed) > 1
    assert all(later - earlier >= 25 for earlier, later in pairwise(listed))
    assert len(watch.listings) == len(listed)


def test_a_write_waits_for_all_events_of_the_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LdapDirectory(SETTINGS)
    directory._mirror = Mirror()
    events = [write_entry(TopicPath(f"t{n}"), topic(f"t{n}"), BASE).key for n in range(1_000)]
    directory._echoes = {*events, parse_dn("topicName=never,ou=topics,dc=x")}

    def wait(timeout_s: float | None = None) -> bool:
        """One event arrives; none after the last one."""
        if events:
            directory._echoes.discard(events.pop())
            return True
        return False

    monkeypatch.setattr(ldap, "_ECHO_SECONDS", 0.0)
    monkeypatch.setattr(directory._echoed, "wait", wait)
    monkeypatch.setattr(directory, "_writing_session", lambda: None)
    directory.write([], directory._current())
    assert events == []


def test_a_write_ends_between_two_requests_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that has lost the lease must not go on for minutes: its values may be older than those of the other."""
    directory = LdapDirectory(SETTINGS)
    directory._mirror = Mirror(ROOT)
    added: list[str] = []
    session = SimpleNamespace(carry_out=lambda edit: added.append(edit.entry.dn[0][0][1]), close=lambda: None)
    monkeypatch.setattr(directory, "_writing_session", lambda: session)
    seen = directory._current()
    changes = [Put(topic(name)) for name in "abc"]
    result = directory.write(changes, seen, lambda: len(added) == 2)
    assert (added, set(result.listing.entries), result.left) == (["a", "b"], {"a", "b"}, 1)
    assert directory.write(changes, result.listing).left == 0
    assert added == ["a", "b", "c"]
