"""The client of the commands, which reports a missing broker soon; and the subscription of `arborcast listen`, which
ends soon after the listener."""

from __future__ import annotations

import netrc
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from arborcast.client import (
    BrokerUnreachable,
    Client,
    ClientError,
    Credentials,
    FaultReceived,
    HttpAnswer,
    RemoteSubscription,
    Retries,
)
from arborcast.client.calls import Call, ResultT
from arborcast.client.client import arguments_of
from arborcast.client.transport import PlainTransport
from arborcast.core.errors import ConfigError
from arborcast.core.reasons import reason_of
from arborcast.core.security.outbound import place_of
from arborcast.core.threads import Service, pool
from arborcast.engine.terminal import note_if_slow

# Timeouts of connecting and of an answer: the broker gives up on its storage after ten seconds, with an error.
TIMEOUT_S = (1.0, 15.0)

# Maximum silence at a terminal.
QUIET_S = 1.0

_ADVICE = "`arborcast status` shows whether one is up here, `arborcast up` starts it; else check the address"

# Not an option: all users of the machine can read those. curl, git and others use the same file.
_USE_NETRC = "Arborcast takes a line of ~/.netrc (mode 600): machine {} login NAME password PASSWORD"


class ShellClient(Client):
    """Repeats requests only after 503. A missing broker is reported at once, with the remedy. Requests are made in the
    thread of the call: a command makes few, and starts sooner without the libraries for concurrent ones."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        super().__init__(
            url,
            timeout_s=TIMEOUT_S,
            retries=Retries(unanswered=False),
            credentials=_credentials(parts.hostname),
            transport=PlainTransport(TIMEOUT_S) if parts.scheme == "http" else None,
        )

    def _start_workers(self) -> None:
        self._workers = pool("shell-client", 1)  # has no thread before it is used

    def _send(self, call: Call[Any]) -> Future[HttpAnswer]:
        sent: Future[HttpAnswer] = Future()
        try:
            sent.set_result(self._session.request("POST", call.to.address, **arguments_of(call, self._soap)))
        except ClientError as error:
            sent.set_exception(error)
        return sent

    def is_reachable(self) -> bool:
        """Whether something listens at the broker's address."""
        try:
            socket.create_connection(place_of(self._calls.broker.address), TIMEOUT_S[0]).close()
        except OSError:
            return False
        return True

    def _exchange(self, call: Call[ResultT]) -> tuple[ResultT, HttpAnswer]:
        parts = urlsplit(call.to.address)
        where = f"{parts.scheme}://{parts.netloc}"
        waiting = f"{where} has not answered yet; waiting for up to {TIMEOUT_S[1]:g} s (arborcast status: how it is)"
        try:
            with note_if_slow(waiting, QUIET_S):
                return super()._exchange(call)
        except FaultReceived as error:
            if error.status != 401:
                raise
            raise FaultReceived(f"{error.reason}. {_USE_NETRC.format(parts.hostname)}", error.fault, 401) from error
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"no engine at {where}: {error.reason}. {_ADVICE}", error.reason) from error


def _credentials(host: str | None) -> Credentials | None:
    """The user's netrc credentials for the host. Raises ConfigError for an unusable file."""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    if host is None or not file.exists():
        return None
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} contains passwords and is readable by others: chmod 600 it")
        # Entries of this host only: `default` is for all.
        known = netrc.netrc(str(file)).hosts.get(host)
    except netrc.NetrcParseError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.msg}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {reason_of(error)}") from error
    return None if known is None else Credentials(user=known[0], password=known[2] or "")


LEASE_S = 300.0
"""Time after which pushes to a killed listener end. It is longer than a restart of the engine takes."""

RENEWED_EVERY_S = 60.0

LOOK_S = 3.0
"""Interval in which a listener checks that the broker is up."""

_UNKNOWN = "ResourceUnknownFault"


class LeasedSubscription:
    """Subscribes, renews in a thread, and unsubscribes at the end. `subscribe` creates the subscription for a time.
    `notify` gets messages for the user, also about a lost broker and its return. `ended` is called when another client
    has ended the subscription: no message will arrive."""

    def __init__(
        self,
        client: Client,
        subscribe: Callable[[timedelta], RemoteSubscription],
        notify: Callable[[str], object],
        ended: Callable[[], object],
        *,
        lease_s: float = LEASE_S,
        renewed_every_s: float = RENEWED_EVERY_S,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._subscribe = subscribe
        self._notify = notify
        self._ended = ended
        self._lease = timedelta(seconds=lease_s)
        self._every_s = renewed_every_s
        self._reachable = reachable
        self._there = True
        self._renew_at = 0.0
        self._service = Service("renew", self._look, delay_s=min(LOOK_S, renewed_every_s))

    def __enter__(self) -> Self:
        self._made = self._subscribe(self._lease)
        self._until_s = self._from_now()
        self._renew_at = time.monotonic() + self._every_s
        self._service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()
        try:
            self._client.unsubscribe(self._made.address)
        except FaultReceived as fault:
            if fault.fault != _UNKNOWN:
                self._notify(f"the subscription could not be ended: {fault}")
        except ClientError as failure:
            at = time.strftime("%H:%M:%S", time.localtime(self._until_s))
            self._notify(f"the subscription could not be ended; it expires at {at}: {failure}")

    def _look(self) -> float | None:
        if self._there and not self._reachable():
            self._note(there=False)
        elif (not self._there or time.monotonic() >= self._renew_at) and not self._renewed():
            return None
        return min(LOOK_S, self._every_s)

    def _renewed(self) -> bool:
        """Renew; whether there is a subscription."""
        self._renew_at = time.monotonic() + self._every_s
        try:
            self._client.renew(self._made.address, self._lease)
        except FaultReceived as fault:
            if fault.fault == _UNKNOWN:
                return self._go_on()
        except ClientError:
            self._note(there=False)
        else:
            self._note(there=True)
            self._until_s = self._from_now()
        return True

    def _note(self, *, there: bool) -> None:
        """Report the loss of the broker, and its return."""
        if there != self._there:
            self._there = there
            end = time.strftime("%H:%M:%S", time.localtime(self._until_s))
            self._notify(
                f"{time.strftime('%H:%M:%S')} the broker is back; the subscription continues"
                if there
                else f"{time.strftime('%H:%M:%S')} the broker does not respond; the subscription lasts until {end}"
            )

    def _go_on(self) -> bool:
        """Subscribe again when the subscription is unknown to the broker; False when another client has ended it."""
        # By wall-clock time: the monotonic clock stops while a machine sleeps.
        if self._service.stopping or time.time() < self._until_s:
            self._ended()
            return False
        try:
            self._made = self._subscribe(self._lease)
        except ClientError:
            return True  # tried again
        self._until_s = self._from_now()
        self._there = True
        self._notify(
            f"{time.strftime('%H:%M:%S')} the broker is back; the subscription had ended, subscribed again; "
            "notifications published in between are lost"
        )
        return True

    def _from_now(self) -> float:
        return time.time() + self._lease.total_seconds()
