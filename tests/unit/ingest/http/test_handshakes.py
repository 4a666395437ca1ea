"""TLS handshakes that go no further: on real sockets, and which of them has to go."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
import ssl
import sys
from collections.abc import Iterator

import pytest

from arborcast.ingest.access.settings import TlsSettings
from arborcast.ingest.http.tls import HandshakeLimiter, ServerTls
from tests.support.certificates import Certificates, make_certificates
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import served
from tests.support.soap_messages import envelope, notify
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BODY = envelope(notify())
REQUEST = b"POST /wsn/NotificationBroker HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY

# On Linux this whole network is this machine; elsewhere only one address of it.
OTHERS = pytest.mark.skipif(sys.platform != "linux", reason="needs more than one loopback address")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(certificates: Certificates) -> ServerTls:
    # Longer than any test takes: nothing is cut off because of its time.
    settings = TlsSettings(certificates.certificate("server"), certificates.key("server"), handshake_timeout_s=600)
    return ServerTls(dataclasses.replace(settings, handshakes=200, handshakes_per_client=50))


def asked(port: int, certificates: Certificates, source: str = "127.0.0.1") -> bytes:
    """The first bytes of the answer to a Notify from this address."""
    context = ssl.create_default_context(cafile=certificates.authority)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(REQUEST)
        return connection.recv(4096)


@contextlib.contextmanager
def stalled(port: int, count: int, sources: list[str], start: bytes = b"\x16\x03\x01\x02\x00\x01") -> Iterator[None]:
    """So many handshakes that go no further than their first bytes."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            source = sources[number % len(sources)]
            one = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
            )
            with contextlib.suppress(ConnectionError):  # it was refused already
                one.sendall(start)
        yield


@OTHERS
def test_a_thousand_that_stall_take_nothing_from_others(tls: ServerTls, certificates: Certificates) -> None:
    parts = GatewayParts()
    with served(parts, tls=tls) as port, stalled(port, 1_000, ["127.0.0.2"]):
        wait_until(lambda: tls.handshakes.begun == 1_000)
        assert tls.handshakes.refused == 950, "one address has its fifty"
        for _ in range(3):
            assert asked(port, certificates).startswith(b"HTTP/1.1 202")
        # The very same address has to wait until its own are over.
        with pytest.raises((ConnectionError, ssl.SSLError)):
            asked(port, certificates, "127.0.0.2")
    assert len(parts.notifications.accepted) == 3


@OTHERS
def test_from_many_addresses_the_oldest_make_room(tls: ServerTls, certificates: Certificates) -> None:
    parts = GatewayParts()
    sources = [f"127.0.0.{number}" for number in range(2, 32)]
    with served(parts, tls=tls) as port, stalled(port, 400, sources):
        wait_until(lambda: tls.handshakes.begun == 400)
        assert tls.handshakes.refused == 200, "there are two hundred, and nobody has more than seven of them"
        assert asked(port, certificates).startswith(b"HTTP/1.1 202")
    assert len(parts.notifications.accepted) == 1


def test_what_fails_and_what_succeeds_makes_room_at_once(tls: ServerTls, certificates: Certificates) -> None:
    parts = GatewayParts()
    with served(parts, tls=tls) as port:
        for _ in range(80):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS at all
                with contextlib.suppress(ConnectionError):
                    while one.recv(4096):
                        pass
        for _ in range(30):
            assert asked(port, certificates).startswith(b"HTTP/1.1 202")
    assert tls.handshakes.refused == 0
    assert (tls.handshakes.begun, tls.handshakes.succeeded) == (110, 30)


def test_a_stop_does_not_wait_for_those_that_stall(tls: ServerTls) -> None:
    with contextlib.ExitStack() as stack, served(GatewayParts(), tls=tls) as port:
        stack.enter_context(stalled(port, 10, ["127.0.0.1"]))
        wait_until(lambda: tls.handshakes.begun == 10)


def test_no_descriptor_left_is_no_end(
    tls: ServerTls, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.EMFILE, "Too many open files")])
    accept = socket.socket.accept

    def exhausted(listener: socket.socket) -> tuple[socket.socket, object]:
        for error in failures:
            raise error
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    monkeypatch.setattr("arborcast.ingest.http.tls._EXHAUSTED_S", 0.05)
    with served(GatewayParts(), tls=tls) as port:
        assert asked(port, certificates).startswith(b"HTTP/1.1 202")


def test_which_one_has_to_go_and_one_machine_with_many_ipv6_addresses_is_one() -> None:
    room = HandshakeLimiter(3, 2)
    assert [room.enter(name, f"{host}.1.1.1") for name, host in (("a", 1), ("b", 1), ("c", 2))] == [None] * 3
    assert (room.full_for("1.1.1.1"), room.full_for("2.1.1.1")) == (True, False)
    assert room.enter("d", "3.3.3.3") == "a"
    assert not room.full_for("1.1.1.1")
    for name in "abcd":  # the first went already
        room.leave(name)
    assert len(room) == len(room._of) == 0
    room.enter("a", "2001:db8::1")
    room.enter("b", "2001:db8::2")
    assert (room.full_for("2001:db8::3"), room.full_for("2001:db8:0:1::1")) == (True, False)
