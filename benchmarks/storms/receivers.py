"""The receivers of a storm in a separate process, each with its own port and behaviour.

    python -m benchmarks.storms.receivers FILE NAME ...        (FILE `-`: nothing is recorded)

prints one line of JSON, the port of each. Reads lines from its standard input, and exits at its end: `NAME BEHAVIOUR`
as in tests.support.receiver, or `refuse` (it stops listening) or `well`. Arrivals are appended to FILE.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.storms.record import Arrival, append
from tests.support.receiver import Received, Receiver

_MARK = re.compile(rb'mark="([^"]*)"')
_REFUSED_FOR_GOOD = "status/400"

# With these the receiver does not confirm a message. A status 200 confirms it, whatever follows: a body, or more
# headers, byte by byte, or the end of the connection.
_OPEN = frozenset({"status", "retry-after", "hang", "drop", "reset", "garbage"})


def arrival(name: str, request: Received) -> Arrival:
    """A request as an arrival of the record."""
    kind, _, argument = request.behaviour.partition("/")
    marks = tuple(mark.decode("ascii") for mark in _MARK.findall(request.body))
    # A refusal of several messages does not name the refused one.
    refused = request.behaviour == _REFUSED_FOR_GOOD and len(marks) == 1
    settled: float | None = None
    if refused or kind not in _OPEN:
        settled = request.at + (float(argument) if kind == "slow" else 0.0)
    return Arrival(
        name, request.at, marks, int(request.headers.get("arborcast-attempt", "0")), request.behaviour, settled, refused
    )


class Receivers:
    """The process of receivers, a context manager."""

    def __init__(self, file: Path, names: list[str]) -> None:
        self._command = [sys.executable, "-m", "benchmarks.storms.receivers", str(file), *names]
        self._process: subprocess.Popen[str] | None = None
        self._ports: dict[str, int] = {}
        file.touch()

    def __enter__(self) -> Receivers:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert self._process.stdout is not None
        self._ports = json.loads(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate(timeout=30)

    def url(self, name: str) -> str:
        """The address of a receiver."""
        return f"http://127.0.0.1:{self._ports[name]}/in"

    def behave(self, name: str, behaviour: str) -> None:
        """Set the behaviour of a receiver."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {behaviour}\n")
        self._process.stdin.flush()


def _main() -> None:
    file, names = Path(sys.argv[1]), sys.argv[2:]

    def note(name: str, request: Received) -> None:
        append(file, arrival(name, request))

    with ExitStack() as stack:
        receivers = {name: Receiver(on_received=partial(note, name)) for name in names}
        refusing: dict[str, socket.socket] = {}
        for receiver in receivers.values():
            receiver.start()
            stack.callback(receiver.stop)
        print(json.dumps({name: receiver.port for name, receiver in receivers.items()}), flush=True)
        for line in sys.stdin:
            name, behaviour = line.split()
            if behaviour == "refuse":
                if name not in refusing:
                    receivers[name].stop()
                    # Without a listening socket connections are refused; the port stays reserved.
                    refusing[name] = socket.socket()
                    refusing[name].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    refusing[name].bind(("127.0.0.1", receivers[name].port))
                continue
            receivers[name].behave("/in", behaviour)
            if name in refusing:
                refusing.pop(name).close()
                receivers[name].start()


if __name__ == "__main__":
    _main()
