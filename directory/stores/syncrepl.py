"""RFC 4533 (syncrepl), the used part of the client: the request, and messages about an entry or a phase.

Pure: bytes in, values out. `parse_*` return or raise SyncDecodeError for any bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from arborcast.directory.entries.dn import Dn
from arborcast.directory.entries.entries import Entry, EntrySet, moved_key

REQUEST_CONTROL = "1.3.6.1.4.1.4203.1.9.1.1"

STATE_CONTROL = "1.3.6.1.4.1.4203.1.9.1.2"

INFO_MESSAGE = "1.3.6.1.4.1.4203.1.9.1.4"

REFRESH_REQUIRED = 4096
"""Result code: the server no longer has the changes since the cookie; a full read is required."""

_SEQUENCE, _SET, _OCTETS, _ENUMERATED, _BOOLEAN = 0x30, 0x31, 0x04, 0x0A, 0x01

_NEW_COOKIE, _REFRESH_DELETE, _REFRESH_PRESENT, _ID_SET = 0x80, 0xA1, 0xA2, 0xA3

_REFRESH_AND_PERSIST = 3

_UUID_BYTES = 16


class SyncDecodeError(ValueError):
    """The server's bytes are not valid by RFC 4533."""


class SyncState(Enum):
    """The change of an entry."""

    PRESENT = 0
    ADD = 1
    MODIFY = 2
    DELETE = 3


@dataclass(frozen=True, slots=True)
class SyncInfo:
    """A message about a phase. `refresh_done`: the state at the time of the request is complete. `absent_are_deleted`:
    entries without a message in the refresh are deleted. `uuids` are deleted (`deleted`) or unchanged entries."""

    refresh_done: bool = False
    absent_are_deleted: bool = False
    uuids: tuple[bytes, ...] = ()
    deleted: bool = False


def request_value(cookie: bytes = b"") -> bytes:
    """The control's value: refreshAndPersist, since `cookie`."""
    inner = _tlv(_ENUMERATED, bytes([_REFRESH_AND_PERSIST]))
    if cookie:
        inner += _tlv(_OCTETS, cookie)
    return _tlv(_SEQUENCE, inner)


def cookie_at(context_csn: tuple[bytes, ...]) -> bytes:
    """OpenLDAP's cookie for a client with the state at these CSNs.

    With it a client that has just read the tree page by page gets only later changes; the refresh of a request without
    a cookie counts against the size limit.
    """
    return b"rid=000,csn=" + b";".join(sorted(context_csn))


def parse_state(value: bytes) -> tuple[SyncState, bytes]:
    """The change of an entry and its UUID, from the value of the state control."""
    fields = list(_children(_only(value, _SEQUENCE)))
    if len(fields) < 2 or fields[0][0] != _ENUMERATED or fields[1][0] != _OCTETS:
        raise SyncDecodeError("a sync state must have a state and an entryUUID")
    try:
        state = SyncState(int.from_bytes(fields[0][1], "big"))
    except ValueError as error:
        raise SyncDecodeError(f"unknown sync state {fields[0][1]!r}") from error
    if len(fields[1][1]) != _UUID_BYTES:
        raise SyncDecodeError("an entryUUID has 16 bytes")
    return state, fields[1][1]


def parse_info(value: bytes) -> SyncInfo:
    """The value of an intermediate response."""
    messages = list(_children(value))
    if len(messages) != 1:
        raise SyncDecodeError("a sync info message must have one choice")
    tag, content = messages[0]
    if tag == _NEW_COOKIE:
        return SyncInfo()
    fields = list(_children(content))
    flag = next((field != b"\0" for kind, field in fields if kind == _BOOLEAN), None)
    if tag in (_REFRESH_DELETE, _REFRESH_PRESENT):
        return SyncInfo(refresh_done=flag is not False, absent_are_deleted=tag == _REFRESH_PRESENT)
    if tag == _ID_SET:
        sets = [field for kind, field in fields if kind == _SET]
        uuids = tuple(field for each in sets for kind, field in _children(each) if kind == _OCTETS)
        return SyncInfo(uuids=uuids, deleted=flag is True)
    raise SyncDecodeError(f"unknown sync info message {tag:#x}")


def _tlv(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size, "big") + content


def _only(data: bytes, tag: int) -> bytes:
    fields = list(_children(data))
    if len(fields) != 1 or fields[0][0] != tag:
        raise SyncDecodeError(f"expected one element with tag {tag:#x}")
    return fields[0][1]


