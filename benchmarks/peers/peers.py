"""Side by side with what others use, in one run: the same publishers, receivers and checks for all.

    python -m benchmarks.peers.peers [--quick] [--json FILE]

Apache CXF's WS-Notification broker (in memory), over SOAP like us; Apache Camel as a bridge from Kafka to HTTP
(durable), from a Kafka log like us. Their jars are fetched at the first run. One that does not start is reported in its
rows, and the others go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, Table, run, warn
from benchmarks.peers.others import CamelRoutes, CxfBroker, running
from benchmarks.through_gateway import OUTCOME, Outcome, Rig, check, rig
from tests.support.broker import new_broker, settings_for
from tests.support.dispatch_process import ROOT

# Name, publishers, subscribers.
_CASES = (("1x1", 1, 1), ("16x1", 16, 1), ("8x10", 8, 10), ("8x50", 8, 50))
_RATES = (50, 500)
_BACKLOGS = (1, 10, 50)

_URL_CONNECTION = "-Dorg.apache.cxf.transport.http.forceURLConnection=true"

Run = Callable[[str, Sequence[str], int, float, float | None], Outcome]


def measure(report: Report) -> None:
    seconds = 2.0 if report.quick else 6.0
    columns = ("case", "system", *OUTCOME)
    soap = Table("throughput, SOAP in and SOAP out", columns, "publishers send when they have their answer; 800 bytes")
    light = Table("light load, one subscriber", columns, "open loop")
    log = Table("from a Kafka log to HTTP", columns, "messages of 800 bytes put into the log at once, or at 50/s")
    try:
        _ours(soap, light, log, seconds)
        for name, options in (("CXF", ()), ("CXF, URLConnection", (_URL_CONNECTION,))):
            _guarded(name, soap, partial(_cxf, name, options, soap, light, seconds))
        _guarded("Camel", log, lambda: _camel(log, seconds))
    finally:
        for table in (soap, light, log):
            # Cases beside each other, in the order in which they were measured within each.
            order = {case: place for place, case in enumerate(dict.fromkeys(row[0] for row in table.rows))}
            table.rows.sort(key=lambda row: order[row[0]])
            report.tables.append(table)
            print(table.render(), flush=True)


def _guarded(name: str, table: Table, action: Callable[[], None]) -> None:
    try:
        action()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        warn(f"{name}: {error}")
        table.add("-", f"{name}: failed, {str(error).splitlines()[0][:120]}", *[None] * len(OUTCOME))


def _ours(soap: Table, light: Table, log: Table, seconds: float) -> None:
    with rig() as running_rig:

        def one_topic(topic: str, paths: Sequence[str], publishers: int, time_s: float, rate: float | None) -> Outcome:
            running_rig.bench.subscribe([path[1:] for path in paths], topic=f"{{urn:t}}{topic}")
            return running_rig.run(paths, publishers, time_s, rate, topic=topic, one_topic=True)

        one_topic("warm", ["/warm"], 8, 3, None)
        _cases("Arborcast", one_topic, soap, light, seconds)
        for case, publishers, subscribers in _CASES[1:]:
            names = [f"own{case}-{number}" for number in range(subscribers)]
            running_rig.bench.subscribe(names, topic=f"{{urn:t}}own{case}//.")
            paths = [f"/{name}" for name in names]
            running_rig.run(paths, publishers, 1, 20, topic=f"own{case}/p")
            outcome = running_rig.run(paths, publishers, seconds, topic=f"own{case}/p")
            soap.add(case, "Arborcast, a topic each", *outcome.cells())
        _ours_from_log(running_rig, log, seconds)


def _cases(system: str, one_topic: Run, soap: Table, light: Table, seconds: float) -> None:
    for case, publishers, subscribers in _CASES:
        paths = [f"/c{case}-{number}" for number in range(subscribers)]
        soap.add(case, system, *one_topic(f"case{case}", paths, publishers, seconds, None).cells())
    for rate in _RATES:
        light.add(f"{rate}/s", system, *one_topic(f"rate{rate}", [f"/r{rate}"], 8, seconds, rate).cells())


def _cxf(name: str, options: Sequence[str], soap: Table, light: Table, seconds: float) -> None:
    with (
        _receiver() as url,
        TemporaryDirectory(prefix="arborcast-bench-") as folder,
        running(lambda place: CxfBroker(place, *options)) as broker,
    ):
        assert isinstance(broker, CxfBroker)

        def one_topic(topic: str, paths: Sequence[str], publishers: int, time_s: float, rate: float | None) -> Outcome:
            for path in paths:
                broker.subscribe(f"{url}{path}", topic)
            _clear(url)
            out = Path(folder) / "sent.json"
            command = [sys.executable, "-m", "benchmarks.gateway.publishers", str(broker.port), str(publishers)]
            command += [str(time_s), str(out), "--topic", topic, "--one-topic"]
            subprocess.run([*command, *(["--rate", str(rate)] if rate else [])], check=True, cwd=ROOT, timeout=300)
            told = json.loads(out.read_text())
            arrived = _arrivals(url, set(paths), len(told["acknowledged"]) * len(paths))
            outcome = check(told["acknowledged"], arrived, paths)
            outcome.refused = told["refused"]
            return outcome

        one_topic("warm", ["/warm"], 8, 3, None)
        _cases(name, one_topic, soap, light, seconds)


def _ours_from_log(running_rig: Rig, log: Table, seconds: float) -> None:
    kafka, url = running_rig.bench.kafka, running_rig.bench.receiver_url

    def encode(topic: str, lane: int, mark: str) -> tuple[bytes, bytes]:
        path = TopicPath(f"{{urn:t}}{topic}/p{lane}")
        return notifications.encode(Notification(mark, path, _payload(mark), int(time.time() * 1000)))

    def prepare(topic: str, paths: Sequence[str]) -> None:
        running_rig.bench.subscribe([path[1:] for path in paths], topic=f"{{urn:t}}{topic}//.", form="raw")

    _from_log("Arborcast, raw form", log, kafka, kafka.topic("notifications"), url, encode, prepare, seconds)


def _camel(log: Table, seconds: float) -> None:
    with TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as folder, _receiver() as url:
        broker = new_broker(Path(folder) / "kafka")
        broker.start()
        try:
            kafka = KafkaSettings(bootstrap_servers=settings_for(broker).bootstrap_servers, partitions=4)
            for subscribers in _BACKLOGS:
                # An engine's own notifications log, with its partitions, under another prefix.
                own = KafkaSettings(
                    bootstrap_servers=kafka.bootstrap_servers, partitions=4, prefix=f"camel{subscribers}."
                )
                ensure_topics(own)
                topic = own.topic("notifications")
                paths = [f"/backlog{subscribers}-{number}" for number in range(subscribers)]
                urls = [f"{url}{path}" for path in paths]
                consumers = 4 if subscribers == 1 else 1

                with running(partial(_routes, kafka.bootstrap_servers, topic, urls, consumers)):
                    _warm(own, topic, url, paths)
                    _from_log("Camel", log, own, topic, url, _plain, lambda *_: None, seconds, (subscribers,))
        finally:
            broker.kill()


def _routes(servers: str, topic: str, urls: Sequence[str], consumers: int, place: Path) -> CamelRoutes:
    return CamelRoutes(place, servers, topic, urls, consumers)


def _from_log(
    system: str,
    log: Table,
    kafka: KafkaSettings,
    topic: str,
    url: str,
    encode: Callable[[str, int, str], tuple[bytes, bytes]],
    prepare: Callable[[str, Sequence[str]], None],
    seconds: float,
    backlogs: Sequence[int] = _BACKLOGS,
) -> None:
    for subscribers in backlogs:
        name = f"backlog{subscribers}"
        paths = [f"/{name}-{number}" for number in range(subscribers)]
        prepare(name, paths)
        # The same work for each case, whatever its width: so many pushes in all.
        count = int(2_500 * seconds / (1 if subscribers == 1 else subscribers / 2))
        log.add(f"backlog, {subscribers} subscribers", system, *_put(kafka, topic, url, paths, encode, name, count))
        if subscribers == 1:
            rate = 50.0
            cells = _put(kafka, topic, url, paths, encode, name, int(rate * seconds), rate)
            log.add(f"{rate:.0f}/s, 1 subscriber", system, *cells)


def _put(
    kafka: KafkaSettings,
    topic: str,
    url: str,
    paths: Sequence[str],
    encode: Callable[[str, int, str], tuple[bytes, bytes]],
    name: str,
    count: int,
    rate: float | None = None,
) -> tuple[int | float | None, ...]:
    """Append so many, at once or at a rate, and see what arrives."""
    _clear(url)
    producer = make_producer(kafka, linger_ms=0 if rate else 5)
    sent: dict[str, float] = {}
    began = time.time()
    for number in range(count):
        lane = number % 8
        mark = f"{lane:03d}-{number:08d}"
        due = began + number / rate if rate else began
        if (delay := due - time.time()) > 0:
            time.sleep(delay)
        key, value = encode(name, lane, mark)
        producer.send(topic, key=key, value=value)
        sent[mark] = due
    producer.flush()
    producer.close(timeout=5)
    return check(sent, _arrivals(url, set(paths), count * len(paths)), paths).cells()


def _warm(kafka: KafkaSettings, topic: str, url: str, paths: Sequence[str]) -> None:
    """Until each route has pushed something: its group has found its partitions then."""
    deadline = time.monotonic() + 90
    number = 0
    reached: set[str] = set()
    while reached != set(paths):
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(reached)} of {len(paths)} routes have pushed anything within 90 s")
        producer = make_producer(kafka)
        for lane in range(8):
            key, value = _plain("warm", lane, f"{900 + lane}-{number:08d}")
            producer.send(topic, key=key, value=value)
        producer.flush()
        producer.close(timeout=5)
        number += 1
        time.sleep(0.5)
        reached |= {path for _, path, _ in _marks(url)} & set(paths)
    # What is still on its way must not be counted later.
    count = -1
    while count != len(_marks(url)):
        count = len(_marks(url))
        time.sleep(1.0)


def _plain(_topic: str, lane: int, mark: str) -> tuple[bytes, bytes]:
    return f"p{lane}".encode(), _payload(mark)


def _payload(mark: str) -> bytes:
    return f'<b:m xmlns:b="urn:bench" mark="{mark}">{"x" * 740}</b:m>'.encode()


@contextmanager
def _receiver() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.receiver", "--marks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0].rstrip("/")
    finally:
        process.kill()
        process.wait()


def _arrivals(url: str, paths: set[str], expected: int, quiet_s: float = 15.0) -> list[tuple[float, str, str]]:
    """What came to these paths, once there is as much as expected or nothing more comes."""
    known, since = -1, time.monotonic()
    while True:
        received = [each for each in _marks(url) if each[1] in paths]
        count = sum(each[2].count(",") + 1 for each in received)
        if count != known:
            known, since = count, time.monotonic()
        if count >= expected or time.monotonic() - since > quiet_s:
            return received
        time.sleep(0.3)


def _marks(url: str) -> list[tuple[float, str, str]]:
    with urllib.request.urlopen(f"{url}/_marks", timeout=60) as response:  # noqa: S310
        answer: list[tuple[float, str, str]] = json.loads(response.read())
        return answer


def _clear(url: str) -> None:
    with urllib.request.urlopen(f"{url}/_clear", timeout=60) as response:  # noqa: S310
        response.read()


if __name__ == "__main__":
    run(measure)
