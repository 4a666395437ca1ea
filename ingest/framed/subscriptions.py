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
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from arborcast.core.errors import InfrastructureError, PeerError, UnknownResource
from arborcast.ingest.access.grants import owner_of
from arborcast.ingest.elements.filters import SubscriptionPolicy
from arborcast.ingest.framed.messages import filters_of, message_of, policy_of
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.ingest.operations.subscription_manager import managed_subscription, replace
from arborcast.ingest.state.pull_queues import Handout
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.records.control import ending
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import frames, limits, times
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.frames import LOOSE, FrameKind, SubscribeBody

logger = logging.getLogger(__name__)


# So many messages are claimed at a time.
_AT_ONCE = 100

# How long one waits for messages before it is looked whether all is as it was.
_WAIT_S = 60.0

# Delay before a refused message is sent again.
_AGAIN_S = 1.0

# A subscription that ends with its connection lasts so long beyond, where that was not seen.
_LASTS = timedelta(hours=1)
_RENEW_S = _LASTS.total_seconds() / 2


async def subscribe(gateway: Gateway, wanted: SubscribeBody, caller: Caller | None, client: str) -> Subscription:
    """The subscription that is wanted, new or found by its name; one of that name that wants something else changes.

    Raises PeerError or InfrastructureError.
    """
    if not 1 <= wanted.window <= limits.WINDOW:
        raise InvalidRequest(f"window is from 1 to {limits.WINDOW}, not {wanted.window}")
    if len(wanted.name) > limits.NAME:
        raise InvalidRequest(f"a name may have {limits.NAME} characters, this one has {len(wanted.name)}")
    terminates = None if wanted.name else times.to_ms(gateway.now() + _LASTS)
    created = await create_subscription(
        gateway,
        SubscriptionRequest(
            filters_of(wanted),
            caller,
            client,
            policy=SubscriptionPolicy(current_message=wanted.current, delivery=policy_of(wanted)),
            terminates_ms=terminates,
            id=_durable_id(owner_of(caller), wanted.name) if wanted.name else "",
        ),
    )
    return created.subscription


async def unsubscribe(gateway: Gateway, identifier: str, caller: Caller | None) -> None:
    """End a subscription; what waits for it is gone. Raises UnknownResource or InfrastructureError."""
    async with gateway.locks.hold(identifier):
        managed_subscription(gateway, identifier, caller)
        await gateway.changes.commit(ending(identifier, "unsubscribed", times.to_ms(gateway.now())))
    gateway.pulls.forget(identifier)


def _durable_id(owner: str, name: str) -> str:
    digest = hashlib.blake2b(f"{owner}\n{name}".encode(), digest_size=18).digest()
    return f"d{base64.urlsafe_b64encode(digest).decode()}"


class Way(Protocol):
    """The way of messages to a client."""

    def send(self, data: bytes) -> None: ...

    @property
    def claiming(self) -> asyncio.Semaphore:
        """Held from the claim of messages until they are sent."""

    async def until_writable(self) -> None:
        """Return when the client reads the messages that it is sent, and answers them."""

    def number(self, consumer: Sender) -> int:
        """For a message that is about to be sent: its answer goes to this consumer."""

    def unreadable(self, consumer: Sender, offset: int, error: PeerError) -> None:
        """A message that waited at this offset was given up."""


@dataclass(eq=False)
class _Claim:
    """Messages on their way. `open` has the numbers without an answer, with their offsets."""

    finish: Callable[[bool], None]
    return_but: Callable[[Collection[int]], None]
    open: dict[int, int] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    refused: bool = False


class Sender:
    """One subscription on one connection: sends its messages, and takes the answers to them."""

    def __init__(self, gateway: Gateway, way: Way, subscription: str, window: int) -> None:
        self.subscription = subscription
        self.given: dict[int, _Claim] = {}
        self._gateway = gateway
        self._way = way
        self._window = window
        self._room = asyncio.Event()
        self._room.set()
        self._renewed = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Send what waits, until the subscription has ended."""
        while self._gateway.pull_points.exists(self.subscription):
            await self._room.wait()
            try:
                await self._renew()
                await self._gateway.pulls.until_waiting(self.subscription, _WAIT_S)
                async with self._way.claiming:
                    await self._way.until_writable()
                    room = min(self._window - len(self.given), _AT_ONCE)
                    handout = await self._gateway.pulls.take(self.subscription, room, 0)
                    if handout.messages:
                        self._send(handout)
            except InfrastructureError as error:
                logger.debug("messages of %s wait: %s", self.subscription, error)
                await asyncio.sleep(error.retry_after or 1.0)

    def answered(self, number: int, *, taken: bool) -> None:
        """The client has this message, or could not take it: then it is sent again, when what came with it has an
        answer, too."""
        claim = self.given.pop(number, None)
        if claim is None:
            return  # the subscription has ended on this connection
        offset = claim.open.pop(number)
        if taken:
            claim.taken.append(offset)
        claim.refused |= not taken
        self._room.set()
        if not claim.open:
            if claim.refused:
                asyncio.get_running_loop().call_later(_AGAIN_S, claim.return_but, claim.taken)
            else:
                claim.finish(True)

    def close(self) -> None:
        """No more answers: unacknowledged messages wait again."""
        for claim in set(self.given.values()):
            claim.return_but(claim.taken)
        self.given.clear()

    def _send(self, handout: Handout) -> None:
        claim = _Claim(handout.finish, handout.return_but)
        out = bytearray()
        try:
            for each in handout.messages:
                try:
                    message, loose = message_of(each, self.subscription)
                except PeerError as error:
                    claim.taken.append(each.offset)
                    self._way.unreadable(self, each.offset, error)
                    continue
                number = self._way.number(self)
                claim.open[number] = each.offset
                self.given[number] = claim
                out += frames.encode(FrameKind.MESSAGE, number, message, LOOSE if loose else 0)
        except BaseException:
            for number in claim.open:
                self.given.pop(number, None)
            claim.return_but(())
            raise
        if not claim.open:
            claim.finish(True)
            return
        if len(self.given) >= self._window:
            self._room.clear()
        self._way.send(bytes(out))

    async def _renew(self) -> None:
        """A subscription that ends with the connection goes on as long as that is there."""
        now = asyncio.get_running_loop().time()
        if now - self._renewed < _RENEW_S:
            return
        self._renewed = now
        async with self._gateway.locks.hold(self.subscription):
            there = self._gateway.table.get(self.subscription)
            if there is not None and there.terminates_ms is not None:
                await replace(self._gateway, there, terminates_ms=times.to_ms(self._gateway.now() + _LASTS))


async def end_quietly(gateway: Gateway, identifier: str) -> None:
    """End a subscription whose connection is gone; one that cannot be ended now ends by its time."""
    with contextlib.suppress(InfrastructureError, UnknownResource):
        await unsubscribe(gateway, identifier, None)
