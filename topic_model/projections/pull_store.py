"""Messages in pull points: a fold over the `pullpoints` log. Pure: no clock, no I/O.

Messages wait in the order of the log. A claim takes messages out; a return puts them back, a settlement removes them. A
claim gets the messages of its range that are waiting when its record is read, so of two claims for the same messages
the first gets them. Any prefix of the log may be deleted, since a claim follows its messages.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Container, Iterator, Set
from dataclasses import dataclass, field

import msgspec

from arborcast.core.recent import BoundedDict
from arborcast.topic_model.records.pull import (
    ERASED,
    Claimed,
    PullRecord,
    Returned,
    Settled,
    StoredMessage,
    claimer_of,
)
from arborcast.topic_model.records.xml_ids import NO_IDS, XmlIds, clash, xml_ids


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Limits of one pull point, and of all of them: bytes of messages in memory, and messages, waiting or claimed."""

    messages: int
    bytes: int
    resident_bytes: int
    total: int = 1_000_000


# Beyond the total the longest queues lose this part of their messages, up to this part of the total together: finding
# them takes a search of all queues.
_SHORTENED_BY, _FREED_BY = 10, 1_000

# Pull points with a known last claim.
_CLAIMS_KNOWN = 10_000


class PullPointStatus(msgspec.Struct, frozen=True):
    """The waiting messages of a pull point and their bytes, the acceptance of the oldest, the messages in transit to a
    client, and the last fetch of messages; times in ms, 0: unknown."""

    messages: int
    bytes: int
    oldest_ms: int
    in_transit: int
    fetched_ms: int


@dataclass(slots=True)
class WaitingMessage:
    """One message; `element` is None if it must be read from the log at `offset`. `notification` is empty for messages
    of a Notify to the pull point. `returned` counts its returns, `nodes` its elements and attributes."""

    offset: int
    size: int
    element: bytes | None
    ids: XmlIds = NO_IDS
    valid_until_ms: int = 0
    notification: str = ""
    returned: int = 0
    nodes: int = 0
    accepted_ms: int = 0

    def is_over(self, now_ms: int) -> bool:
        """Whether the validity set by the publisher has ended."""
        return 0 < self.valid_until_ms <= now_ms


ClaimKey = tuple[str, str]
"""Pull point, and name of a claim."""


@dataclass(slots=True)
class _Claimer:
    """The open claims of one gateway process."""

    until_ms: int
    claims: dict[ClaimKey, list[WaitingMessage]] = field(default_factory=dict)


@dataclass(slots=True)
class _Queue:
    waiting: deque[WaitingMessage] = field(default_factory=deque)
    claims: dict[str, list[WaitingMessage]] = field(default_factory=dict)
    size: int = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.claims

    def messages(self) -> Iterator[WaitingMessage]:
        yield from self.waiting
        for claim in self.claims.values():
            yield from claim

    def firsts(self) -> Iterator[int]:
        if self.waiting:
            yield self.waiting[0].offset
        for claim in self.claims.values():
            yield claim[0].offset


_NO_MESSAGES = _Queue()


