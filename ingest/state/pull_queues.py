"""Messages of pull points: each is handed to one client at a time, and at least once.

A request claims messages in the log, sends them, and settles the claim when the answer is sent, or the client has
acknowledged them; until then the gateway renews the claim. A gateway that dies in between leaves an unsettled claim;
after some time any gateway returns it, and the messages wait again, in their order. Nothing is lost, and after a crash
a client gets only the messages in transit twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from arborcast.core.backoff import Backoff, retried
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Admin
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.ingest.state.changes import KeyedLocks
from arborcast.ingest.state.log_view import WAIT_MS, Commits, LoggedState, LogView
from arborcast.topic_model.projections.pull_store import (
    ClaimKey,
    PullLimits,
    PullPointStatus,
    PullStore,
    WaitingMessage,
)
from arborcast.topic_model.records.pull import (
    Claimed,
    PullRecord,
    Returned,
    Settled,
    StoredMessage,
    decode,
    encode,
    renewal,
)
from arborcast.topic_model.records.xml_ids import any_clash

KeyedRecord = tuple[str, PullRecord]
"""A record and its pull point."""

# Settled messages that stay in the log for traces; a start reads this amount in a second.
_KEPT_S = 3600.0
_KEPT_BYTES = 16 * 1024 * 1024

# A start reads the log again, which may have weeks. Drops by messages that were accepted earlier than this before the
# start were counted by an earlier run.
_COUNTED_MS = 3_600_000


class PullView(LogView[KeyedRecord]):
    """The waiting messages of pull points. `changed(pull_point_id)` is called when a message has been added to one."""

    def __init__(
        self,
        kafka: KafkaSettings,
        limits: PullLimits,
        on_failure: Callable[[Exception], None],
        changed: Callable[[str], None],
    ) -> None:
        self.store = PullStore(limits, changed)
        self.read_bytes = 0
        """Bytes of all messages that were read."""
        self._counted_from_ms = time_ms() - _COUNTED_MS
        super().__init__(
            partial(LogFollower, kafka, PULL_LOG, decode, wait_ms=WAIT_MS, forgetful=True, skips_damaged=True),
            self._store,
            on_failure,
        )

    def _store(self, record: KeyedRecord, offset: int) -> None:
        dropped = self.store.dropped
        self.store.apply(*record, offset)
        if isinstance(record[1], StoredMessage):
            self.read_bytes += len(record[1].element)
            if self._replaying and record[1].accepted_ms < self._counted_from_ms:
                self.store.dropped = dropped


class SettledRecords:
    """The retention of settled records, for `arborcast trace`: `kept_s` seconds, or until `kept_bytes` of messages
    follow them, because each start reads them."""

    def __init__(self, kept_s: float, kept_bytes: int) -> None:
        self._kept_s = kept_s
        self._kept_bytes = kept_bytes
        self._marks: deque[tuple[float, int, int]] = deque()

    def end(self, now_s: float, read_bytes: int, settled: int) -> int:
        """The offset up to which records may be deleted now, if all before `settled` are settled."""
        self._marks.append((now_s, read_bytes, settled))
        end = 0
        while self._marks:
            at, size, before = self._marks[0]
            if now_s - at < self._kept_s and read_bytes - size < self._kept_bytes:
                break
            end = before
            self._marks.popleft()
        return end


class PullLog(LoggedState[KeyedRecord]):
    """Appends to the log and reads records from it. Used on the event loop's thread."""

    def __init__(self, kafka: KafkaSettings, view: PullView, kept_s: float = _KEPT_S) -> None:
        super().__init__(kafka, LogWriter(kafka, PULL_LOG), lambda keyed: encode(*keyed), view)
        self._kafka = kafka
        self._pulls = view
        self._settled = SettledRecords(kept_s, _KEPT_BYTES)
        self._cut = 0

    @property
    def failures(self) -> int:
        return self._pulls.failures

    async def elements(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The messages at these offsets, as far as the log still has them. Raises InfrastructureError."""
        found = {}
        for offset, value in (await self.values(offsets)).items():
            _, record = decode(b"", value)
            if isinstance(record, StoredMessage):
                found[offset] = record.element
        return found

    async def cut(self) -> None:
        """Delete old settled records in Kafka, so that a start has little to read. Never raises."""
        store, settled = self._pulls.store, self._pulls.applied  # messages of later records are behind it
        for number, each in enumerate(store.ids(), start=1):
            settled = min(settled, first) if (first := store.first(each)) is not None else settled
            if number % _WALK == 0:
                await asyncio.sleep(0)
        before = self._settled.end(time.monotonic(), self._pulls.read_bytes, settled)
        if before > self._cut:
            try:
                await asyncio.to_thread(self._delete_before, before)
            except InfrastructureError as error:
                logger.warning("%s", error)
            else:
                self._cut = before

    def _delete_before(self, offset: int) -> None:
        with closing(Admin(self._kafka)) as admin:
            admin.delete_before(self._kafka.topic(PULL_LOG), 0, offset)


logger = logging.getLogger(__name__)

# Interval of checks for abandoned claims and for messages of ended pull points.
_SWEEP_S = 1.0

# After a longer interval this process did not run.
_LATE_S = 3.0

# Pull points that a sweep checks, and that are looked through before the event loop serves others.
_CHECKED, _WALK = 5_000, 1_000

# Sweeps between deletions of the log's beginning.
_CUT_EVERY = 60

# A claim is renewed after this part of claim_s.
_RENEW_AFTER = 1 / 3

# Between attempts to end a claim.
_BACKOFF = Backoff(0.5, 5.0)

# Time limit of a stop for the settlement of claims.
_CLOSE_S = 1.0


class CommitsPullRecords(Commits[KeyedRecord], Protocol):
    """The part of PullLog that is used here."""

    @property
    def failures(self) -> int:
        """How often the log could not be read."""

    async def elements(self, offsets: Iterable[int]) -> dict[int, bytes]: ...

    async def cut(self) -> None: ...


class ClaimedMessage(NamedTuple):
    """One message: its offset in the log, its notification (empty for a message that a client put in), the number of
    this attempt, from 1, and the time of acceptance."""

    element: bytes
    offset: int
    notification: str
    attempt: int
    accepted_ms: int = 0


@dataclass(frozen=True)
class MessageClaim:
    """Messages in transit to a client, oldest first; with messages, `end` or `finish` must be called."""

    messages: tuple[ClaimedMessage, ...] = ()
    end: Callable[[Collection[int] | None], None] = lambda _: None
    """Called with None once the client has all messages; otherwise with the offsets of those that it has received: the
    others wait again."""

    def finish(self, left: bool) -> None:
        """The answer with all messages is sent or, if not `left`, they wait again."""
        self.end(None if left else ())

    def text(self) -> str:
        """All of them, for the inside of an answer."""
        return b"".join([each.element for each in self.messages]).decode()


class _ClaimDeadlines:
    """The expiry of the claims of a gateway process: `claim_s` seconds after the first check that finds their time, or
    the last time at which the log could not be read, by a monotonic clock. By the time in the record, a wrong clock
    here or in the claiming gateway would hide messages for an hour, or hand them out twice. That time only shortens the
    wait at the first check, for claims from before the process started.
    """

    def __init__(self, claim_s: float, now: Callable[[], float], steady: Callable[[], float]) -> None:
        self._claim_s = claim_s
        self._now = now
        self._steady = steady
        self._due: dict[tuple[str, int], float] | None = None
        self._failures = 0
        self._called_at = math.inf

    def passed(self, claimers: Iterable[tuple[str, int]]) -> list[str]:
        """The claimers whose time has run out."""
        now, now_ms, before = self._steady(), self._now() * 1000, self._due
        self._due = {}
        for each in claimers:
            left_s = min(max((each[1] - now_ms) / 1000, 0.0), self._claim_s) if before is None else self._claim_s
            self._due[each] = (before or {}).get(each, now + left_s)
        return [name for (name, _), at in self._due.items() if at <= now]

    def restart_after(self, failures: int) -> None:
        """After a further failure to read the log the time of all claims restarts: other gateways could not renew
        theirs."""
        if failures != self._failures:
            self._failures, self._due = failures, {}

    def restart_if_late(self) -> None:
        """Called before each sweep. After a time in which this process did not run, the time of all claims restarts:
        renewals by other gateways are in the log, and not read yet."""
        before, self._called_at = self._called_at, self._steady()
        if self._called_at - before > max(self._claim_s * _RENEW_AFTER, _LATE_S):
            self._due = {}


class _OwnClaims:
    """The claims of this gateway process. One record renews all of them: a client may answer thousands of messages
    late, each with a claim."""

    def __init__(self, claim_s: float, now: Callable[[], float], steady: Callable[[], float]) -> None:
        self.claimer = secrets.token_hex(4)
        self.claim_ms = round(claim_s * 1000)
        self._claim_s = claim_s
        self._now = now
        self._steady = steady
        self._claims: set[ClaimKey] = set()
        self._strays: dict[ClaimKey, float] = {}  # open without a client, with the time of their return
        self._renew_at = 0.0

    def name(self) -> str:
        """The name of a new claim."""
        return f"{self.claimer}-{secrets.token_hex(8)}"

    def until_ms(self) -> int:
        """The time of a record that is written now."""
        return round(self._now() * 1000) + self.claim_ms

    def add(self, pull_point_id: str, claim: str) -> None:
        self._claims.add((pull_point_id, claim))

    def remove(self, pull_point_id: str, claim: str) -> None:
        """A claim has ended."""
        self._claims.discard((pull_point_id, claim))

    @property
    def due(self) -> bool:
        """Whether they are to be renewed now."""
        return self._steady() >= self._renew_at

    def renewed(self, open_claims: Set[ClaimKey]) -> list[ClaimKey]:
        """They were renewed: forgets those that are not open any more, and returns the abandoned ones, such as that of
        a request whose client left before the answer."""
        now = self._steady()
        self._renew_at = now + self._claim_s * _RENEW_AFTER
        self._claims &= open_claims
        self._strays = {each: self._strays.get(each, now + self._claim_s) for each in open_claims - self._claims}
        return [each for each, at in self._strays.items() if at <= now]


class PullQueues:
    """The messages of pull points, for operations. On the event loop's thread only.

    `is_there` is the test for the existence of a pull point. `claim_s` is the age of an abandoned claim. `max_bytes`
    and `max_nodes` bound the messages of one answer.
    """

    def __init__(
        self,
        store: PullStore,
        log: CommitsPullRecords,
        is_there: Callable[[str], bool],
        *,
        claim_s: float,
        max_bytes: int,
        max_nodes: int,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._log = log
        self._is_there = is_there
        self._max_bytes = max_bytes
        self._max_nodes = max_nodes
        self._now = now
        self._deadlines = _ClaimDeadlines(claim_s, now, steady)
        self._own = _OwnClaims(claim_s, now, steady)
        self._locks = KeyedLocks()
        self._arrivals: dict[str, dict[asyncio.Future[None], None]] = {}  # in their order
        self._finishing: set[asyncio.Task[None]] = set()
        self._unchecked: list[str] = []  # pull points with messages, for the next sweeps
        self._reported = 0
        self.delivered = 0
        """How many messages were handed out and settled here."""
        self.expired = 0
        """How many were not, because their validity had ended."""

    @property
    def waiting_clients(self) -> int:
        """The number of requests that wait for messages."""
        return sum(len(futures) for futures in self._arrivals.values())

    def status(self, pull_point_id: str) -> PullPointStatus | None:
        """The messages of a pull point; None if it does not exist."""
        if not self._is_there(pull_point_id):
            return None
        return self._store.status(pull_point_id, self._own.claim_ms)

    async def put(self, pull_point_id: str, messages: Sequence[StoredMessage]) -> None:
        """Store messages, in their order. Raises InfrastructureError."""
        await self._log.commit([(pull_point_id, message) for message in messages])

    async def take(
        self,
        pull_point_id: str,
        maximum: int,
        wait_s: float,
        disconnected: Callable[[], Awaitable[None]] | None = None,
        *,
        size: int = sys.maxsize,
    ) -> MessageClaim:
        """The oldest messages, at most `maximum`, and at most `size` bytes of several; waits up to `wait_s` seconds for
        the first.

        Nothing if none arrived, if the pull point has ended, or if `disconnected`, which waits for the end of the
        client's connection, returned first. Raises InfrastructureError.
        """
        deadline = time.monotonic() + wait_s
        watch = asyncio.ensure_future(disconnected()) if disconnected is not None else None
        claimed = MessageClaim()
        try:
            while self._is_there(pull_point_id) and not (watch is not None and watch.done()):
                if self._store.waiting(pull_point_id):
                    claimed = await self._claim(pull_point_id, maximum, size, watch)
                    if claimed.messages:
                        return claimed
                    continue  # another gateway claimed them, or they cannot be in one answer
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                await self._arrival(pull_point_id, remaining, watch)
            return claimed
        finally:
            if watch is not None and not claimed.messages:
                watch.cancel()

    def next_bytes(self, pull_point_id: str, maximum: int, size: int) -> int:
        """The bytes of the messages that `take` would hand out; 0 if none waits."""
        return sum(message.size for message in self._head(pull_point_id, maximum, size))

    async def until_waiting(self, pull_point_id: str, wait_s: float, watch: asyncio.Future[None] | None = None) -> None:
        """Return when a message waits in a pull point, after `wait_s` seconds, when the pull point has ended, or when
        `watch` is done."""
        if self._is_there(pull_point_id) and not self._store.waiting(pull_point_id):
            await self._arrival(pull_point_id, wait_s, watch)

    async def resume(self, pull_point_id: str, last: int) -> None:
        """Settle the messages at offsets up to `last`; claimed ones behind it wait again, in their places. Raises
        InfrastructureError."""
        claim = secrets.token_hex(8)
        taken = Claimed(claim, 0, last, self._own.until_ms())
        async with self._locks.hold(pull_point_id):
            # With this record the view has the earlier ones of other gateways, too.
            await self._log.commit([(pull_point_id, taken), (pull_point_id, Settled(claim))])
            records: list[KeyedRecord] = []
            for name in self._store.claims_of(pull_point_id):
                had = [each.offset for each in self._store.claimed(pull_point_id, name) if each.offset <= last]
                records.append((pull_point_id, Returned(name, tuple(had))))
            if records:
                await self._log.commit(records)

    def arrived(self, pull_point_id: str) -> None:
        """Wake waiters for messages of this pull point, or for its end."""
        for future in self._arrivals.get(pull_point_id, ()):
            if not future.done():
                future.set_result(None)

    def forget(self, pull_point_id: str) -> None:
        """The pull point was destroyed: end all that wait for its messages."""
        self._store.forget(pull_point_id)
        self.arrived(pull_point_id)

    async def sweep_forever(self, catch_up: Callable[[], Awaitable[None]], also: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled; `also` is done with each sweep. For `catch_up` see `sweep`."""
        sweeps = 0
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._deadlines.restart_if_late()
            sweeps += 1
            await self.sweep(catch_up)
            await also()
            if sweeps % _CUT_EVERY == 0:
                await self._log.cut()

    async def sweep(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        """Renew the claims of this gateway, return those of gateways that died, forget removed pull points, log dropped
        messages. `catch_up` reads the control log to its end."""
        abandoned = await self._renew_claims()
        self._deadlines.restart_after(self._log.failures)
        for claimer in self._deadlines.passed(self._store.claimers()):
            if claimer != self._own.claimer:  # this one may only be unable to renew its own
                abandoned += self._store.claims_by(claimer)
        for pull_point_id, _ in abandoned:
            logger.warning("messages of pull point %s were claimed and not handed out: they wait again", pull_point_id)
        if abandoned:
            await self._return(abandoned)
        for pull_point_id in [each for each in self._arrivals if not self._is_there(each)]:
            self.arrived(pull_point_id)
        await self._forget_removed(catch_up)
        if self._store.dropped > self._reported:
            logger.warning(
                "%d messages were dropped from full pull points, lately from %s: they are not fetched",
                self._store.dropped - self._reported,
                self._store.dropped_from,
            )
            self._reported = self._store.dropped

    async def _renew_claims(self) -> list[ClaimKey]:
        """Returns the abandoned ones."""
        claims = self._store.claims_by(self._own.claimer)
        if not claims or not self._own.due:
            return []
        pull_point_id, _ = next(iter(claims))  # any: the record is for all
        try:
            await self._log.commit([(pull_point_id, renewal(self._own.claimer, self._own.until_ms()))])
        except InfrastructureError as error:
            logger.warning("%d claims on messages of pull points are not renewed: %s", len(claims), error)
            return []
        return self._own.renewed(self._store.claims_by(self._own.claimer))

    async def _forget_removed(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._unchecked = self._unchecked or self._store.ids()
        checked, self._unchecked = self._unchecked[:_CHECKED], self._unchecked[_CHECKED:]
        unknown = [each for each in checked if not self._is_there(each)]
        if not unknown:
            return
        # The record of a pull point is written before its messages, but may be read after them.
        try:
            await catch_up()
        except InfrastructureError as error:
            logger.warning("messages of unknown pull points are kept: %s", error)
            return
        for pull_point_id in unknown:
            if not self._is_there(pull_point_id):
                self.forget(pull_point_id)

    async def close(self) -> None:
        """Wait, up to the limit, for claims in settlement."""
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=_CLOSE_S)

    def _head(self, pull_point_id: str, maximum: int, size: int) -> list[WaitingMessage]:
        now_ms = int(self._now() * 1000)
        return self._store.head(pull_point_id, maximum, min(size, self._max_bytes), now_ms, self._max_nodes)

    async def _claim(
        self, pull_point_id: str, maximum: int, size: int, watch: asyncio.Future[None] | None
    ) -> MessageClaim:
        # Without the lock two requests would claim the same messages, and one of them in vain.
        async with self._locks.hold(pull_point_id):
            head = self._head(pull_point_id, maximum, size)
            if not head:
                return MessageClaim()
            claim = self._own.name()
            taken = Claimed(claim, head[0].offset, head[-1].offset, self._own.until_ms())
            await self._log.commit([(pull_point_id, taken)])
        claimed = self._store.claimed(pull_point_id, claim)
        if not claimed:
            return MessageClaim()
        now_ms = int(self._now() * 1000)
        valid = [message for message in claimed if not message.is_over(now_ms)]
        over = len(claimed) - len(valid)
        if not valid:
            self._finish(pull_point_id, Settled(claim), 0)
            self.expired += over
            return MessageClaim()
        if any_clash(message.ids for message in valid):
            # Between the check and the claim another claim was returned, whose messages cannot be in one answer with
            # the others.
            await self._return([(pull_point_id, claim)])
            return MessageClaim()

        def end(received: Collection[int] | None) -> None:
            if watch is not None:
                received = () if watch.done() else received
                watch.cancel()
            if received is None:
                self._finish(pull_point_id, Settled(claim), number)
                self.expired += over
            else:
                self._finish(pull_point_id, Returned(claim, tuple(sorted(received))), len(received))

        self._own.add(pull_point_id, claim)
        number = 0  # `found` would keep the messages in memory until the client has answered
        try:
            found = await self._read(valid)
            number = len(found)
        except BaseException:
            end(())
            raise
        if not found:
            self._finish(pull_point_id, Settled(claim), 0)  # the log has none of them any more
        return MessageClaim(found, end)

    async def _read(self, messages: Sequence[WaitingMessage]) -> tuple[ClaimedMessage, ...]:
        missing = [message.offset for message in messages if message.element is None]
        read = await self._log.elements(missing) if missing else {}
        return tuple(
            ClaimedMessage(element, message.offset, message.notification, message.returned + 1, message.accepted_ms)
            for message in messages
            if (element := message.element or read.get(message.offset))
        )

    def _finish(self, pull_point_id: str, record: Settled | Returned, delivered: int) -> None:
        self.delivered += delivered
        task = asyncio.ensure_future(self._end_claim(pull_point_id, record))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _end_claim(self, pull_point_id: str, record: Settled | Returned) -> None:
        # Renewed until then: messages that the client has received would be handed out again.
        commit = partial(self._log.commit, [(pull_point_id, record)])
        await retried(f"a claim on pull point {pull_point_id} stays open", commit, _BACKOFF, InfrastructureError)
        self._own.remove(pull_point_id, record.claim)

    async def _return(self, claims: Sequence[ClaimKey]) -> None:
        # Together: one by one, those of a gateway with many clients would delay the renewal of this one's for minutes.
        try:
            await self._log.commit([(pull_point_id, Returned(claim)) for pull_point_id, claim in claims])
        except InfrastructureError as error:
            names = ", ".join(sorted({pull_point_id for pull_point_id, _ in claims}))
            logger.warning("claims on pull points stay open (%.200s): %s", names, error)

    async def _arrival(self, pull_point_id: str, timeout: float, watch: asyncio.Future[None] | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._arrivals.setdefault(pull_point_id, {})
        waiting[future] = None
        try:
            others = {future} if watch is None else {future, watch}
            await asyncio.wait(others, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del waiting[future]
            if not waiting:
                self._arrivals.pop(pull_point_id, None)
