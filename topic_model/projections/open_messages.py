"""Incomplete messages in parts: a fold over the log `fragments`. Pure: the clock is passed in.

The last missing part completes a message. The gateway that appended its record assembles it, and the message stays
known for a while, so that a repeated part does not begin a new one. The record of an assembly or a give-up has the
offset of the last part that was seen, so later parts are not lost with it. The log keeps parts for an hour.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from arborcast.core.recent import BoundedDict
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.topic_model.records.fragments import Assembled, FragmentRecord, GivenUp, Reason, StoredPart, ranges
from arborcast.topic_model.topics import TopicPath

# Of a part, its offset and a checksum are stored in one number, since a message may have 100,000 parts.
_DIGEST = 8
_BITS = 8 * _DIGEST

# Memory of a part without content: its texts and objects.
_PART_BYTES = 1_000

# Completed messages are remembered, up to this number of parts and for this time of the log: repetitions follow within
# seconds, and a restarted publisher may reuse its Identifications.
_KNOWN_PARTS = 200_000
_KNOWN_MS = 120_000

# Reasons for records without effect, for the gateway that appended one.
_REFUSED = 1_000

Key = tuple[str, str]
"""Owner and Identification."""


def key_of(record: FragmentRecord) -> Key:
    """The message of a part; all its parts must name one topic."""
    return record.owner, record.identification


@dataclass(slots=True)
class OpenMessage:
    """The parts of one message. `first` and `at` are the offsets of the first and the latest part; `seen` is the time
    at which the latter was applied, by the clock of the reader."""

    key: Key
    topic: TopicPath
    first: int
    since_ms: int
    at: int = -1
    accepted_ms: int = 0
    seen: float = 0.0
    last: int | None = None
    highest: int = -1
    bytes: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    resident: dict[int, StoredPart] = field(default_factory=dict)
    resident_bytes: int = 0

    @property
    def complete(self) -> bool:
        """Whether no part is missing."""
        return self.last is not None and len(self.parts) > self.last

    def offsets(self) -> Iterator[tuple[int, int]]:
        """The number of each part and its offset in the log."""
        return ((number, known >> _BITS) for number, known in self.parts.items())

    def contradiction(self, part: StoredPart) -> str:
        """The contradiction between this part and the others; empty for none."""
        if part.topic != self.topic:
            return f"the other parts are for the topic {self.topic}"
        known = self.parts.get(part.number)
        if known is not None and _digest(part) != known & _MASK:
            return f"part {part.number} arrived before, with other content"
        if known is None and self.last is not None and part.number > self.last:
            return f"part {self.last} was the last one"
        if part.last and self.last not in (None, part.number):
            return f"part {self.last} was the last one"
        if part.last and part.number < self.highest:
            return f"part {self.highest} arrived before"
        if not part.last and part.number == self.last:
            return f"part {part.number} arrived before, as the last one"
        return ""

    def add(self, part: StoredPart, offset: int, now: float) -> None:
        """Add a new part without contradiction."""
        self.parts[part.number] = offset << _BITS | _digest(part)
        self.bytes += len(part.content)
        self.highest = max(self.highest, part.number)
        if part.last:
            self.last = part.number
        self.at, self.accepted_ms, self.seen = offset, part.accepted_ms, now

    def given_up(self, reason: Reason, now_ms: int, detail: str = "") -> GivenUp:
        lacks = ranges(n for n in range(self.highest + 1) if n not in self.parts)
        if self.last is None:
            lacks = f"{lacks} {self.highest + 1}-".lstrip()
        had = ranges(sorted(self.parts))
        return GivenUp(*self._range(), reason, self.since_ms, now_ms, had, lacks, self.bytes, detail)

    def assembled(self) -> Assembled:
        return Assembled(*self._range())

    def _range(self) -> tuple[str, TopicPath, str, int, int]:
        owner, identification = self.key
        return owner, self.topic, identification, self.first, self.at


class OpenMessages:
    """The fold. Parts are in memory up to `resident_bytes`; others are read from the log."""

    def __init__(self, resident_bytes: int = 0) -> None:
        self._limit = resident_bytes
        self.resident_bytes = 0
        self.bytes = 0
        """Bytes of the parts of incomplete and unassembled messages."""
        self.open: dict[Key, OpenMessage] = {}
        self.complete: dict[int, OpenMessage] = {}
        """Messages to be assembled, by the offset of the completing record."""
        self.per_owner: Counter[str] = Counter()
        self.given_up = 0
        self.assembled = 0
        self._waiting: dict[Key, OpenMessage] = {}  # of `complete`, the latest of each key
        self._done: OrderedDict[Key, OpenMessage] = OrderedDict()
        self._done_parts = 0
        self._refused: BoundedDict[int, str] = BoundedDict(_REFUSED)

    def again(self, part: StoredPart) -> OpenMessage | None:
        """The message that this part repeats; None for a new part."""
        key = key_of(part)
        done = self._done.get(key)
        if done is not None and abs(part.accepted_ms - done.accepted_ms) > _KNOWN_MS:
            done = None  # also where the clock was put back since
        candidates = (self.open.get(key), self._waiting.get(key), done)
        return next((each for each in candidates if each is not None and _is_again(each, part)), None)

    def contradiction(self, part: StoredPart) -> str:
        """The reason for refusing the part; empty if it is accepted."""
        message = self.open.get(key_of(part))
        return "" if message is None else message.contradiction(part)

    def refused(self, offset: int) -> str:
        """The reason why the record at this offset had no effect; empty if it had one, or was a repetition."""
        return self._refused.pop(offset, "")

    def apply(self, record: FragmentRecord, offset: int, now: float) -> None:
        match record:
            case StoredPart():
                self._add(record, offset, now)
            case Assembled():
                message = self._close(record)
                self.assembled += message is not None
                if message is not None:
                    self._remember(message)
            case GivenUp():
                if self._close(record) is None:
                    self._refused[offset] = "it was complete, or a part arrived"
                else:
                    self.given_up += 1

    def _add(self, part: StoredPart, offset: int, now: float) -> None:
        if self.again(part) is not None:
            return
        key = key_of(part)
        if why := self.contradiction(part):
            self._refused[offset] = why
            return
        message = self.open.get(key)
        if message is None:
            message = self.open[key] = OpenMessage(key, part.topic, offset, part.accepted_ms)
            self.per_owner[part.owner] += 1
        message.add(part, offset, now)
        self.bytes += len(part.content)
        size = _memory(part)
        if self.resident_bytes + size <= self._limit:
            message.resident[part.number] = part
            message.resident_bytes += size
            self.resident_bytes += size
        if message.complete:
            self._no_longer_open(message)
            self.complete[offset] = self._waiting[key] = message

    def _close(self, record: Assembled | GivenUp) -> OpenMessage | None:
        message = self.complete.pop(record.at, None)
        if message is None:
            message = self.open.get(key_of(record))
            if message is None or message.at > record.at:
                return None
            self._no_longer_open(message)
        elif self._waiting.get(message.key) is message:
            del self._waiting[message.key]
        self.bytes -= message.bytes
        self.resident_bytes -= message.resident_bytes
        message.resident.clear()
        return message

    def _no_longer_open(self, message: OpenMessage) -> None:
        del self.open[message.key]
        owner = message.key[0]
        self.per_owner[owner] -= 1
        if not self.per_owner[owner]:
            del self.per_owner[owner]

    def _remember(self, message: OpenMessage) -> None:
        before = self._done.pop(message.key, None)
        self._done_parts += len(message.parts) - (0 if before is None else len(before.parts))
        self._done[message.key] = message
        while (
            self._done_parts > _KNOWN_PARTS
            or message.accepted_ms - next(iter(self._done.values()), message).accepted_ms > _KNOWN_MS + CLOCKS_APART_MS
        ):
            _, oldest = self._done.popitem(last=False)
            self._done_parts -= len(oldest.parts)


_MASK = (1 << _BITS) - 1


def _is_again(message: OpenMessage, part: StoredPart) -> bool:
    known = message.parts.get(part.number)
    return (
        known is not None
        and part.topic == message.topic
        and part.last == (part.number == message.last)
        and known & _MASK == _digest(part)
    )


def _memory(part: StoredPart) -> int:
    declared = sum(len(prefix) + len(uri) for prefix, uri in part.namespaces.items())
    return _PART_BYTES + len(part.content) + declared


def _digest(part: StoredPart) -> int:
    return int.from_bytes(blake2b(part.content, digest_size=_DIGEST).digest())
