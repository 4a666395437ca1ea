"""Our copy of the server's entries, kept current from what the stream of changes says. Pure.

The server speaks of an entry by its UUID, and of a moved subtree only by its root, so the copy knows both.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from topic_model.directory.dn import Dn, is_below
from topic_model.directory.entries import Entry, EntrySet
from topic_model.directory.syncrepl import EntryState, State, SyncInfo

# Operational attributes: asked for, used here, and no part of the entry.
_OPERATIONAL = ("entryuuid", "hassubordinates")


class ReloadNeeded(Exception):
    """The change cannot be told from the message alone; read everything again."""


class Mirror:
    """Entries below a base, and the key of each UUID. `entries` may be edited by the writer meanwhile."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = EntrySet()
        self._keys: dict[bytes, Dn] = {}
        self._mentioned: set[bytes] | None = set()
        for entry in entries:
            # A server without entryUUID has no syncrepl either.
            with suppress(ValueError):
                self._keys[UUID(entry.text("entryuuid") or "").bytes] = entry.key
            self.entries.put(_bare(entry))

    def apply(self, entry: Entry, state: EntryState, has_children: bool) -> bool:
        """Take in one message; True when the entries have changed. Raises ReloadNeeded."""
        if self._mentioned is not None:
            self._mentioned.add(state.uuid)
        if state.state is State.PRESENT:
            return False
        if state.state is State.DELETE:
            return self._forget(state.uuid, entry.key)
        entry = _bare(entry)
        old = self._keys.get(state.uuid)
        known = self.entries.get(entry.key)
        if has_children and known is None and (old is None or old not in self.entries):
            # A subtree was moved in from outside the base: the server tells of its root only.
            raise ReloadNeeded
        self._keys[state.uuid] = entry.key
        if old is not None and old != entry.key:
            for uuid, key in self._keys.items():
                if is_below(key, old):
                    self._keys[uuid] = key[: -len(old)] + entry.key
            if old in self.entries:
                self.entries.rename(old, entry)
                return True
        self.entries.put(entry)
        return known is None or not _same(known, entry)

    def inform(self, info: SyncInfo) -> bool:
        """Take in a message about the phase; True when the entries have changed."""
        changed = False
        if info.deleted:
            for uuid in info.uuids:
                changed |= self._forget(uuid, None)
        elif self._mentioned is not None:
            self._mentioned.update(info.uuids)
        if info.refresh_done:
            if info.absent_are_deleted and self._mentioned is not None:
                for uuid in [u for u in self._keys if u not in self._mentioned]:
                    changed |= self._forget(uuid, None)
            self._mentioned = None
        return changed

    def _forget(self, uuid: bytes, key: Dn | None) -> bool:
        key = self._keys.pop(uuid, key)
        if key is None or key not in self.entries:
            return False
        self.entries.discard(key)
        return True


def _bare(entry: Entry) -> Entry:
    if not any(name in entry.attributes for name in _OPERATIONAL):
        return entry
    return replace(entry, attributes={k: v for k, v in entry.attributes.items() if k not in _OPERATIONAL})


def _same(one: Entry, other: Entry) -> bool:
    """Equal as sets of values: servers do not promise an order."""
    return one.dn == other.dn and {k: set(v) for k, v in one.attributes.items()} == {
        k: set(v) for k, v in other.attributes.items()
    }
