"""The receivers of a storm, in a process of their own: each listens on its own port and can misbehave or go away.

    python -m tests.chaos._receivers FILE NAME ...

prints one line of JSON, the port of each. Reads lines from its standard input: `NAME BEHAVIOUR` as in
tests.support.receiver, or `refuse` (it stops listening) or `well`; ends with it. What arrives is appended to FILE.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.chaos._record import Arrival, append
from tests.support.receiver import Received, Receiver

_MARK = re.compile(rb'mark="([^"]*)"')
_REFUSED_FOR_GOOD = ("status/400",)
_TAKEN = ("status/200", "status/202")


def arrival(name: str, request: Received) -> Arrival:
    """A request in the record's words."""
    kind, _, argument = request.behaviour.partition("/")
    settled: float | None = None
    if request.behaviour in ("", "well", *_TAKEN, *_REFUSED_FOR_GOOD) or kind in ("stale", "drip", "drip-headers"):
        # A dripping answer is a 200 whatever comes after it, once the status line is there.
        settled = request.at if kind != "drip-headers" else None
    elif kind == "slow":
        settled = request.at + float(argument)
    return Arrival(
        name,
        request.at,
        tuple(mark.decode("ascii") for mark in _MARK.findall(request.body)),
        int(request.headers.get("arborcast-attempt", "0")),
        request.behaviour,
        settled,
        request.behaviour in _REFUSED_FOR_GOOD,
    )


class Receivers:
    """The process, seen from the storm. A context manager."""

    def __init__(self, file: Path, names: list[str]) -> None:
        self._command = [sys.executable, "-m", "tests.chaos._receivers", str(file), *names]
        self._process: subprocess.Popen[str] | None = None
        self._ports: dict[str, int] = {}
        file.touch()

    def __enter__(self) -> Receivers:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self._ports = json.loads(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate(timeout=30)

    def url(self, name: str) -> str:
        """Where a receiver is pushed to."""
        return f"http://127.0.0.1:{self._ports[name]}/in"

    def behave(self, name: str, behaviour: str) -> None:
        """From now on."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {behaviour}\n")
        self._process.stdin.flush()


def _main() -> None:
    file, names = Path(sys.argv[1]), sys.argv[2:]
    with ExitStack() as stack:
        receivers = {
            name: Receiver(on_received=lambda request, name=name: append(file, arrival(name, request)))  # type: ignore[misc]
            for name in names
        }
        listening = set(names)
        for receiver in receivers.values():
            receiver.start()
            stack.callback(receiver.stop)
        print(json.dumps({name: receiver.port for name, receiver in receivers.items()}), flush=True)
        for line in sys.stdin:
            name, behaviour = line.split()
            if behaviour == "refuse":
                if name in listening:
                    receivers[name].stop()
                    listening.discard(name)
                continue
            receivers[name].behave("/in", behaviour)
            if name not in listening:
                receivers[name].start()
                listening.add(name)


if __name__ == "__main__":
    _main()
