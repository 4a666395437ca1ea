"""Faults of the network, on connections to a server that returns the bytes it gets."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from benchmarks.storms import links
from benchmarks.storms.links import FAULTS, Links
from tests.support.island import ROOT

PLACES = ("workers", "subscribers")

# For an open and a new connection during the fault, and for the open one after it. `loss` is random.
RESULTS = {
    "delay": ("answered", "answered", "answered"),
    "requests": ("silence", "silence", "answered"),
    "answers": ("silence", "silence", "answered"),
    "cut": ("silence", "silence", "answered"),
    "half-open": ("silence", "answered", "silence"),
    "resets": ("reset", None, "reset"),
}

_SIZE = 1000


@pytest.mark.slow
@pytest.mark.skipif(not links.possible(), reason="no namespaces here: unshare, ip and nft are needed")
def test_each_fault_affects_only_its_place_and_ends() -> None:
    program = links.command("tests.unit.benchmarks.test_links")
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for place, fault in product(PLACES, RESULTS):
        *results, beside = found[place][fault]
        assert beside == "answered", f"{fault} of the {place}"
        assert [result for result, due in zip(results, RESULTS[fault], strict=True) if due] == [
            each for each in RESULTS[fault] if each
        ], f"{fault} of the {place}"


@contextmanager
def echo() -> Iterator[int]:
    """The port of a server that returns what it gets."""

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]


def asked(connection: socket.socket, due: str | None = "answered", times: int = 1) -> str:
    """The result of a request, or of several: `answered`, `silence`, `reset`. Silence is short."""
    connection.settimeout(0.3 if due == "silence" else 60.0)
    try:
        for _ in range(times):
            connection.sendall(b"x" * _SIZE)
            size = 0
            while size < _SIZE:
                if not (data := connection.recv(_SIZE)):
                    return "end"
                size += len(data)
    except TimeoutError:
        return "silence"
    except ConnectionError:
        return "reset"
    return "answered"


def fresh(port: int, due: str | None) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.3 if due == "silence" else 60.0) as connection:
            return asked(connection, due)
    except TimeoutError:
        return "silence"


def _main() -> None:
    found: dict[str, dict[str, tuple[str, str, str, str]]] = {place: {} for place in PLACES}
    with echo() as kafka, echo() as receiver:
        broken = Links({"subscribers": [receiver]}, [kafka], ["workers"], lambda client, service: "workers")
        ports = {"workers": kafka, "subscribers": receiver}
        for place, name in product(PLACES, RESULTS):
            first, new, last = RESULTS[name]
            (other,) = (port for each, port in ports.items() if each != place)
            with socket.create_connection(("127.0.0.1", ports[place])) as connection:
                assert asked(connection) == "answered"
                with broken.broken(place, FAULTS[name]):
                    during = asked(connection, first, 1_000 if name == "resets" else 1), fresh(ports[place], new)
                    beside = fresh(other, "answered")
                found[place][name] = *during, asked(connection, last), beside
        broken.close()
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
