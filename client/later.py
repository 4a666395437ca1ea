"""Acknowledging a push now and reporting its result later: the results of `message.later()`, and their transmission.

A push has one result. With several deferred messages it is reported after the last of them, and is the worst one; the
broker then repeats each message alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Literal

from arborcast.client.transport import Transport, retry_after_s
from arborcast.client.values import BrokerUnreachable, ClientError, ResultNotTaken

_State = Literal["delivered", "refused", "failed"]

# In ascending order of severity.
_WORSE: tuple[_State, ...] = ("delivered", "refused", "failed")

_PATH = "/results/"

# The broker stores this number of characters.
_MAX_TEXT = 500

# Pauses between attempts to report a result, while the broker is unreachable or answers 429 or 503.
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)

_LONGEST_PAUSE_S = 10.0


class DeferredResult:
    """The deferred result of one message. Only the first call of a method counts. The methods may be called in any
    thread, and raise ClientError if the result cannot be reported; the broker then repeats the message after its
    timeout."""

    def __init__(self, push: OpenPush) -> None:
        self._push = push
        self._reported = False

    def delivered(self, text: str = "") -> None:
        """Report success."""
        self._report("delivered", text)

    def failed(self, text: str = "") -> None:
        """Report a failure: the broker repeats the message, as after an error."""
        self._report("failed", text)

    def refused(self, text: str = "") -> None:
        """Report a permanent failure: the message becomes a dead letter at the broker."""
        self._report("refused", text)

    def _report(self, state: _State, text: str) -> None:
        with self._push.lock:
            if self._reported:
                return
            self._reported = True
        self._push.settled(state, text)


class OpenPush:
    """A push that is being handled, or whose result is deferred. `headers` by names in lower case."""

    def __init__(self, headers: Mapping[str, str], transport: Transport) -> None:
        self.lock = threading.Lock()
        self._address = headers.get("arborcast-callback", "")
        self._push = headers.get("arborcast-push", "")
        self._transport = transport
        self._open = 0
        self._state: _State = "delivered"
        self._texts: list[str] = []
        self._deferred: bool | None = None  # whether the push was answered with a deferred result; None: no answer yet

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # A message may be copied, or sent to another process; only the original can report the result.
        return type(None), ()

    def later(self) -> DeferredResult:
        """Defer the result of one of its messages. Raises ClientError."""
        if not self._address:
            raise ClientError(
                "this push has no address for a result: its broker does not support it, or has push.callback_s = 0"
            )
        if not self._address.startswith(("http://", "https://")) or _PATH not in self._address:
            raise ClientError(f"the address of this push is not a broker's address for results: {self._address:.200}")
        with self.lock:
            if self._deferred is not None:
                raise ClientError("this push was already answered: call later() while its message is handled")
            self._open += 1
        return DeferredResult(self)

    def answered(self) -> _State | None:
        """Called when its messages were handled. Returns the result; None if it is deferred."""
        with self.lock:
            self._deferred = self._open > 0
            return None if self._deferred else self._state

    def dropped(self) -> None:
        """Called when handling failed and the broker gets an error; deferred results are ignored."""
        with self.lock:
            self._deferred = False

    def settled(self, state: _State, text: str) -> None:
        """Called with the deferred result of one of its messages. Raises ClientError."""
        with self.lock:
            self._open -= 1
            self._state = max(self._state, state, key=_WORSE.index)
            self._texts += [text] if text else []
            if self._open or not self._deferred:
                return
        body = {"push": self._push, "state": self._state, "text": "; ".join(self._texts)[:_MAX_TEXT]}
        self._post(json.dumps(body).encode())

    def _post(self, body: bytes) -> None:
        for pause_s in (*_PAUSES_S, None):
            try:
                answer = self._transport.post(self._address, {"Content-Type": "application/json"}, body)
            except BrokerUnreachable:
                if pause_s is None:
                    raise
            else:
                if answer.status not in (429, 503) or pause_s is None:
                    break
                pause_s = max(pause_s, min(retry_after_s(answer.header("Retry-After")) or 0.0, _LONGEST_PAUSE_S))
            time.sleep(pause_s)
        if not 200 <= answer.status < 300:
            reason = answer.body[:200].decode(errors="replace").strip()
            raise ResultNotTaken(f"the broker refused this result ({answer.status}): {reason}", answer.status)
