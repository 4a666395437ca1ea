"""Messages for one visitor, as parts of the page; the subscription ends with the page."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from arborcast.client import ClientError, Credentials, FaultReceived, RemoteSubscription
from arborcast.client.received import ReceivedMessage
from arborcast.console.console import Console
from arborcast.console.live import Replacement
from arborcast.console.screens.trying.broker import Puller
from arborcast.core.threads import pool
from arborcast.core.wall_clock import time_ms
from arborcast.topic_model.records.notifications import made_at
from arborcast.topic_model.subscriptions import TopicFilter

# Each waits in a thread and has a subscription.
_WATCHERS = 16

# Messages shown, and characters of each.
_SHOWN = 50
_SHOWN_CHARACTERS = 2_000

# Minimum time between two updates of a page.
_PAUSE_S = 0.25

# Delay before the next request to an unreachable gateway.
_AGAIN_S = 3.0

# Calls of the gateway, which may not respond: other pages do not wait for them.
_threads = pool("try", _WATCHERS + 4)
_watching = 0

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class WatchedMessage:
    """One message for display. `at` is the time of its acceptance, as its id has it, else of its arrival."""

    at: str
    topic: str
    payload: str
    id: str


async def arrivals(
    console: Console, request: Request, url: str, credentials: Credentials | None, expression: TopicFilter
) -> AsyncGenerator[Replacement]:
    """Subscribe and yield messages, newest first, until closed."""
    global _watching
    puller = Puller(url, credentials)
    subscription: RemoteSubscription | None = None
    newest: deque[WatchedMessage] = deque(maxlen=_SHOWN)
    count, problem, shown = 0, "", ""
    _watching += 1
    try:
        while True:
            try:
                if subscription is None and _watching > _WATCHERS:
                    problem = f"{_WATCHERS} watchers already: close one."
                elif subscription is None:
                    subscription = await in_thread(partial(puller.subscribe_to, expression))
                    problem = ""
            except ClientError as error:
                problem = str(error)
            text = console.render(
                request,
                "trying/arrived.html",
                arrived=list(newest),
                count=count,
                problem=problem,
                wanted=request.query_params.get("watch", ""),
            )
            if text != shown:
                shown = text
                yield Replacement("try-arrived", text)
            if subscription is None:
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                messages = await in_thread(partial(puller.pull, subscription))
            except FaultReceived as error:
                # The subscription was ended, or the gateway refuses access.
                subscription, problem = None, f"The subscription has ended: {error}"
                continue
            except ClientError as error:
                problem = str(error)
                await asyncio.sleep(_AGAIN_S)
                continue
            count += len(messages)
            newest.extendleft(_arrived(message) for message in messages)
            problem = ""
            if messages:
                await asyncio.sleep(_PAUSE_S)
    finally:
        _watching -= 1
        if subscription is not None:
            await in_thread(partial(_end, puller, subscription))
        puller.close()


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """The result of a call of the gateway."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


def _end(puller: Puller, subscription: RemoteSubscription) -> None:
    try:
        puller.unsubscribe(subscription)
    except ClientError:
        return  # it ends by itself


def _arrived(message: ReceivedMessage) -> WatchedMessage:
    payload = message.payload.decode(errors="replace")
    more = len(payload) > _SHOWN_CHARACTERS
    # Messages that are pulled together have times of their own.
    at_ms = made_at(message.notification_id) or time_ms()
    return WatchedMessage(
        datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3],
        str(message.topic or ""),
        payload[:_SHOWN_CHARACTERS] + "…" * more,
        message.notification_id,
    )
