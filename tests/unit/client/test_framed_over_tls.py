"""The framed client over TLS: a thread reads while others send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from arborcast.client import BrokerUnavailable
from arborcast.client.framed import ConnectionFactory
from arborcast.wire import frames
from arborcast.wire.frames import Decoder, FrameKind
from tests.support.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def factory(certificates: Certificates) -> Iterator[ConnectionFactory]:
    """Of a broker that answers every question with CONNECTED, and a long one with a long one."""
    context = certificates.server()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_000)
    threads: list[threading.Thread] = []

    def answer(plain: socket.socket) -> None:
        plain.settimeout(120)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = Decoder(2**30)
        with plain, context.wrap_socket(plain, server_side=True) as connection:
            while data := connection.recv(65_536):
                for frame in decoder.feed(data):
                    if frame.kind == FrameKind.CONNECT:
                        said = frames.read_body(frame, frames.ConnectBody).client
                        body = frames.ConnectedBody(said, 1_000_000, 60.0)
                        connection.sendall(frames.encode(FrameKind.CONNECTED, frame.correlation, body))

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(plain,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    url = f"framed+tls://127.0.0.1:{listener.getsockname()[1]}"
    yield ConnectionFactory(url, tls_ca_file=certificates.authority, timeout_s=120)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for each in [accepting, *threads]:
        each.join(120)


def test_an_early_frame_arrives_while_session_tickets_are_read(factory: ConnectionFactory) -> None:
    # With a connection of OpenSSL that two threads use at the same time, one of ten was never answered.
    for _ in range(100):
        with factory.connection() as connection:
            assert not connection.lost.is_set()


def test_long_frames_go_both_ways_at_the_same_time(factory: ConnectionFactory) -> None:
    with factory.connection() as connection, ThreadPoolExecutor(4) as threads:

        def ask(number: int) -> bool:
            name = f"{number:03}" * 30_000
            frame = connection.request(FrameKind.CONNECT, frames.ConnectBody(client=name))
            return frames.read_body(frame, frames.ConnectedBody).session == name

        assert all(threads.map(ask, range(200)))


def test_an_http_server_at_that_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:

        def refuse() -> None:
            plain, _ = listener.accept()
            with plain:
                plain.recv(1)
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(1_000):
                    pass

        done = threads.submit(refuse)
        with pytest.raises(BrokerUnavailable, match="an HTTP server answered"):
            ConnectionFactory(f"framed://127.0.0.1:{listener.getsockname()[1]}").connection()
        done.result()
