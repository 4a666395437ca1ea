"""Comparison with other software in one run: the same publishers, receivers and checks for all.

    python -m benchmarks.peers.peers [CASE ...]

Cases: systems, prototype (a bare dispatch job). The systems: Apache CXF's WS-Notification broker (in memory), from SOAP
to SOAP; Apache Camel as a bridge from Kafka to HTTP (durable). Their jars are fetched at the first run. A system that
does not start is reported in its rows, and the others are measured. Without cases: systems.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from benchmarks.load import Traffic, send
from benchmarks.peers.others import CamelRoutes, CxfBroker, running
from benchmarks.peers.prototype import beside_prototype
from benchmarks.report import Report, Table, run, wait_for, warn
from benchmarks.rig import OUTCOME, Outcome, Rig, payload, rig

# Name, publishers, subscribers.
_CASES = (("1x1", 1, 1), ("16x1", 16, 1), ("8x10", 8, 10), ("8x50", 8, 50))
_RATES = (50.0, 500.0)
_BACKLOGS = (1, 10, 50)
_LANES = 8

_URL_CONNECTION = "-Dorg.apache.cxf.transport.http.forceURLConnection=true"

# Topic, paths of the subscribers, traffic.
Run = Callable[[str, Sequence[str], Traffic], Outcome]
Encode = Callable[[int, str], tuple[bytes, bytes]]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))


def measure(report: Report) -> None:
    for case in report.options.cases or ["systems"]:
        CASES[case](report)


def _systems(report: Report) -> None:
    seconds = 2.0 if report.quick else 6.0
    columns = ("case", "system", *OUTCOME)
    soap = Table("throughput, SOAP in and SOAP out", columns, "publishers send when they have their answer; 800 bytes")
    light = Table("light load, one subscriber", columns, "open loop")
    log = Table("from a Kafka log to HTTP", columns, "messages of 800 bytes put into the log at once, or at 50/s")
    try:
        _guarded("Arborcast", soap, lambda: _ours(soap, light, log, seconds))
        for name, options in (("CXF", ()), ("CXF, URLConnection", (_URL_CONNECTION,))):
            _guarded(name, soap, partial(_cxf, name, options, soap, light, seconds))
        _guarded("Camel", log, lambda: _camel(log, seconds))
    finally:
        for table in (soap, light, log):
            # Systems beside each other, cases in the order in which they were measured.
            order = {case: place for place, case in enumerate(dict.fromkeys(row[0] for row in table.rows))}
            table.rows.sort(key=lambda row: order[row[0]])
            report.tables.append(table)
            print(table.render(), flush=True)


def _guarded(name: str, table: Table, action: Callable[[], None]) -> None:
    try:
        action()
    except (RuntimeError, OSError, AssertionError) as error:
        warn(f"{name}: {error}")
        table.add("-", f"{name}: failed, {str(error).splitlines()[0][:120]}", *[None] * len(OUTCOME))


def _ours(soap: Table, light: Table, log: Table, seconds: float) -> None:
    with rig(gateway=True) as bench:

        def one_topic(topic: str, paths: Sequence[str], traffic: Traffic) -> Outcome:
            bench.subscribe([path[1:] for path in paths], f"{{urn:t}}{topic}")
            return bench.publish(paths, replace(traffic, topic=topic, one_topic=True))

        one_topic("warm", ["/warm"], Traffic(0, 8, 3))
        _cases("Arborcast", one_topic, soap, light, seconds)
        for case, publishers, subscribers in _CASES[1:]:
            paths = bench.subscribe([f"own{case}-{each}" for each in range(subscribers)], f"{{urn:t}}own{case}//.")
            traffic = Traffic(0, publishers, seconds, topic=f"own{case}/p")
            bench.publish(paths, replace(traffic, seconds=1, rate=20))
            soap.add(case, "Arborcast, a topic each", *bench.publish(paths, traffic).cells())

        def encode(topic: str, number: int, mark: str) -> tuple[bytes, bytes]:
            path = TopicPath(f"{{urn:t}}{topic}/p{number % _LANES}")
            return notifications.encode(Notification(mark, path, payload(mark), int(time.time() * 1000)))

        for subscribers in _BACKLOGS:
            name = f"backlog{subscribers}"
            paths = [f"/{name}-{number}" for number in range(subscribers)]
            bench.subscribe([path[1:] for path in paths], f"{{urn:t}}{name}//.", "raw")
            own = bench.kafka.topic("notifications")
            _from_log(bench, "Arborcast, raw form", log, own, paths, partial(encode, name), seconds)


def _cases(system: str, one_topic: Run, soap: Table, light: Table, seconds: float) -> None:
    for case, publishers, subscribers in _CASES:
        paths = [f"/c{case}-{number}" for number in range(subscribers)]
        soap.add(case, system, *one_topic(f"case{case}", paths, Traffic(0, publishers, seconds)).cells())
    for rate in _RATES:
        outcome = one_topic(f"rate{rate:g}", [f"/r{rate:g}"], Traffic(0, 8, seconds, rate))
        light.add(f"{rate:g}/s", system, *outcome.cells())


def _cxf(name: str, options: Sequence[str], soap: Table, light: Table, seconds: float) -> None:
    with rig(job=False) as bench, running(lambda place: CxfBroker(place, *options)) as broker:
        assert isinstance(broker, CxfBroker)

        def one_topic(topic: str, paths: Sequence[str], traffic: Traffic) -> Outcome:
            for path in paths:
                broker.subscribe(f"{bench.receiver.url}{path}", topic)
            bench.receiver.clear()
            sent = send(replace(traffic, port=broker.port, topic=topic, one_topic=True))
            return bench.checked(sent, paths, bench.cpu())

        one_topic("warm", ["/warm"], Traffic(0, 8, 3))
        _cases(name, one_topic, soap, light, seconds)


def _camel(log: Table, seconds: float) -> None:
    with rig(job=False) as bench:
        for subscribers in _BACKLOGS:
            # A notifications log of its own, with as many partitions as the engine's.
            own: KafkaSettings = replace(bench.kafka, prefix=f"camel{subscribers}.")
            ensure_topics(own)
            paths = [f"/backlog{subscribers}-{number}" for number in range(subscribers)]
            urls = [f"{bench.receiver.url}{path}" for path in paths]
            start = partial(_routes, own, urls, 4 if subscribers == 1 else 1)
            with running(start):
                _warm(bench, own, paths)
                _from_log(bench, "Camel", log, own.topic("notifications"), paths, _plain, seconds)


def _routes(kafka: KafkaSettings, urls: Sequence[str], consumers: int, place: Path) -> CamelRoutes:
    return CamelRoutes(place, kafka.bootstrap_servers, kafka.topic("notifications"), urls, consumers)


def _plain(number: int, mark: str) -> tuple[bytes, bytes]:
    return f"p{number % _LANES}".encode(), payload(mark)


def _warm(bench: Rig, kafka: KafkaSettings, paths: Sequence[str]) -> None:
    """Wait until each route has pushed a message: then its group has its partitions."""

    def reached() -> bool:
        bench.append_encoded(kafka.topic("notifications"), _plain, "9", _LANES)
        return {each.path for each in bench.receiver.arrivals(1, 1.0)} >= set(paths)

    wait_for(reached, "all routes push", 90, 0.5)
    bench.receiver.arrivals(1 << 30, 3.0)  # the messages in flight


def _from_log(
    bench: Rig, system: str, log: Table, topic: str, paths: Sequence[str], encode: Encode, seconds: float
) -> None:
    subscribers = len(paths)
    # About as many pushes in each case, whatever its width.
    count = int(2_500 * seconds / (1 if subscribers == 1 else subscribers / 2))
    cases: list[tuple[str, int, float | None]] = [(f"backlog, {subscribers} subscribers", count, None)]
    if subscribers == 1:
        cases.append(("50/s, 1 subscriber", int(50 * seconds), 50.0))
    for case, number, rate in cases:
        bench.receiver.clear()
        sent = bench.append_encoded(topic, encode, "0", number, rate)
        log.add(case, system, *bench.delivered(sent, paths, _LANES).cells())


CASES = {"systems": _systems, "prototype": beside_prototype}

if __name__ == "__main__":
    run(measure, options)