class PullStore:
    """The queues of all pull points. `changed(pull_point_id)` is called when messages were added to one."""

    def __init__(self, limits: PullLimits, changed: Callable[[str], None] = lambda _: None) -> None:
        self._limits = limits
        self.changed = changed
        self._queues: dict[str, _Queue] = {}
        self._claimers: dict[str, _Claimer] = {}  # with open claims
        self._claimed_until: BoundedDict[str, int] = BoundedDict(_CLAIMS_KNOWN)  # the last claim of each pull point
        self.resident_bytes = 0
        self.messages = 0
        """The number of waiting and claimed messages."""
        self.dropped = 0
        """Messages dropped because their pull point was full."""
        self.dropped_from: str = ""
        """The pull point with the latest dropped message."""

    def apply(self, pull_point_id: str, record: PullRecord, offset: int) -> None:
        match record:
            case StoredMessage():
                self._put(pull_point_id, record, offset)
            case Claimed():
                self._claim(pull_point_id, record)
            case Settled(claim=claim):
                self._close(pull_point_id, claim)
            case Returned(claim=claim, settled=settled):
                self._close(pull_point_id, claim, settled)

    def head(
        self, pull_point_id: str, messages: int, size: int, now_ms: int = 0, nodes: int = sys.maxsize
    ) -> list[WaitingMessage]:
        """The oldest waiting messages, up to these numbers of messages, bytes and nodes, at least one, no two with the
        same xml:id; and the expired ones between them, which do not count."""
        chosen: list[WaitingMessage] = []
        ids, counted = NO_IDS, 0
        for message in self._queue(pull_point_id).waiting:
            if message.is_over(now_ms):
                chosen.append(message)
                continue
            size -= message.size
            nodes -= message.nodes
            if counted == messages or (counted and (size < 0 or nodes < 0)) or clash(message.ids, ids):
                break
            chosen.append(message)
            counted += 1
            ids |= message.ids
        return chosen

    def claimed(self, pull_point_id: str, claim: str) -> list[WaitingMessage]:
        """The messages of a claim, oldest first; none for a closed one."""
        return list(self._queue(pull_point_id).claims.get(claim, ()))

    def waiting(self, pull_point_id: str) -> int:
        return len(self._queue(pull_point_id).waiting)

    def status(self, pull_point_id: str, claim_ms: int) -> PullPointStatus:
        """The status of a pull point whose claims last for `claim_ms`. Its cost does not depend on the number of
        waiting messages."""
        queue = self._queue(pull_point_id)
        until_ms = self._claimed_until.get(pull_point_id)
        return PullPointStatus(
            messages=len(queue.waiting),
            bytes=queue.size,
            oldest_ms=queue.waiting[0].accepted_ms if queue.waiting else 0,
            in_transit=sum(map(len, queue.claims.values())),
            fetched_ms=0 if until_ms is None else until_ms - claim_ms,
        )

    @property
    def total(self) -> int:
        """The number of waiting messages."""
        return self.messages - sum(sum(map(len, each.claims.values())) for each in self._claimers.values())

    @property
    def claims(self) -> int:
        """The number of open claims."""
        return sum(len(each.claims) for each in self._claimers.values())

    def claims_of(self, pull_point_id: str) -> list[str]:
        return list(self._queue(pull_point_id).claims)

    def claimers(self) -> Iterator[tuple[str, int]]:
        """Each gateway process with open claims, and their time."""
        return ((name, each.until_ms) for name, each in self._claimers.items())

    def claims_by(self, claimer: str) -> Set[ClaimKey]:
        """The open claims of a gateway process."""
        found = self._claimers.get(claimer)
        return frozenset() if found is None else found.claims.keys()

    def open_claims(self) -> Iterator[tuple[str, str, int]]:
        """Pull point, claim and time of each open claim."""
        for claimer in self._claimers.values():
            for pull_point_id, name in claimer.claims:
                yield pull_point_id, name, claimer.until_ms

    def unsettled(self) -> set[int]:
        """The offsets of the waiting and claimed messages."""
        return {message.offset for queue in self._queues.values() for message in queue.messages()}

    def ids(self) -> list[str]:
        """The pull points with messages."""
        return list(self._queues)

    def forget(self, pull_point_id: str) -> None:
        """Drop all messages of a pull point."""
        self._claimed_until.pop(pull_point_id, None)
        queue = self._queues.pop(pull_point_id, None) or _Queue()
        for message in queue.messages():
            self._release(message)
        for claim in queue.claims:
            self._not_open(pull_point_id, claim)

    def first(self, pull_point_id: str) -> int | None:
        """The first required offset of the log for a pull point; None without messages."""
        return min(self._queue(pull_point_id).firsts(), default=None)

    def _queue(self, pull_point_id: str) -> _Queue:
        return self._queues.get(pull_point_id, _NO_MESSAGES)

    def _put(self, pull_point_id: str, record: StoredMessage, offset: int) -> None:
        queue = self._queues.setdefault(pull_point_id, _Queue())
        size = len(record.element)
        resident = self.resident_bytes + size <= self._limits.resident_bytes
        self.resident_bytes += size if resident else 0
        element = record.element if resident else None
        ids = xml_ids(record.element)
        nodes = record.element.count(b"<") + record.element.count(b"=")
        queue.waiting.append(
            WaitingMessage(
                offset, size, element, ids, record.valid_until_ms, record.notification, 0, nodes, record.accepted_ms
            )
        )
        queue.size += size
        self.messages += 1
        self._bound(pull_point_id, queue)
        if self.messages > self._limits.total:
            self._shorten()
        self.changed(pull_point_id)

    def _bound(self, pull_point_id: str, queue: _Queue) -> None:
        while len(queue.waiting) > self._limits.messages or (
            queue.size > self._limits.bytes and len(queue.waiting) > 1
        ):
            self._drop(pull_point_id, queue)

    def _shorten(self) -> None:
        to_free = -(-self._limits.total // _FREED_BY)
        longest = heapq.nlargest(to_free, self._queues.items(), key=lambda each: len(each[1].waiting))
        for pull_point_id, queue in longest:
            shortened = -(-len(queue.waiting) // _SHORTENED_BY)
            for _ in range(shortened):
                self._drop(pull_point_id, queue)
            to_free -= shortened
            if to_free <= 0:
                return

    def _drop(self, pull_point_id: str, queue: _Queue) -> None:
        message = queue.waiting.popleft()
        queue.size -= message.size
        self._release(message)
        self.dropped += 1
        self.dropped_from = pull_point_id

    def _claim(self, pull_point_id: str, record: Claimed) -> None:
        if record.last < record.first:  # a renewal
            if (found := self._claimers.get(record.claim)) is not None:
                found.until_ms = record.until_ms
            return
        if not record.claim.startswith(ERASED):
            self._claimed_until[pull_point_id] = record.until_ms
        queue = self._queue(pull_point_id)
        taken: list[WaitingMessage] = []
        older: list[WaitingMessage] = []  # returned since the claim was appended
        while queue.waiting and queue.waiting[0].offset <= record.last:
            message = queue.waiting.popleft()
            (taken if message.offset >= record.first else older).append(message)
        queue.waiting.extendleft(reversed(older))
        if taken:
            queue.size -= sum(message.size for message in taken)
            queue.claims[record.claim] = taken
            claimer = self._claimers.setdefault(claimer_of(record.claim), _Claimer(record.until_ms))
            claimer.until_ms = record.until_ms
            claimer.claims[pull_point_id, record.claim] = taken

    def _not_open(self, pull_point_id: str, claim: str) -> None:
        claimer = self._claimers[claimer_of(claim)]
        del claimer.claims[pull_point_id, claim]
        if not claimer.claims:
            del self._claimers[claimer_of(claim)]

    def _close(self, pull_point_id: str, claim: str, settled: Container[int] | None = None) -> None:
        """End a claim; the messages at the offsets in `settled`, without it all, are over, and the others wait
        again."""
        queue = self._queue(pull_point_id)
        found = queue.claims.pop(claim, None)
        if found is None:
            return
        self._not_open(pull_point_id, claim)
        back = []
        for message in found:
            if settled is None or message.offset in settled:
                self._release(message)
            else:
                message.returned += 1
                back.append(message)
        older: list[WaitingMessage] = []
        while back and queue.waiting and queue.waiting[0].offset < back[-1].offset:
            older.append(queue.waiting.popleft())
        queue.waiting.extendleft(sorted((*back, *older), key=lambda message: message.offset, reverse=True))
        queue.size += sum(message.size for message in back)
        self._bound(pull_point_id, queue)
        if queue.idle:
            del self._queues[pull_point_id]
        if settled is not None:
            self.changed(pull_point_id)

    def _release(self, message: WaitingMessage) -> None:
        self.messages -= 1
        if message.element is not None:
            self.resident_bytes -= message.size
            message.element = None