def _children(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element; definite lengths only, as in LDAP."""
    position = 0
    while position < len(data):
        header = data[position : position + 2]
        if len(header) < 2:
            raise SyncDecodeError("an element ends within its header")
        tag, length = header[0], header[1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            if not 1 <= size <= 4 or position + size > len(data):
                raise SyncDecodeError("an element's length cannot be read")
            position += size
        if position + length > len(data):
            raise SyncDecodeError("an element ends early")
        yield tag, data[position : position + length]
        position += length


# Operational attributes: requested, used here, not part of the entry.
_OPERATIONAL = ("entryuuid", "hassubordinates")


class ReloadNeeded(Exception):
    """A message is not sufficient to update the copy; everything must be read again."""


class Mirror:
    """A copy of the server's entries, updated by the stream of changes. The writer may edit `entries` too.

    Messages identify an entry by its UUID, and a moved subtree by its root only, so the copy also has the UUIDs.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = EntrySet()
        self._keys: dict[bytes, Dn] = {}
        self._uuids: dict[Dn, bytes] = {}  # the inverse
        self._mentioned: set[bytes] | None = set()
        for entry in entries:
            # A server without entryUUID has no syncrepl either.
            with suppress(ValueError):
                self._place(UUID(entry.text("entryuuid") or "").bytes, entry.key)
            self.entries.put(_bare(entry))

    def apply(self, entry: Entry, state: SyncState, uuid: bytes, has_children: bool) -> bool:
        """Apply one message; returns whether the entries have changed. Raises ReloadNeeded."""
        if self._mentioned is not None:
            self._mentioned.add(uuid)
        if state is SyncState.PRESENT:
            return False
        if state is SyncState.DELETE:
            return self._forget(uuid, entry.key)
        entry = _bare(entry)
        old = self._keys.get(uuid)
        known = self.entries.get(entry.key)
        if known is None and (has_children if old is None else old not in self.entries):
            # A subtree was moved in from outside the base: there are messages for its root only. Or another client has
            # changed an entry before the writer moved it.
            raise ReloadNeeded
        above = entry.key[1:]
        if known is None and above in self._uuids and above not in self.entries:
            raise ReloadNeeded  # it was added there before the writer moved the entry above
        # An entry of the writer has no UUID before its message: if the writer has moved this one, a further one at its
        # old place was added since.
        by_writer = known is not None and entry.key not in self._uuids
        self._place(uuid, entry.key)
        if old is not None and old != entry.key:
            renamed = old in self.entries and not by_writer
            if renamed:
                self.entries.rename(old, entry)
            for below in self.entries.below(entry.key):
                uuid_below = self._uuids.get(moved_key(below.key, entry.key, old))
                if uuid_below is not None:
                    self._place(uuid_below, below.key)
                elif below.key not in self._uuids:
                    # Another client deleted it before the writer moved the entry above.
                    raise ReloadNeeded
            if renamed:
                return True
        self.entries.put(entry)
        return known is None or not _same(known, entry)

    def inform(self, info: SyncInfo) -> bool:
        """Apply a message about the phase; returns whether the entries have changed."""
        changed = False
        if info.deleted:
            changed |= self._forget_all(info.uuids)
        elif self._mentioned is not None:
            self._mentioned.update(info.uuids)
        if info.refresh_done:
            if info.absent_are_deleted and self._mentioned is not None:
                changed |= self._forget_all(self._keys.keys() - self._mentioned)
            self._mentioned = None
        return changed

    def _place(self, uuid: bytes, key: Dn) -> None:
        self._take(uuid)
        self._keys[uuid] = key
        self._uuids[key] = uuid

    def _take(self, uuid: bytes) -> Dn | None:
        """Remove the UUID; returns its key, None if that has another UUID now: it was deleted and added again."""
        key = self._keys.pop(uuid, None)
        if key is None or self._uuids.get(key) != uuid:
            return None
        del self._uuids[key]
        return key

    def _forget_all(self, uuids: Iterable[bytes]) -> bool:
        """Remove entries, except one that was deleted and added again."""
        before = len(self.entries)
        for uuid in uuids:
            key = self._take(uuid)
            if key is not None:
                self.entries.discard(key)
        return len(self.entries) < before

    def _forget(self, uuid: bytes, key: Dn) -> bool:
        known = self._keys.get(uuid, key)
        self._take(uuid)
        if known not in self.entries:
            return False
        self.entries.discard(known)
        return True


def _bare(entry: Entry) -> Entry:
    if not any(name in entry.attributes for name in _OPERATIONAL):
        return entry
    return replace(entry, attributes={k: v for k, v in entry.attributes.items() if k not in _OPERATIONAL})


def _same(one: Entry, other: Entry) -> bool:
    """Equal as sets of values: servers do not define an order."""
    return one.dn == other.dn and {k: set(v) for k, v in one.attributes.items()} == {
        k: set(v) for k, v in other.attributes.items()
    }
