"""Deduplication of requests that a publisher repeats under the same wsa:MessageID, because it did not receive our
answer.

Two requests are equal when sender, message id, topics, payloads, producers, and delivery options are. The id alone is
not enough: some clients use one id for all messages, and theirs must not be dropped.

An acknowledged request is remembered as a fingerprint of 16 bytes with its second, in a table of fixed size: no growth,
no garbage, and in memory that several workers of a gateway can share. A full bucket drops its oldest entry, so beyond a
quarter of a million requests within the window the window gets shorter.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from mmap import mmap

import msgspec

from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import SingleFlight, shared
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.topic_model.records.notifications import Notification, notification_in

_FINGERPRINT = 16

_STAMP = 4

_ENTRY = _FINGERPRINT + _STAMP

_BUCKET = 8 * _ENTRY

_BUCKETS = 1 << 15

TABLE_BYTES = _BUCKETS * _BUCKET
"""Size of the memory behind a RepeatMemory."""

# The monotonic clock begins with the machine's start, and requests acknowledged before that must have a time as well.
_EARLIER_S = 1 << 30


def steady_now() -> float:
    """Seconds of a monotonic clock, the same in all processes of this machine: with the wall clock, a clock put back
    would turn new requests into repetitions."""
    return _EARLIER_S + time.monotonic()


def fingerprint(notifications: Sequence[Notification], owner: str = "", attributes: Sequence[object] = ()) -> bytes:
    """The fingerprint of a request: its message id, its sender (`owner`, empty without authentication), and its whole
    contents: of each notification also the delivery options.

    Otherwise a publisher could send another publisher's message first, to expire at once, and the other's request would
    count as a repetition.
    """
    digest = hashlib.blake2b(notifications[0].message_id.encode(), digest_size=_FINGERPRINT)
    # With the lengths of all, see below.
    digest.update(msgspec.msgpack.encode((owner, attributes, [each.reply_to for each in notifications])))
    for each in notifications:
        topic = each.topic.encode()
        # With the lengths: otherwise the end of one part could be the beginning of the next.
        digest.update(b"%d,%d,%d;" % (len(topic), len(each.payload), len(each.producer)))
        digest.update(topic)
        digest.update(each.payload)
        digest.update(each.producer)
    return digest.digest()


class RepeatMemory:
    """Fingerprints of the last `window_s` seconds, in `memory` of TABLE_BYTES zeros (of its own without).

    Processes may share the memory without locks: a partly overwritten entry matches nothing, so at worst a repetition
    is not detected.
    """

    def __init__(self, window_s: float, memory: memoryview | None = None) -> None:
        self.window_s = window_s
        self._memory = memoryview(mmap(-1, TABLE_BYTES)) if memory is None else memory

    @property
    def enabled(self) -> bool:
        """Whether fingerprints are kept."""
        return self.window_s > 0

    def add(self, known: bytes, at_s: float) -> None:
        """Remember a fingerprint that was acknowledged at this time (see `steady_now`)."""
        start = self._start(known)
        entry = known + int(at_s).to_bytes(_STAMP)
        self._memory[start : start + _BUCKET] = entry + self._memory[start : start + _BUCKET - _ENTRY]

    def has(self, known: bytes, now_s: float) -> bool:
        """Whether this fingerprint was acknowledged within the window."""
        start = self._start(known)
        bucket = bytes(self._memory[start : start + _BUCKET])
        found = bucket.find(known)
        while found % _ENTRY > 0:  # not at the beginning of an entry; -1 % _ENTRY is not 0 either
            if found < 0:
                return False
            found = bucket.find(known, found + 1)
        stamp = int.from_bytes(bucket[found + _FINGERPRINT : found + _ENTRY])
        return now_s - stamp <= self.window_s

    def _start(self, known: bytes) -> int:
        return int.from_bytes(known[:4]) % _BUCKETS * _BUCKET


class Repeats:
    """On the event loop: of equal requests, one is stored. Not `enabled` without a memory, or with a window of 0."""

    def __init__(self, memory: RepeatMemory | None = None, clock: Callable[[], float] = steady_now) -> None:
        self._memory = memory or RepeatMemory(0)
        self._clock = clock
        self._under_way: SingleFlight[bytes, None] = SingleFlight()
        self.count = 0
        """Requests that were recognised as repetitions."""

    @property
    def enabled(self) -> bool:
        """Whether repetitions are detected."""
        return self._memory.enabled

    async def once(self, known: bytes, store: Callable[[], Awaitable[None]]) -> bool:
        """Return when the request with this fingerprint is stored; `store` is called unless that is the case already.
        Returns whether it was called.

        A request that arrives while an equal one is being stored waits for it and shares its result, an error too. Only
        acknowledged requests are remembered.
        """
        if self._memory.has(known, self._clock()):
            self.count += 1
            return False
        first = self._under_way.get(known)
        if first is not None:
            self.count += 1
            await shared(first)
            return False
        # Within this task: with one of its own, a request could be stored after a later one without a fingerprint.
        with self._under_way.lead((known,)):
            await store()
            self._memory.add(known, self._clock())
        return True


logger = logging.getLogger(__name__)

# Of each partition, however much the window holds: a start must not take long, and the table holds no more anyway.
_MOST_RECORDS = 50_000


def remember_history(kafka: KafkaSettings, memory: RepeatMemory) -> int:
    """Add the requests in the log that are within the window of `memory`; returns their number. Only complete requests
    are added: one cut off by a crash was not acknowledged. Raises InfrastructureError."""
    found: dict[bytes, int] = {}
    complete = 0
    for each, then_s in accepted_lately(kafka, memory.window_s):
        if not each.request:
            continue
        found[each.request] = found.get(each.request, 0) + 1
        if found[each.request] == each.request_size:
            complete += 1
            if not memory.has(each.request, steady_now()):
                memory.add(each.request, then_s)
    if complete:
        logger.info("%d requests of the last %g s are remembered", complete, memory.window_s)
    return complete


def accepted_lately(kafka: KafkaSettings, window_s: float) -> Iterator[tuple[Notification, float]]:
    """The notifications in the log that this engine accepted within the last `window_s` seconds, with their times on
    the steady clock. Raises InfrastructureError."""
    since_ms = int((time.time() - window_s) * 1000)
    with LogScan(kafka, "notifications") as log:
        begins, ends = log.beginnings(), log.ends()
        # Records that are deleted from the log, or beyond the table's size, are left out.
        firsts = {
            number: max(at, begins[number], ends[number] - _MOST_RECORDS)
            for number, at in log.at(since_ms - CLOCKS_APART_MS).items()
        }
        for record in log.read_from(firsts, ends):
            each = notification_in(record)
            if each is not None and not each.only and each.accepted_ms >= since_ms:
                yield each, steady_now() - max(time.time() - each.accepted_ms / 1000, 0.0)
