"""Over one link to another engine: the rate beside that of local delivery, and the latency that it adds.

    python -m benchmarks.operation.federation [--quick] [--json FILE]

Two engines, one in each of two groups, with a broker between them: each with a gateway and a job. The same messages go
to a subscriber at the engine where they are published, and to one at the other. Asked: above 460 a second, which the
older system had within one broker. Every message has to arrive at both, and in order at the other.

Then two engines of one group: messages by turns on a topic that is confirmed and on one that says fast. Of the latter
some may be lost.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.client import Client
from arborcast.dispatch.delivery.envelope import ID_HEADER
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from benchmarks.dispatching import percentile
from benchmarks.harness import Report, run
from tests.support.broker import new_broker, settings_for
from tests.support.federation import EngineRun, carried, federation, until
from tests.support.receiver import Receiver

_HERE, _THERE, _GROUP = "/here", "/there", "/group"

_SURE, _FAST = TopicPath("load/sure"), TopicPath("load/fast")

# A datagram that has not come by then is lost.
_LOST_S = 10.0

_TOGETHER = 100


def measure(report: Report) -> None:
    rate, seconds, burst = (50.0, 5.0, 1_000) if report.quick else (100.0, 30.0, 20_000)
    with TemporaryDirectory() as folder, Receiver(keep_bodies=False) as receiver:
        broker = new_broker(Path(folder) / "broker")
        broker.start()
        kafka = settings_for(broker)
        try:
            with federation(Path(folder) / "engines", kafka, ["G/a", "H/b"], jobs=True) as (_, (a, b)):
                _subscribe(a, receiver.url(_HERE))
                _subscribe(b, receiver.url(_THERE))
                sent = _warm(a, receiver)
                sent |= _steadily(report, a, receiver, rate, seconds)
                _burst(report, a, receiver, burst, len(sent))
            kafka = dataclasses.replace(kafka, prefix=f"{kafka.prefix}group.")
            names = ["G/a", "G/b"]
            with federation(Path(folder) / "group", kafka, names, jobs=True, datagrams=True) as (_, (a, b)):
                _subscribe(b, receiver.url(_GROUP))
                _both_ways(report, a, receiver, rate, seconds)
        finally:
            broker.kill()


def _warm(engine: EngineRun, receiver: Receiver) -> dict[str, float]:
    """Until the link carries what is published; both jobs have seen some."""
    sent: dict[str, float] = {}
    with Client(engine.gateway.broker) as client:

        def arrives() -> bool:
            sent[client.notify("load/x", "<x/>")] = time.time()
            return bool(_arrived(receiver, _THERE))

        until(arrives)
        for _ in range(200):
            sent[client.notify("load/x", "<x/>")] = time.time()
    time.sleep(5)
    return sent


def _steadily(report: Report, engine: EngineRun, receiver: Receiver, rate: float, seconds: float) -> dict[str, float]:
    sent: dict[str, float] = {}
    with Client(engine.gateway.broker) as client:
        began = time.time()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.time()))
            at = time.time()
            sent[client.notify("load/x", "<x/>")] = at
    columns = ("subscriber", "p50 ms", "p99 ms", "lost", "twice")
    with report.table(f"{rate:g}/s for {seconds:g} s, one by one", *columns) as table:
        for path, name in ((_HERE, "at the same engine"), (_THERE, "at the other engine")):
            arrived = _all_of(receiver, path, sent.keys())
            first = _first(arrived)
            delays = [(first[each] - at) * 1e3 for each, at in sent.items()]
            twice = sum(each in sent for each, _ in arrived) - len(sent)
            table.add(name, percentile(delays, 0.5), percentile(delays, 0.99), 0, twice)
    return sent


def _burst(report: Report, engine: EngineRun, receiver: Receiver, count: int, before: int) -> None:
    sent: list[str] = []
    began = time.time()
    with Client(engine.gateway.broker) as client:
        for _ in range(count // _TOGETHER):
            sent += client.notify_all([("load/x", "<x/>")] * _TOGETHER)
    took = time.time() - began
    columns = ("where", "messages", "seconds", "messages/s", "twice", "out of order")
    with report.table(f"{count:,} at once", *columns) as table:
        table.add("accepted", count, took, count / took, 0, 0)
        wanted = set(sent)
        for path, name in ((_HERE, "at the same engine"), (_THERE, "at the other engine")):
            arrived = [(each, at) for each, at in _all_of(receiver, path, wanted) if each in wanted]
            first = _first(arrived)
            span = max(first.values()) - began
            order = list(first)
            disorder = sum(one != two for one, two in zip(order, sent, strict=True))
            table.add(name, count, span, count / span, len(arrived) - count, disorder)


def _both_ways(report: Report, engine: EngineRun, receiver: Receiver, rate: float, seconds: float) -> None:
    until(lambda: bool(carried(engine, "peer-fast.b") and carried(engine, "peer-b")))
    with closing(ControlLog(engine.kafka)) as log:
        log.append([TopicRecord(_FAST, policy=TopicPolicy(routing="group fast")), TopicRecord(_SURE)])
    with Client(engine.gateway.broker) as client:

        def arrives() -> bool:
            warm = {client.notify(topic, "<x/>") for topic in (_SURE, _FAST)}
            time.sleep(0.1)
            return warm <= _first(_arrived(receiver, _GROUP)).keys()

        until(arrives)
        sent: dict[str, dict[str, float]] = {_SURE: {}, _FAST: {}}
        began = time.time()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.time()))
            topic, at = (_SURE, _FAST)[number % 2], time.time()
            sent[topic][client.notify(topic, "<x/>")] = at
    _all_of(receiver, _GROUP, sent[_SURE].keys())
    deadline = time.time() + _LOST_S
    while not sent[_FAST].keys() <= _first(_arrived(receiver, _GROUP)).keys() and time.time() < deadline:
        time.sleep(0.1)
    first = _first(_arrived(receiver, _GROUP))
    columns = ("way", "messages", "p50 ms", "p99 ms", "lost")
    with report.table(f"Within a group, {rate:g}/s for {seconds:g} s, one by one", *columns) as table:
        for topic, way in ((_SURE, "confirmed"), (_FAST, "datagrams")):
            delays = [(first[each] - at) * 1e3 for each, at in sent[topic].items() if each in first]
            lost = len(sent[topic]) - len(delays)
            table.add(way, len(sent[topic]), percentile(delays, 0.5), percentile(delays, 0.99), lost)


def _subscribe(engine: EngineRun, url: str) -> None:
    with Client(engine.gateway.broker) as client:
        client.subscribe("load//.", to=url)


def _all_of(receiver: Receiver, path: str, wanted: Set[str]) -> Sequence[tuple[str, float]]:
    """What has arrived, once all of these have."""
    until(lambda: wanted <= _first(_arrived(receiver, path)).keys(), timeout=1_200)
    return _arrived(receiver, path)


def _arrived(receiver: Receiver, path: str) -> Sequence[tuple[str, float]]:
    return [
        (each, request.at)
        for request in receiver.received(path)
        for each in request.headers[ID_HEADER.lower()].split(",")
    ]


def _first(arrived: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    """When each came first, in the order in which they came."""
    found: dict[str, float] = {}
    for each, at in arrived:
        found.setdefault(each, at)
    return found


if __name__ == "__main__":
    run(measure)
