"""What counts as a sign of life, and what does not."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arborcast.engine.embedded import questions
from arborcast.engine.embedded.questions import Question
from tests.support.waiting import wait_until

ASKERS: dict[str, Callable[[int], Question]] = {
    "gateway": lambda port: questions.gateway("127.0.0.1", port, tls=False),
    "gateway with TLS": lambda port: questions.gateway("127.0.0.1", port, tls=True),
    "kafka": lambda port: questions.kafka(port),
}


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Answers so to whatever comes, and closes; None: the kernel opens connections, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4_096)
                    connection.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize("who", ASKERS)
def test_a_process_that_closes_connections_lives(who: str) -> None:
    """Too many connections, a certificate that we do not have: its process has decided that."""
    with server(None) as port:
        assert ASKERS[who](port)(0.2) == "no answer within 0.2 s", "a connection is no answer"
    assert ASKERS[who](port)(5) == "no process listens"
    with server(b"") as port:
        assert ASKERS[who](port)(30) == ""


@pytest.mark.parametrize(
    ("who", "answer", "why"),
    [
        ("gateway", http("200 OK", "alive\n"), ""),
        ("gateway", http("503 Service Unavailable", "there are too many connections\n"), ""),
        (
            "gateway",
            http("500 Internal Server Error", "the parent of the workers ...\n"),
            "the parent of the workers ...",
        ),
        ("gateway", b"no HTTP at all", ""),
        ("kafka", struct.pack(">iii", 8, 1, 0), ""),  # it has not found itself yet
    ],
    ids=["200", "503", "500", "no HTTP", "kafka"],
)
def test_answers(who: str, answer: bytes, why: str) -> None:
    with server(answer) as port:
        assert ASKERS[who](port)(30) == why


def test_a_heart_beats_when_its_file_has_a_new_time(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    ask = questions.job(file)
    assert ask(0.1) == "no heartbeat within 0.1 s"
    file.touch()
    assert ask(0.1) == "no heartbeat within 0.1 s", "the file is there, but nobody touches it"
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(60)))
    asking.start()

    def beat() -> bool:
        os.utime(file)
        return bool(answers)

    wait_until(beat)
    asking.join()
    assert answers == [""]
