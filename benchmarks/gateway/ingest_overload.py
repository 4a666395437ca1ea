"""A gateway under attack: python -m benchmarks.gateway.ingest_overload [--seconds S] [--json FILE]

A gateway process over a real Kafka, and how long `/health/live` takes and how much memory the process has before,
during and after

    slow        150 connections that send 4 MB less a byte, and hold it
    tiny        six at a time: bodies of 4 MB of the smallest elements, which are refused
    dense       six at a time: bodies with as many elements as are taken
    messages    six at a time: bodies of 4 MB of the smallest messages
    overload    ten times the Notifys per second that it accepts, from 200 connections

While they go on, an honest publisher sends a Notify every 50 ms, and what became of these is told too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support import soap_messages as soap
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run

_BODY = 4 * 1024 * 1024
_START = b"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
_SMALL = soap.envelope(soap.notify(soap.message()))
# Until the memory is given back.
_REST_S = 14.0


def _post(body: bytes) -> bytes:
    return _START % len(body) + body


def _filled(unit: str, size: int = _BODY - 1_000) -> bytes:
    return soap.envelope(soap.notify(soap.message(payload=f"<a>{unit * (size // len(unit))}</a>")))


def _bodies() -> dict[str, bytes]:
    each = soap.message("t:a", "<a/>")
    return {
        "tiny": _filled("<b/>"),
        "dense": _filled("<b>12345678901</b>", 199_000 * 18),
        "messages": soap.envelope(soap.notify(*[each] * ((_BODY - 1_000) // len(each)))),
    }


@dataclass
class Watch:
    """What `/health/live`, an honest publisher and the process's memory do, from threads of their own."""

    run: GatewayRun
    health_ms: list[float] = field(default_factory=list)
    notify_ms: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._process = psutil.Process(self.run.pid)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._ask, self._publish, self._weigh)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        # A new connection each time, as whoever supervises it makes one.
        while not self._over.wait(0.05):
            self.health_ms.append(_timed(self.run.port, b"GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n")[0])

    def _publish(self) -> None:
        while not self._over.wait(0.05):
            took, status = _timed(self.run.port, _post(_SMALL))
            self.notify_ms.append(took)
            self.statuses[status] += 1

    def _weigh(self) -> None:
        while not self._over.wait(0.02):
            self.memory.append(self._process.memory_info().rss)

    def figures(self) -> dict[str, object]:
        """Of the time so far."""
        return {
            "health_median_ms": round(_rank(self.health_ms, 0.5), 1),
            "health_p99_ms": round(_rank(self.health_ms, 0.99), 1),
            "health_worst_ms": round(max(self.health_ms), 1),
            "notify_p99_ms": round(_rank(self.notify_ms, 0.99), 1),
            "notify": dict(self.statuses),
            "memory_most_mb": max(self.memory) >> 20,
            "memory_end_mb": self.memory[-1] >> 20,
        }


def _rank(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _timed(port: int, sent: bytes) -> tuple[float, str]:
    began = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
            one.sendall(sent)
            status = one.recv(4_096)[9:12].decode()
    except OSError as error:
        status = type(error).__name__
    return 1_000 * (time.perf_counter() - began), status


def _asked(one: socket.socket, sent: bytes) -> str:
    """One request on a connection; the status of its answer, empty when the connection is over."""
    one.sendall(sent)
    answer = one.recv(65_536)
    return answer[9:12].decode() if b"connection: close" not in answer.lower() else ""


def _slow(port: int, seconds: float) -> dict[str, object]:
    whole = _post(_filled("x"))
    let_go = 0
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(150)
        ]
        for one in connections:
            one.setblocking(False)
        left = dict.fromkeys(connections, memoryview(whole)[:-1])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for one, rest in list(left.items()):
                try:
                    if rest:
                        left[one] = rest[one.send(rest) :]
                    elif not one.recv(4_096):
                        raise ConnectionError
                    else:
                        let_go += 1
                        del left[one]
                except BlockingIOError:
                    continue
                except OSError:
                    let_go += 1
                    del left[one]
            time.sleep(0.01)
        sent = sum(not rest for rest in left.values())
    return {"let_go": let_go, "held_at_the_end": sent}


