"""Datagrams to other engines, beside another transport.

A datagram has its result at once: sent or not. Addresses are numeric, resolved by the gateway. Nothing waits: a full
buffer is a failed result.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from arborcast.core import fence
from arborcast.core.security.outbound import AddressPolicy
from arborcast.dispatch.delivery.transport.contract import Callback, Ended, PushRequest, PushResult, Transport
from arborcast.topic_model.records.peers import DATAGRAMS, encode_datagram


class WithDatagrams:
    """The contract for udp:// addresses; others go to `others`."""

    def __init__(self, others: Transport, policy: AddressPolicy) -> None:
        self._others = others
        self._policy = policy
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._done = Ended()

    @property
    def in_flight(self) -> int:
        return self._others.in_flight + len(self._done)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        if not request.url.startswith(DATAGRAMS):
            self._others.submit(request, callback)
            return
        fence.wait()
        self._done.append((callback, self._send(request)))

    def drive(self, timeout_s: float) -> None:
        self._others.drive(0.0 if self._done.run() else timeout_s)

    def wake(self) -> None:
        self._others.wake()

    def close(self) -> None:
        self._done.clear()
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        self._others.close()

    def _send(self, request: PushRequest) -> PushResult:
        try:
            place = urlsplit(request.url)
            host, port = place.hostname or "", place.port or 0
            data = encode_datagram(dict(request.headers), request.body)
        except ValueError as error:
            return PushResult(0, "address", str(error))
        refusal = self._policy.check_address(host, port)
        if refusal is None and self._policy.settings.https_only:
            return PushResult(0, "address", "datagrams are not encrypted, and outbound.https_only is set")
        if refusal is not None:
            return PushResult(0, "address", str(refusal))
        try:
            self._socket(socket.AF_INET6 if ":" in host else socket.AF_INET).sendto(data, (host, port))
        except OSError as error:
            return PushResult(0, "connect", f"the datagram could not be sent: {error}")
        return PushResult(0, sent=True)

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        found = self._sockets.get(family)
        if found is None:
            found = self._sockets[family] = socket.socket(family, socket.SOCK_DGRAM)
            found.setblocking(False)
        return found
