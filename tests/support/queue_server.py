"""A server of a work queue as a process that can be killed: it writes down what it begins, then takes its time.

    python -m tests.support.queue_server PORT FILE SECONDS [CAPACITY]

FILE gets a line for each request when it is begun: the id, the number of the retransmission (0 for none), the payload.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from arborcast.client.listener import ReceivedMessage
from arborcast.client.queues.worker import Worker
from tests.support.held_port import HeldPort

ROOT = Path(__file__).parents[2]


class QueueServer:
    """The process, at an address that it keeps."""

    def __init__(self, file: Path, takes_s: float, capacity: int = 1) -> None:
        self.port = HeldPort().for_life_of(self)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.file = file
        self._arguments = (str(self.port), str(file), str(takes_s), str(capacity))
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> QueueServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.queue_server", *self._arguments],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "it ended"
        return self

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def begun(self) -> list[tuple[str, int, str]]:
        """What it has begun, in order: id, number of the retransmission, payload."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        # A line that a kill has cut off was not begun.
        parts = [line.split(" ", 2) for line in lines if line.endswith(">")]
        return [(name, int(sequence), payload) for name, sequence, payload in parts]


def main() -> None:
    """Serve until killed."""
    port, file, takes_s, capacity = sys.argv[1:5]
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(request: ReceivedMessage) -> bytes:
        os.write(out, f"{request.notification_id} {request.sequence} {request.payload.decode()}\n".encode())
        time.sleep(float(takes_s))
        return request.payload

    with Worker(handle, int(capacity), int(port)):
        print("ready", flush=True)
        time.sleep(100_000)


if __name__ == "__main__":
    main()
