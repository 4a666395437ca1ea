"""Entries, and a set of entries with their hierarchy.

Both stores have their last state in an `EntrySet`; mapping and planning of edits need no server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from arborcast.directory.entries.dn import Dn, fold

Attributes = Mapping[str, tuple[bytes, ...]]
"""Values by attribute type in lower case, in the directory's order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `dn` is as written, for messages and requests; `key` is its folded form, for comparison."""

    dn: Dn
    attributes: Attributes
    key: Dn

    @staticmethod
    def of(dn: Dn, attributes: Attributes) -> Entry:
        """An entry with its key."""
        return Entry(dn, attributes, fold(dn))

    def text(self, name: str) -> str | None:
        """The first value of an attribute; None without any. Bytes that are not UTF-8 are replaced."""
        values = self.attributes.get(name)
        return values[0].decode(errors="replace") if values else None

    def has_class(self, name: str) -> bool:
        """Whether the entry has this object class."""
        folded = name.lower()
        return any(value.decode(errors="replace").lower() == folded for value in self.attributes.get("objectclass", ()))


class EntrySet:
    """Entries by key, in the order of addition, with the keys below each."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: dict[Dn, Entry] = {}
        # With the keys below as dictionaries, which are ordered.
        self._below: dict[Dn, dict[Dn, None]] = {}
        for entry in entries:
            self.put(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, key: Dn) -> bool:
        return key in self._entries

    def get(self, key: Dn) -> Entry | None:
        return self._entries.get(key)

    def put(self, entry: Entry) -> None:
        """Add the entry, or replace the entry with the same key in its position."""
        if entry.key not in self._entries and entry.key:
            self._below.setdefault(entry.key[1:], {})[entry.key] = None
        self._entries[entry.key] = entry

    def discard(self, key: Dn) -> None:
        """Remove the entry with its subtree; a missing entry is ignored."""
        for below in tuple(self._below.get(key, ())):
            self.discard(below)
        if self._entries.pop(key, None) is not None and key:
            siblings = self._below[key[1:]]
            del siblings[key]
            if not siblings:
                del self._below[key[1:]]

    def children(self, key: Dn) -> Collection[Dn]:
        """Keys of the entries directly below. Not a copy: a node may have all topics below it."""
        return self._below.get(key, {}).keys()

    def below(self, key: Dn) -> list[Entry]:
        """The entries of the subtree without its root, parents first."""
        keys = list(self.children(key))
        for each in keys:
            keys.extend(self.children(each))
        return [self._entries[each] for each in keys]

    def rename(self, key: Dn, entry: Entry) -> None:
        """Replace the entry `key` by `entry` with another DN; its subtree moves along."""
        moved = self.below(key)
        self.discard(key)
        self.put(entry)
        for below in moved:
            self.put(Entry(below.dn[: -len(key)] + entry.dn, below.attributes, moved_key(below.key, key, entry.key)))


def moved_key(key: Dn, old: Dn, new: Dn) -> Dn:
    """The key of an entry of the subtree `old` after its move to `new`."""
    return key[: len(key) - len(old)] + new