def _together(port: int, seconds: float, body: bytes, connections: int) -> dict[str, object]:
    """As many at a time as there are connections, again and again."""
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds
    sent = _post(body)

    def one_client() -> None:
        while time.monotonic() < until:
            statuses[_timed(port, sent)[1]] += 1

    _in_threads(one_client, connections)
    return {"statuses": dict(statuses)}


def _in_threads(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _accepted_per_s(port: int, seconds: float) -> float:
    """What it takes of eight connections that each wait for their answers."""
    counted: Counter[str] = Counter()
    until = time.monotonic() + seconds

    def one_client() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
            while time.monotonic() < until:
                counted[_asked(one, _post(_SMALL))] += 1

    _in_threads(one_client, 8)
    return counted["202"] / seconds


def _overload(port: int, seconds: float) -> dict[str, object]:
    """Each of 200 connections sends at its part of ten times the rate, whatever has been answered so far."""
    rate = _accepted_per_s(port, min(seconds, 5.0))
    counted: Counter[str] = Counter()
    clients, offered = 200, 10 * rate
    request = _post(_SMALL)
    with contextlib.ExitStack() as stack:
        connections = {
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)): 0 for _ in range(clients)
        }
        for one in connections:
            one.setblocking(False)
        began = time.monotonic()
        until = began + seconds
        waiting = dict.fromkeys(connections, b"")
        while (now := time.monotonic()) < until:
            due = int((now - began) * offered / clients)
            for one in list(waiting):
                try:
                    if not waiting[one] and connections[one] < due:
                        # What should have gone by now goes together; more than the gateway takes ahead would be
                        # answered by the end of the connection.
                        count = min(due - connections[one], 16)
                        waiting[one], connections[one] = request * count, connections[one] + count
                    if waiting[one]:
                        waiting[one] = waiting[one][one.send(waiting[one]) :]
                    answers = one.recv(65_536)
                    counted["202"] += answers.count(b"HTTP/1.1 202")
                    counted["503"] += answers.count(b"HTTP/1.1 503")
                    if not answers:
                        raise ConnectionError
                except BlockingIOError:
                    continue
                except OSError:
                    counted["connections that ended"] += 1
                    del waiting[one]
    sent = sum(connections.values())
    return {"accepted_per_s_alone": round(rate), "offered_per_s": round(sent / seconds), "statuses": dict(counted)}


@contextlib.contextmanager
def _gateway(folder: Path) -> Iterator[GatewayRun]:
    broker = new_broker(folder / "kafka")
    try:
        broker.start()
        with gateway_run(folder / "gateway", settings_for(broker)) as run:
            yield run
    finally:
        broker.kill()


def measure(run: GatewayRun, seconds: float, only: list[str]) -> dict[str, dict[str, object]]:
    """The figures of each attack, by name."""
    attacks: dict[str, Callable[[], dict[str, object]]] = {"slow": lambda: _slow(run.port, seconds)}
    for name, body in _bodies().items():
        attacks[name] = lambda body=body: _together(run.port, seconds, body, 6)  # type: ignore[misc]  # bound at once
    attacks["overload"] = lambda: _overload(run.port, seconds)
    with Watch(run) as before:
        time.sleep(5.0)
    found: dict[str, dict[str, object]] = {"before": before.figures()}
    for name in only or attacks:
        with Watch(run) as during:
            became = attacks[name]()
        with Watch(run) as after:
            time.sleep(_REST_S)
        found[name] = during.figures() | became | {"memory_after_mb": after.figures()["memory_end_mb"]}
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", nargs="*", help="only these")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each attack goes on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _gateway(Path(folder)) as run:
        found = measure(run, options.seconds, options.attack)
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
