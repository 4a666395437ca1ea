"""Taking a push now and saying later how it ended: what `message.later()` returns, and how its word gets to the broker.

A push has one result. When several of its messages were taken for later, it is told with the last of them, and is as
bad as the worst: the broker then tries each of them alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal

from arborcast.client.transport import HttpAnswer, Transport
from arborcast.client.values import BrokerUnreachable, ClientError, ResultNotTaken

_State = Literal["delivered", "refused", "failed"]

# What is worse comes later.
_WORSE: tuple[_State, ...] = ("delivered", "refused", "failed")

_PATH = "/results/"

# The broker keeps so much of it.
_MOST_TEXT = 500

# Between tries to tell a result, while the broker does not answer or asks to come again.
_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)

_LONGEST_WAIT_S = 10.0


class Later:
    """One message whose end will be told. Of its methods the first call counts; they may be called in any thread, and
    raise ClientError when the broker could not be told: then it tries the message again when its patience is over."""

    def __init__(self, push: OpenPush) -> None:
        self._push = push
        self._said = False

    def delivered(self, text: str = "") -> None:
        """It is done."""
        self._say("delivered", text)

    def failed(self, text: str = "") -> None:
        """It failed: the broker sends it again, as it does after an error."""
        self._say("failed", text)

    def refused(self, text: str = "") -> None:
        """It will never be done: the broker keeps it as a dead letter."""
        self._say("refused", text)

    def _say(self, state: _State, text: str) -> None:
        with self._push.lock:
            if self._said:
                return
            self._said = True
        self._push.settled(state, text)


class OpenPush:
    """A push that is handled now, or was taken for later."""

    def __init__(self, address: str, push: str, transport: Transport) -> None:
        self.lock = threading.Lock()
        self._address = address
        self._push = push
        self._transport = transport
        self._open = 0
        self._state: _State = "delivered"
        self._texts: list[str] = []
        self._answered: bool | None = None  # None: not yet; else whether the result is to come

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        # A message may be copied, or handed to another process; how its push ended is said here.
        return _nothing, ()

    def later(self) -> Later:
        """One of its messages is to be settled later. Raises ClientError."""
        if not self._address:
            raise ClientError(
                "this push names no address for a result: its broker takes none, or has push.callback_s = 0"
            )
        if not self._address.startswith(("http://", "https://")) or _PATH not in self._address:
            raise ClientError(f"this push names an address that is no broker's for results: {self._address:.200}")
        with self.lock:
            if self._answered is not None:
                raise ClientError("this push is answered already: call later() while its message is handled")
            self._open += 1
        return Later(self)

    def answered(self) -> _State | None:
        """Its messages were handled: how it has ended, None when that is to come."""
        with self.lock:
            self._answered = self._open > 0
            return None if self._answered else self._state

    def dropped(self) -> None:
        """Its messages could not be handled, and the broker is told so: what was taken for later is of no interest."""
        with self.lock:
            self._answered = False

    def settled(self, state: _State, text: str) -> None:
        """One of its messages is settled. Raises ClientError."""
        with self.lock:
            self._open -= 1
            self._state = max(self._state, state, key=_WORSE.index)
            self._texts += [text] if text else []
            if self._open or not self._answered:
                return
        body = {"push": self._push, "state": self._state, "text": "; ".join(self._texts)[:_MOST_TEXT]}
        self._tell(json.dumps(body).encode())

    def _tell(self, body: bytes) -> None:
        for wait_s in (*_WAITS_S, None):
            try:
                answer = self._transport.post(self._address, {"Content-Type": "application/json"}, body)
            except BrokerUnreachable:
                if wait_s is None:
                    raise
            else:
                if answer.status not in (429, 503) or wait_s is None:
                    _check(answer)
                    return
                wait_s = max(wait_s, min(_asked_s(answer), _LONGEST_WAIT_S))
            time.sleep(wait_s)


def _nothing() -> None:
    """What a copied message has of its push."""


def open_push(headers: Mapping[str, str], transport: Transport) -> OpenPush:
    """The push with these headers, whose names are in lower case."""
    return OpenPush(headers.get("arborcast-callback", ""), headers.get("arborcast-push", ""), transport)


def _check(answer: HttpAnswer) -> None:
    if not 200 <= answer.status < 300:
        said = answer.body[:200].decode(errors="replace").strip()
        raise ResultNotTaken(f"the broker does not take this result ({answer.status}): {said}", answer.status)


def _asked_s(answer: HttpAnswer) -> float:
    asked = answer.header("Retry-After")
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0
