"""The subscriptions of one connection.

Each is a pull point, emptied as long as the client has room. A durable one is found by its name and stores messages
while no client is connected; connections with the same name share its messages. Any other ends with its connection; if
the gateway died, by its termination time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from arborcast.core.errors import InfrastructureError, PeerError, UnknownResource
from arborcast.ingest.access.grants import owner_of
from arborcast.ingest.elements.filters import SubscriptionPolicy
from arborcast.ingest.framed.messages import filters_of, message_of, policy_of
from arborcast.ingest.framed.publishing import FrameLink
from arborcast.ingest.http.inflight import SMALL, Reservation
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.ingest.operations.subscription_manager import managed_subscription, replace
from arborcast.ingest.state.pull_queues import MessageClaim
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.records.control import ending
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import frames, limits, times
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.frames import LOOSE, FrameKind, SubscribeBody

logger = logging.getLogger(__name__)

# Maximum number of messages in a claim.
_AT_ONCE = 100

# Maximum number of unanswered messages of a connection; beyond it no further ones are claimed.
_MOST_UNANSWERED = 20_000

# Maximum number of subscriptions of a connection that claim messages in parallel. Claimed messages are in memory.
_MOST_CLAIMING = 8

# Bytes of unanswered messages of a subscription; with that many no further ones are claimed. A client has them in
# memory, and its window is a number of messages.
_WINDOW_BYTES = 64 * 1024 * 1024

_NUMBERS = 2**32

# Time limit of a wait for messages, and for a client that can take them; then the subscription is checked again.
_WAIT_S = 60.0

# Delay before a refused message is sent again, and before another attempt where there is no memory.
_AGAIN_S = 1.0

# A subscription that ends with its connection expires after this time if the end of the connection is not noticed.
_LASTS = timedelta(hours=1)
_RENEW_S = _LASTS.total_seconds() / 2


async def subscribe(gateway: Gateway, body: SubscribeBody, caller: Caller | None, client: str) -> Subscription:
    """The requested subscription, new or with this name. One of this name with other topics or another policy is
    changed.

    Raises PeerError or InfrastructureError.
    """
    if not 1 <= body.window <= limits.WINDOW:
        raise InvalidRequest(f"window is from 1 to {limits.WINDOW}, not {body.window}")
    if len(body.name) > limits.NAME:
        raise InvalidRequest(f"a name may have {limits.NAME} characters, this one has {len(body.name)}")
    terminates = None if body.name else times.to_ms(gateway.now() + _LASTS)
    created = await create_subscription(
        gateway,
        SubscriptionRequest(
            filters_of(body),
            caller,
            client,
            policy=SubscriptionPolicy(current_message=body.current, delivery=policy_of(body)),
            terminates_ms=terminates,
            id=_durable_id(owner_of(caller), body.name) if body.name else "",
        ),
    )
    return created.subscription


async def unsubscribe(gateway: Gateway, identifier: str, caller: Caller | None) -> None:
    """End a subscription and delete its waiting messages. Raises UnknownResource or InfrastructureError."""
    async with gateway.locks.hold(identifier):
        managed_subscription(gateway, identifier, caller)
        await gateway.changes.commit(ending(identifier, "unsubscribed", times.to_ms(gateway.now())))
    gateway.pulls.forget(identifier)


def _durable_id(owner: str, name: str) -> str:
    digest = hashlib.blake2b(f"{owner}\n{name}".encode(), digest_size=18).digest()
    return f"d{base64.urlsafe_b64encode(digest).decode()}"


@dataclass
class Counts:
    """Frames and messages of all connections."""

    received: Counter[str] = field(default_factory=Counter)
    """Frames by type."""
    refused: Counter[str] = field(default_factory=lambda: Counter(Defect=0, InfrastructureError=0))
    """ERROR frames by class of the error; those with an alert from the start, as `Counter.begin` of the metrics."""
    sent: int = 0
    """Messages to subscribers."""
    unreadable: int = 0
    """Unreadable messages of pull points, which were given up."""


class Outgoing:
    """The messages to one client, of all its subscriptions: sent, and waiting for their answers by number."""

    def __init__(self, link: FrameLink, counts: Counts) -> None:
        self.link = link
        self.counts = counts
        self.claiming = asyncio.Semaphore(_MOST_CLAIMING)
        """Held from the claim of messages until the connection has taken them."""
        self._unanswered: dict[int, Sender] = {}
        self._numbers = itertools.count(1)
        self._few = asyncio.Event()

    def number(self, sender: Sender) -> int:
        """The number of the next message, whose answer is passed to this sender."""
        number = next(self._numbers) % _NUMBERS
        self._unanswered[number] = sender
        self.counts.sent += 1
        return number

    def answered(self, number: int, *, taken: bool) -> None:
        """The client has this message, or refuses it."""
        sender = self._unanswered.pop(number, None)
        self._few.set()
        if sender is not None:
            sender.answered(number, taken=taken)

    def forget(self, sender: Sender) -> None:
        """Wait for no answers to the messages of a subscription that has ended."""
        for number in sender.given:
            self._unanswered.pop(number, None)
        self._few.set()

    async def until_writable(self) -> None:
        """Return when the client reads its messages, and answers them."""
        while len(self._unanswered) >= _MOST_UNANSWERED:
            self._few.clear()
            await self._few.wait()
        await self.link.until_writable()


@dataclass(eq=False)
class _Claim:
    """Messages on their way. `open` has the numbers without an answer, with their offsets and sizes."""

    end: Callable[[Collection[int] | None], None]
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    refused: bool = False


class Sender:
    """One subscription on one connection: sends its messages, and takes the answers to them."""

    def __init__(self, gateway: Gateway, outgoing: Outgoing, subscription: str, window: int) -> None:
        self.subscription = subscription
        self.given: dict[int, _Claim] = {}
        self._gateway = gateway
        self.outgoing = outgoing
        self._window = window
        self._bytes = 0  # of unanswered messages
        self._memory = Reservation(gateway.inflight)
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        """Send waiting messages until the subscription has ended."""
        while self._gateway.pull_points.exists(self.subscription):
            try:
                await self._renew()
                async with asyncio.timeout(_WAIT_S) as waits:
                    await self._room.wait()
                    await self._gateway.pulls.until_waiting(self.subscription, _WAIT_S)
                    async with self.outgoing.claiming:
                        await self.outgoing.until_writable()
                        waits.reschedule(None)
                        room = min(self._window - len(self.given), _AT_ONCE)
                        with self._memory_for(room) as size:
                            await self._take(room, size)
                            await self.outgoing.link.until_writable()
            except (TimeoutError, UnknownResource):  # another gateway may end it while it is renewed
                continue
            except InfrastructureError as error:
                logger.debug("messages of %s wait: %s", self.subscription, error)
                await asyncio.sleep(error.retry_after or 1.0)

    def answered(self, number: int, *, taken: bool) -> None:
        """The client has accepted this message, or has refused it: then it is sent again once all messages of its claim
        are answered."""
        claim = self.given.pop(number, None)
        if claim is None:
            return  # the subscription has ended on this connection
        offset, size = claim.open.pop(number)
        self._bytes -= size
        if taken:
            claim.taken.append(offset)
        claim.refused |= not taken
        if self._has_room:
            self._room.set()
        if not claim.open:
            if claim.refused:
                asyncio.get_running_loop().call_later(_AGAIN_S, claim.end, claim.taken)
            else:
                claim.end(None)

    def close(self) -> None:
        """No more answers: unacknowledged messages wait again."""
        for claim in set(self.given.values()):
            claim.end(claim.taken)
        self.given.clear()

    @property
    def _has_room(self) -> bool:
        return len(self.given) < self._window and self._bytes < _WINDOW_BYTES

    @contextlib.contextmanager
    def _memory_for(self, room: int) -> Iterator[int]:
        """A context with the memory for the next messages, and their bytes. Raises InfrastructureError."""
        inflight = self._gateway.inflight
        size = self._gateway.pulls.next_bytes(self.subscription, room, sys.maxsize)
        if size > SMALL and not inflight.take_answer(self._memory, size):
            size = self._gateway.pulls.next_bytes(self.subscription, room, SMALL)  # many small ones: some of them
            if size > SMALL:
                raise InfrastructureError("other messages use the memory for requests", _AGAIN_S)
        try:
            yield size
        finally:
            inflight.shrink_answer(self._memory, size)

    async def _take(self, room: int, size: int) -> None:
        # Not in `run`, whose variable would keep these messages in memory until the next ones.
        claimed = await self._gateway.pulls.take(self.subscription, room, 0, size=size)
        if claimed.messages:
            self._send(claimed)

    def _send(self, claimed: MessageClaim) -> None:
        claim = _Claim(claimed.end)
        out = bytearray()
        try:
            for each in claimed.messages:
                try:
                    message, loose = message_of(each, self.subscription)
                except PeerError as error:
                    claim.taken.append(each.offset)
                    self.outgoing.counts.unreadable += 1
                    where = each.offset, self.subscription, error
                    logger.warning("the message at offset %d of the pull point %s cannot be read: %s", *where)
                    continue
                number = self.outgoing.number(self)
                claim.open[number] = each.offset, len(message.payload)
                self.given[number] = claim
                self._bytes += len(message.payload)
                out += frames.encode(FrameKind.MESSAGE, number, message, LOOSE if loose else 0)
        except BaseException:
            for number, (_, message_bytes) in claim.open.items():
                del self.given[number]
                self._bytes -= message_bytes
            claim.end(())
            raise
        if not claim.open:
            claim.end(None)
            return
        if not self._has_room:
            self._room.clear()
        self.outgoing.link.send(bytes(out))

    async def _renew(self) -> None:
        """Renew a subscription of this connection while the connection is open. By its termination time: after a
        suspension of the machine it may have expired, and a monotonic clock has not counted that time."""
        there, ends = self._gateway.table.get(self.subscription), self._gateway.now() + _LASTS
        if there is None or there.terminates_ms is None or times.to_ms(ends) - there.terminates_ms < _RENEW_S * 1000:
            return
        async with self._gateway.locks.hold(self.subscription):
            there = self._gateway.table.get(self.subscription)
            if there is not None and there.terminates_ms is not None:
                await replace(self._gateway, there, terminates_ms=times.to_ms(ends))


async def end_quietly(gateway: Gateway, identifier: str) -> None:
    """End a subscription whose connection is closed; after a failure it ends by its termination time."""
    with contextlib.suppress(InfrastructureError, UnknownResource):
        await unsubscribe(gateway, identifier, None)
