"""The subscription of `arborcast listen`: it lasts as long as the listener does, and little longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from ingest.client import Client, ClientError, FaultReceived, RemoteSubscription

LEASE_S = 300.0
"""A listener that is killed, or whose machine goes away, is pushed to no longer than this. An engine that is started
again in between must be able to find it."""

RENEWED_EVERY_S = 60.0

_UNKNOWN = "ResourceUnknownFault"


class LeasedSubscription:
    """Subscribes, renews in a thread, and unsubscribes in the end.

    `subscribe` makes the subscription for so long. `tell` gets what the person should know, in sentences. `ended` is
    called when somebody else has ended the subscription: nothing will come any more.
    """

    def __init__(
        self,
        client: Client,
        subscribe: Callable[[timedelta], RemoteSubscription],
        tell: Callable[[str], object],
        ended: Callable[[], object],
        *,
        lease_s: float = LEASE_S,
        renewed_every_s: float = RENEWED_EVERY_S,
    ) -> None:
        self._client = client
        self._subscribe = subscribe
        self._tell = tell
        self._ended = ended
        self._lease = timedelta(seconds=lease_s)
        self._every_s = renewed_every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renew", daemon=True)

    def __enter__(self) -> Self:
        self._made = self._subscribe(self._lease)
        self._until_s = self._from_now()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        try:
            self._client.unsubscribe(self._made.address)
        except FaultReceived as fault:
            if fault.fault != _UNKNOWN:
                self._tell(f"the subscription could not be ended: {fault}")
        except ClientError as failure:
            at = time.strftime("%H:%M:%S", time.localtime(self._until_s))
            self._tell(f"the subscription could not be ended now, it ends by itself at {at}: {failure}")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._client.renew(self._made.address, self._lease)
            except FaultReceived as fault:
                if fault.fault == _UNKNOWN and not self._go_on():
                    return
            except ClientError:
                continue  # the broker is away; what it accepts meanwhile, it accepts for us
            else:
                self._until_s = self._from_now()

    def _go_on(self) -> bool:
        """The broker does not know the subscription any more; whether there is another."""
        # By the clock on the wall: the other one stands still while a machine sleeps.
        if self._stopping.is_set() or time.time() < self._until_s:
            self._ended()
            return False
        try:
            self._made = self._subscribe(self._lease)
        except ClientError:
            return True  # tried again
        self._until_s = self._from_now()
        self._tell("the broker was out of reach for so long that the subscription ended; subscribed again")
        return True

    def _from_now(self) -> float:
        return time.time() + self._lease.total_seconds()
