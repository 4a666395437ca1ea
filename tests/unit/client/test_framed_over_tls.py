"""The framed client over TLS: a thread reads while others send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from arborcast.client import BrokerUnavailable
from arborcast.client.framed import ConnectionFactory
from arborcast.wire import frames
from arborcast.wire.frames import Decoder, FrameKind
from tests.support.certificates import Certificates, make_certificates
from tests.support.scripted_server import ScriptedServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def factory(certificates: Certificates) -> Iterator[ConnectionFactory]:
    """Connections to a broker that answers each CONNECT with a CONNECTED of the same length."""
    context = certificates.server()

    def answer(plain: socket.socket) -> None:
        plain.settimeout(120)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = Decoder(2**30)
        with context.wrap_socket(plain, server_side=True) as connection:
            while data := connection.recv(65_536):
                for frame in (each for each in decoder.feed(data) if each.kind == FrameKind.CONNECT):
                    said = frames.read_body(frame, frames.ConnectBody).client
                    body = frames.ConnectedBody(said, 1_000_000, 60.0)
                    connection.sendall(frames.encode(FrameKind.CONNECTED, frame.correlation, body))

    with ScriptedServer(answer, "framed+tls") as broker:
        yield ConnectionFactory(broker.url, tls_ca_file=certificates.authority, timeout_s=120)


def test_an_early_frame_arrives_while_session_tickets_are_read(factory: ConnectionFactory) -> None:
    # With one OpenSSL connection used by two threads at the same time, one of ten was never answered.
    for _ in range(100):
        with factory.connection() as connection:
            assert not connection.lost.is_set()


def test_long_frames_in_both_directions_at_the_same_time(factory: ConnectionFactory) -> None:
    with factory.connection() as connection, ThreadPoolExecutor(4) as threads:

        def ping(number: int) -> bool:
            name = f"{number:03}" * 30_000
            frame = connection.request(FrameKind.CONNECT, frames.ConnectBody(client=name))
            return frames.read_body(frame, frames.ConnectedBody).session == name

        assert all(threads.map(ping, range(200)))


def test_an_http_server_at_that_address_is_named() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1_000):
            pass

    with ScriptedServer(refuse, "framed") as server, pytest.raises(BrokerUnavailable, match="an HTTP server answered"):
        ConnectionFactory(server.url).connection()


def test_a_missing_authority_leaves_no_connection_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        factory = ConnectionFactory(f"framed+tls://127.0.0.1:{server.getsockname()[1]}", tls_ca_file="/none.pem")
        with pytest.raises(BrokerUnavailable, match="No such file"):
            factory.connection()
        with server.accept()[0] as accepted:
            accepted.settimeout(120)
            assert accepted.recv(1) == b""
