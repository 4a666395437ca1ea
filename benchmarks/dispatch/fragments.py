"""Large messages to an old subscriber, whole and in parts; and one of 100 MB from end to end.

    python -m benchmarks.dispatch.fragments [--quick] [--json FILE]

The older system's test of large messages: 3,000 bytes beside 30,000, which it cut into ten parts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from arborcast.client import LegacyClient
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, TopicFilter
from benchmarks.dispatching import Dispatching, dispatching, percentile
from benchmarks.harness import Report, run
from tests.support.dispatch_process import ROOT
from tests.support.gateway_process import GatewayRun, gateway_run

# With the wrapper around a part ten of these are 30,000 bytes.
_TENTH = 3_500

# By what the publishers send: bytes, and in how many parts; and what the subscriber asks for.
_CASES: tuple[tuple[str, int, tuple[str, ...], int], ...] = (
    ("3,000 bytes, whole", 3_000, (), 0),
    ("30,000 bytes, whole", 30_000, (), 0),
    ("30,000 bytes, ten pushes", 30_000, (), _TENTH),
    ("30,000 bytes, published in ten parts", 30_000, ("--parts", "10"), 0),
    ("30,000 bytes, in ten messages", 30_000, ("--parts", "10", "--alone"), 0),
)


def measure(report: Report) -> None:
    seconds = 3.0 if report.quick else 10.0
    with TemporaryDirectory(prefix="arborcast-bench-") as name, dispatching() as bench:
        folder = Path(name)
        with gateway_run(folder / "gateway", bench.kafka) as gateway:
            rates = _Rates(bench, gateway, folder)
            rates.measure("warm", 1, 3_000, (), 0, 2.0)
            with report.table(
                "Ten times as large",
                *("case", "publishers", "sent", "messages/s", "pushes/s", "p50 ms", "lost"),
                note="one old subscriber; publishers send when they have their answer; ten parts may be delivered "
                "alone unless the gateway puts them together",
            ) as table:
                for publishers in (1, 16):
                    for case, size, parts, limit in _CASES:
                        table.add(case, publishers, *rates.measure(case, publishers, size, parts, limit, seconds))
            _hundred_megabytes(report, bench, gateway, folder)


class _Rates:
    def __init__(self, bench: Dispatching, gateway: GatewayRun, folder: Path) -> None:
        self._bench = bench
        self._gateway = gateway
        self._out = folder / "sent.json"
        self._count = 0

    def measure(
        self, case: str, publishers: int, size: int, parts: tuple[str, ...], limit: int, seconds: float
    ) -> tuple[int, float, float, float | None, int]:
        """Sent, messages/s, pushes/s, p50 in ms, lost."""
        self._count += 1
        topic, path = f"bench{self._count}", f"/s{self._count}"
        self._bench.control([SubscriptionRecord(self._subscription(path, topic, limit))])
        self._bench.clear()
        command = [sys.executable, "-m", "benchmarks.gateway.publishers", str(self._gateway.port), str(publishers)]
        command += [str(seconds), str(self._out), "--old", "--bytes", str(size), "--topic", f"{topic}/p", *parts]
        began = time.time()
        subprocess.run(command, check=True, cwd=ROOT)
        acknowledged: dict[str, float] = json.loads(self._out.read_text())["acknowledged"]
        pushes_each = 10 if limit or "--alone" in parts else 1
        pushed = self._pushed(path, len(acknowledged) * pushes_each)
        # A message in parts has come with the last of them.
        whole = [at for number, at in enumerate(sorted(pushed)) if number % pushes_each == pushes_each - 1]
        took_s = max(whole, default=began) - min(acknowledged.values(), default=began)
        begun = sorted(acknowledged.values())
        delays = [(at - sent) * 1e3 for at, sent in zip(whole, begun, strict=False)]
        # Parts of several publishers come mixed, and it is not seen which push was the last of which message.
        p50 = percentile(delays or [0.0], 0.5) if pushes_each == 1 or publishers == 1 else None
        lost = max(len(acknowledged) - len(whole), 0)
        rate = len(whole) / took_s if took_s else 0.0
        return len(acknowledged), rate, len(pushed) / took_s if took_s else 0.0, p50, lost

    def _subscription(self, path: str, topic: str, limit: int) -> Subscription:
        return Subscription(
            id=path.strip("/"),
            consumer=EndpointReference(f"{self._bench.receiver_url}{path}"),
            topics=(TopicFilter("", f"{topic}//.", f"{topic}//."),),
            form="legacy",
            policy=DeliveryPolicy(fragment_bytes=limit),
        )

    def _pushed(self, path: str, expected: int, quiet_s: float = 20.0) -> list[float]:
        """When each push came, once there are so many, or nothing new came for a while."""
        known, since = -1, time.monotonic()
        while True:
            with urllib.request.urlopen(f"{self._bench.receiver_url}/_received", timeout=60) as answer:  # noqa: S310  # our own receiver
                found = [float(at) for at, to, *_ in json.loads(answer.read()) if to == path]
            if len(found) != known:
                known, since = len(found), time.monotonic()
            if known >= expected or time.monotonic() - since > quiet_s:
                return found
            time.sleep(0.5)


def _hundred_megabytes(report: Report, bench: Dispatching, gateway: GatewayRun, folder: Path) -> None:
    size = 20_000_000 if report.quick else 100_000_000
    file = folder / "large.xml"
    with file.open("w") as out:
        out.write("<m>")
        for _ in range(size // 1_000_000):
            out.write("<v>some words</v>" * (1_000_000 // 17))
        out.write("</m>")
    came, got = threading.Event(), [0]

    def received(message: ReceivedMessage) -> None:
        assert message.file is not None
        with message.file:
            got[0] = message.file.seek(0, 2)
        came.set()

    peaks = _Peaks(
        {
            "gateway": lambda: [psutil.Process(gateway.pid)],
            "client": lambda: [psutil.Process()],
            "job, Python": lambda: [*bench.processes()["worker"], *bench.processes()["driver"]],
            "job, JVM": lambda: bench.processes()["jvm"],
        }
    )
    with Listener(received) as listener, LegacyClient(gateway.base) as client, file.open("rb") as content:
        client.subscribe("large", to=listener.url)
        with peaks:
            began = time.perf_counter()
            client.notify_in_parts("large", content)
            published_s = time.perf_counter() - began
            assert came.wait(180), "it did not come"
            took_s = time.perf_counter() - began
    note = f"in parts of 100,000 bytes that may be delivered alone; {got[0]} bytes came as one"
    with report.table(f"One message of {size // 1_000_000} MB", "what", "figure", note=note) as table:
        table.add("published, seconds", published_s)
        table.add("joined by the listener, seconds", took_s)
        for name, more in peaks.more().items():
            table.add(f"{name}: resident, MiB more than before", more)


class _Peaks:
    """How much more memory parts take meanwhile, at most."""

    def __init__(self, parts: dict[str, Callable[[], list[psutil.Process]]]) -> None:
        self._parts = parts
        self._before: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._before = self._now()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def more(self) -> dict[str, float]:
        """MiB, by part."""
        return {name: (most - self._before[name]) / 2**20 for name, most in self._most.items()}

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            for name, now in self._now().items():
                self._most[name] = max(now, self._most.get(name, 0))

    def _now(self) -> dict[str, int]:
        found = {}
        for name, processes in self._parts.items():
            found[name] = 0
            for process in processes():
                try:
                    found[name] += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        return found


if __name__ == "__main__":
    run(measure)
