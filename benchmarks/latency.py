"""Latency from the append to the log until a receiver has the push, open loop with random arrivals.

    python -m benchmarks.latency [CASE ...]

Cases: rates (several rates in both modes), priority (urgent messages behind a backlog), shifts (changes of mode), queue
(a work queue with three servers), protocols (events and MQTT beside SOAP, through the gateway), federation (a link to
another engine beside local delivery; within a group confirmed messages beside datagrams, of which some may be lost).
Without cases: rates.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from urllib.parse import urlsplit

import msgspec
import requests
from paho.mqtt.client import Client as MqttClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from arborcast.client import Client
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.topic_model.mqtt_names import address_of
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.load import Traffic, send
from benchmarks.report import Cell, Report, Table, percentile, run, wait_for
from benchmarks.rig import (
    OUTCOME,
    TOPICS,
    Arrival,
    Outcome,
    ReceiverProcess,
    Rig,
    check,
    paced,
    payload,
    rig,
    started_broker,
)
from tests.support.broker import settings_for
from tests.support.dispatch_job import job_settings, subscription
from tests.support.dispatch_job import running as running_in_process
from tests.support.federation import EngineRun, carried, federation
from tests.support.mosquitto import provision, running_mosquitto
from tests.support.spark import new_session

# The mark of a payload, also within JSON.
_IN_EVENT = re.compile(rb'mark=\\?"([0-9-]+)')

_MODES: tuple[Mode, ...] = ("realtime", "batch")
_WRONG = ("lost", "twice", "disorder")
_CHECKED = ("sent", *_WRONG, "p50 ms", "p99 ms")

# A 99th percentile of fewer is only the longest one.
_LEAST_SENT = 300


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))


def measure(report: Report) -> None:
    for case in report.options.cases or ["rates"]:
        CASES[case](report)


def _checked(outcome: Outcome) -> tuple[Cell, ...]:
    return outcome.sent, outcome.lost, outcome.twice, outcome.disorder, outcome.p50_ms, outcome.p99_ms


def _rates(report: Report) -> None:
    columns = ("mode", "rate", *_CHECKED, "longest ms")
    with report.table("from the log to one subscriber", *columns) as table:
        for mode in _MODES:
            with rig({"dispatch.mode": mode}) as running:
                paths = running.subscribe(["one"])
                running.warm(paths)
                for rate in (5.0, 500.0) if report.quick else (5.0, 50.0, 500.0, 1_000.0):
                    running.receiver.clear()
                    seconds = 3.0 if report.quick else max(15.0, _LEAST_SENT / rate)
                    sent = running.append(f"r{rate:g}", round(rate * seconds), rate=rate)
                    outcome = running.delivered(sent, paths)
                    table.add(mode, f"{rate:,.0f}/s", *_checked(outcome), max(outcome.delays))


# With fifty messages in a push this receiver takes some 800 a second.
_SLOW = "slow/0.05"
_PACE, _URGENT = 800, 5


def _priority(report: Report) -> None:
    parked, read = ((2_000,), 2_000) if report.quick else ((10_000, 100_000), 20_000)
    columns = ("mode", "where", "waiting", "priority", *_CHECKED)
    note = "a receiver that takes 50 ms for a push of up to 50 messages; parked: pushed from the resume on"
    with report.table("ten urgent messages a second behind a backlog", *columns, note=note) as table:
        for mode in _MODES:
            with rig({"dispatch.mode": mode}) as running:
                slow = subscription("slow", f"{running.receiver.url}/{_SLOW}", "bench//.")
                running.control([SubscriptionRecord(slow)])
                running.warm([f"/{_SLOW}"], 20)
                for where, waiting in (*(("parked", each) for each in parked), ("in the log", read)):
                    running.receiver.clear()
                    label = f"{where[0]}{waiting}"
                    if where == "parked":
                        _park(running, slow, label, waiting)
                        ordinary = dict.fromkeys((f"{label}-{each:08d}" for each in range(waiting)), time.time())
                        running.control([SubscriptionRecord(slow)])
                    else:
                        ordinary = running.append(label, waiting)
                    urgent = running.append(f"u{label}", round(7.5 * waiting / _PACE), rate=10.0, priority=_URGENT)
                    arrived = running.receiver.arrivals(len(ordinary) + len(urgent), 30)
                    for priority, sent in ((0, ordinary), (_URGENT, urgent)):
                        outcome = check(sent, arrived, [f"/{_SLOW}"], TOPICS)
                        table.add(mode, where, waiting, priority, *_checked(outcome))


def _park(running: Rig, slow: Subscription, label: str, count: int) -> None:
    """Append while the subscription is paused, and wait until the log of parked deliveries has all of it."""
    running.control([SubscriptionRecord(msgspec.structs.replace(slow, paused=True))])
    time.sleep(1.0)  # an append without a stamp is matched by the subscriptions of that moment
    with LogScan(running.kafka, "parked") as log:
        before = sum(log.ends().values())
        running.append(label, count)
        wait_for(lambda: sum(log.ends().values()) >= before + count, "all is parked", 600, 0.5)


_RATE, _APART_S, _BATCH_S = 200.0, 8.0, 8


def _shifts(report: Report) -> None:
    """The job runs in this process, and Spark's batches of real time are short: the engine has one in half an hour."""
    times = 2 if report.quick else 8
    columns = ("change", "times", *_CHECKED, "longest ms, median", "longest ms")
    note = "longest: of the messages due from a second before to four seconds behind each change"
    with (
        rig(job=False) as running,
        report.table(f"{_RATE:g}/s while the mode changes", *columns, note=note) as table,
        # The shortest that Spark allows is five seconds.
        patch("arborcast.dispatch.realtime.query._BATCH", f"{_BATCH_S} seconds"),
    ):
        paths = running.subscribe(["one"])
        spark = new_session(running.home / "spark")
        with running_in_process(spark, job_settings(running.home / "job", running.kafka, "realtime")) as job:
            running.warm(paths, _RATE, 10)
            # One change at least lies in each span of this length.
            span = _BATCH_S + 1.0
            sent = running.append("batches", round(_RATE * times * span), rate=_RATE)
            begins = [min(sent.values()) + number * span for number in range(times)]
            _longest(running, table, "from a real-time batch of Spark to the next", sent, begins, (0, span))
            running.receiver.clear()
            began: dict[Mode, list[float]] = {"batch": [], "realtime": []}
            with ThreadPoolExecutor(1) as beside:
                count = round(_RATE * (2 * times + 1) * _APART_S)
                load = beside.submit(running.append, "shifts", count, rate=_RATE)
                for _ in range(times):
                    for mode, moments in began.items():
                        time.sleep(_APART_S)
                        moments.append(time.time())
                        job.modes.shift(mode)
                sent = load.result()
            for mode, moments in began.items():
                _longest(running, table, f"a shift to {mode}", sent, moments, (-1.0, 4.0))
        spark.stop()


def _longest(
    running: Rig,
    table: Table,
    change: str,
    sent: Mapping[str, float],
    begins: list[float],
    around_s: tuple[float, float],
) -> None:
    arrived = running.receiver.arrivals(len(sent))
    outcome = check(sent, arrived, ["/one"], TOPICS)
    first: dict[str, float] = {}
    for each in arrived:
        first.setdefault(each.mark, each.at)
    longest = [
        max(
            (first.get(mark, math.inf) - at) * 1e3
            for mark, at in sent.items()
            if around_s[0] <= at - begin < around_s[1]
        )
        for begin in begins
    ]
    table.add(change, len(begins), *_checked(outcome), statistics.median(longest), max(longest))


_SERVERS, _TAKES_S = 3, 0.01


def _queue(report: Report) -> None:
    burst, alone = (600, 50) if report.quick else (6_000, 300)
    columns = ("mode", "requests/s", "of what they can take", "most / least", "twice", "alone p50 ms", "alone p99 ms")
    paths = [f"/slow/{_TAKES_S}{'0' * number}" for number in range(_SERVERS)]  # the receiver reads the same time
    queue = TopicPath("bench/jobs")
    with report.table(f"a work queue, {_SERVERS} servers of {_TAKES_S * 1e3:g} ms", *columns) as table:
        for mode in _MODES:
            with rig({"dispatch.mode": mode}) as running:
                running.control([TopicRecord(queue, policy=TopicPolicy(queue=True))])
                consumers = {f"s{number}": running.receiver.url + path for number, path in enumerate(paths)}
                running.add(consumers, queue, queue=1)
                for label, count in (("warm", 60), ("burst", burst)):
                    running.receiver.clear()
                    sent = running.append(label, count, path=queue, queue=True)
                    arrived = [each for each in running.receiver.arrivals(count) if each.mark in sent]
                took_s = max(each.at for each in arrived) - min(each.at for each in arrived)
                shares = Counter(each.path for each in arrived).values()
                twice = len(arrived) - len({each.mark for each in arrived})
                running.receiver.clear()
                lone = running.append("lone", alone, rate=20.0, path=queue, queue=True)
                delays = [1e3 * (each.at - lone[each.mark]) for each in running.receiver.arrivals(len(lone))]
                rate = (len(arrived) - 1) / took_s
                p50, p99 = percentile(delays, 0.5), percentile(delays, 0.99)
                table.add(mode, rate, rate * _TAKES_S / _SERVERS, max(shares) / min(shares), twice, p50, p99)


class _Protocols:
    """Events and MQTT messages that have arrived, and a client that publishes at the MQTT broker."""

    def __init__(self, url: str) -> None:
        self.arrived: list[Arrival] = []
        self._publisher, subscriber = self._client(url), self._client(url)
        subscriber.on_message = lambda _client, _data, message: self._came("/mqtt", message.payload)
        subscriber.subscribe("out", 1)

    def follow(self, url: str) -> None:
        """A stream of events, in a thread of its own."""
        answer = requests.get(url, stream=True, timeout=600)

        def read() -> None:
            with suppress(requests.RequestException):  # the gateway ends first
                for line in answer.iter_lines():
                    self._came("/events", line)

        threading.Thread(target=read, daemon=True).start()

    def publish(self, rate: float | None, seconds: float) -> dict[str, float]:
        """At the broker; without a rate as fast as it takes them."""
        due, at = dict[str, float](), time.time()
        end = at + seconds
        while at < end:
            time.sleep(max(0.0, at - time.time()))
            mark = f"900-{len(due):08d}"
            due[mark] = at
            taken = self._publisher.publish("in/p", payload(mark), 1)
            if rate is None and len(due) % 20 == 0:
                taken.wait_for_publish()
            at = at + 1 / rate if rate else time.time()
        return due

    def arrivals(self, expected: int) -> list[Arrival]:
        """As those of the receiver."""
        with suppress(TimeoutError):
            wait_for(lambda: len(self.arrived) >= expected, "all have arrived")
        return self.arrived

    def _came(self, path: str, data: bytes | bytearray) -> None:
        if found := _IN_EVENT.search(data):
            self.arrived.append(Arrival(time.time(), path, found[1].decode()))

    def _client(self, url: str) -> MqttClient:
        client = MqttClient(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.connect("127.0.0.1", urlsplit(url).port or 0)
        client.loop_start()
        return client


def _protocols(report: Report) -> None:
    """A way to publish and one to receive, in turns."""
    rounds, seconds, rate = (1, 2.0, 50.0) if report.quick else (4, 10.0, 200.0)
    with TemporaryDirectory(prefix="arborcast-bench-") as name, ExitStack() as stack:
        broker = stack.enter_context(running_mosquitto(provision(), Path(name)))
        rules = Path(name) / "rules.toml"
        rules.write_text('[in.bench]\nmqtt = "in/#"\ntopic = "{urn:t}back/{#}"\n')
        more = f'[mqtt]\nurl = "{broker.url}"\nrules_file = "{rules}"\n'
        running = stack.enter_context(rig({"mqtt.url": broker.url}, gateway=True, more=more))
        gateway, protocols = running.gateway, _Protocols(broker.url)
        assert gateway is not None
        for each in ("soap", "back"):
            running.subscribe([each], f"{{urn:t}}{each}//.")
        out = subscription("mqtt", address_of(MqttSettings(url=broker.url).base, "out", retain=False), "{urn:t}mqtt//.")
        running.control([SubscriptionRecord(msgspec.structs.replace(out, form="raw"))])
        protocols.follow(f"{gateway.base}/events/{{urn:t}}events//.")
        wait_for(lambda: gateway.metric("arborcast_mqtt_connected") == 1, "the bridge is connected")
        ways = {"SOAP to SOAP": "soap", "SOAP to events": "events", "SOAP to MQTT": "mqtt", "MQTT to SOAP": "back"}
        found: dict[tuple[str, float | None], list[Outcome]] = defaultdict(list)
        for turn in range(1 + rounds):
            for pace in (None, rate):
                for way, topic in ways.items():
                    running.receiver.clear()
                    protocols.arrived.clear()
                    if topic == "back":
                        sent = protocols.publish(pace, seconds)
                    else:
                        sent = send(Traffic(gateway.port, 16, seconds, pace, topic=f"{topic}/p")).acknowledged
                    there = running.receiver if topic in ("soap", "back") else protocols
                    outcome = check(sent, there.arrivals(len(sent)), [f"/{topic}"])
                    found[way, pace] += [outcome] * (turn > 0)  # the first turn is to warm up
        columns = ("way", "messages/s", "times SOAP", "at", "p50 ms", "p99 ms", "p50 times SOAP", "p99 times SOAP")
        note = f"medians of {rounds} rounds in turns; at full load, and delays at a rate"
        with report.table("protocols side by side", *columns, *_WRONG, note=note) as table:
            rows: dict[str, list[float]] = {}
            for way in ways:
                full, paced = found[way, None], found[way, rate]
                rows[way] = [statistics.median(each.per_second for each in full)]
                for share in (0.5, 0.99):
                    rows[way].append(statistics.median(percentile(each.delays, share) for each in paced))
                times = [one / first for one, first in zip(rows[way], rows["SOAP to SOAP"], strict=True)]
                wrong = [sum(getattr(each, kind) for each in full + paced) for kind in _WRONG]
                table.add(way, rows[way][0], times[0], f"{rate:g}/s", *rows[way][1:], *times[1:], *wrong)


_TOGETHER = 100


def _federation(report: Report) -> None:
    """Between two engines in two groups, with a broker between them; then between two of one group."""
    rate, seconds, burst = (50.0, 5.0, 1_000) if report.quick else (100.0, 30.0, 20_000)
    count = round(rate * seconds)
    with started_broker() as (broker, home), ReceiverProcess() as receiver:
        kafka = settings_for(broker)
        with (
            federation(home / "engines", kafka, ["G/a", "H/b"], jobs=True) as (_, engines),
            Client(engines[0].gateway.broker) as client,
        ):
            paths = [_subscribed(receiver, engine) for engine in engines]

            def put(_number: int, mark: str) -> None:
                client.notify("bench/x", payload(mark).decode())

            _until_carried(receiver, paths, put, 1)
            _across(report, f"{rate:g}/s", receiver, paths, paced(put, "steady", count, rate))
            receiver.clear()
            sent: dict[str, float] = {}
            for first in range(0, burst, _TOGETHER):
                marks = [f"burst-{number:08d}" for number in range(first, first + _TOGETHER)]
                sent |= dict.fromkeys(marks, time.time())
                client.notify_all([("bench/x", payload(mark).decode()) for mark in marks])
            _across(report, f"{burst:,} at once", receiver, paths, sent)
        kafka = replace(kafka, prefix=f"{kafka.prefix}group.")
        ways = {"confirmed": "", "datagrams": "group fast"}
        with (
            federation(home / "group", kafka, ["G/a", "G/b"], jobs=True, datagrams=True) as (_, (a, b)),
            Client(a.gateway.broker) as client,
        ):
            paths = [_subscribed(receiver, b)]
            wait_for(lambda: all(carried(a, link) for link in ("peer-fast.b", "peer-b")), "both links are there", 240)
            topics = {TopicPath(f"bench/{way}"): TopicPolicy(routing=routing) for way, routing in ways.items()}
            Rig(a.folder, a.kafka, 0, receiver).control([TopicRecord(path, policy=topics[path]) for path in topics])
            in_turn = list(topics)

            def put_in_turn(number: int, mark: str) -> None:
                client.notify(in_turn[number % len(in_turn)], payload(mark).decode())

            _until_carried(receiver, paths, put_in_turn, len(in_turn))
            sent = paced(put_in_turn, "group", count, rate)
            arrived = receiver.arrivals(len(sent), paths=paths)
            with report.table(f"within a group, {rate:g}/s", "way", *OUTCOME) as table:
                for turn, way in enumerate(ways):
                    mine = {mark: at for mark, at in sent.items() if int(mark[-8:]) % len(in_turn) == turn}
                    table.add(way, *check(mine, arrived, paths).cells())


def _subscribed(receiver: ReceiverProcess, engine: EngineRun) -> str:
    (path,) = Rig(engine.folder, engine.kafka, 0, receiver).subscribe([engine.name.replace("/", "-")])
    return path


def _until_carried(
    receiver: ReceiverProcess, paths: Sequence[str], put: Callable[[int, str], None], topics: int
) -> None:
    """Until each topic arrives at each path."""

    def all_arrive() -> bool:
        receiver.clear()
        sent = paced(put, "warm", topics)
        return not check(sent, receiver.arrivals(len(sent) * len(paths), 1.0, paths), paths).lost

    wait_for(all_arrive, "the link carries messages", 300, 0.1)
    receiver.clear()


def _across(
    report: Report, title: str, receiver: ReceiverProcess, paths: Sequence[str], sent: Mapping[str, float]
) -> None:
    arrived = receiver.arrivals(len(sent) * len(paths), paths=paths)
    with report.table(title, "subscriber of", *OUTCOME) as table:
        for path in paths:
            table.add(path, *check(sent, arrived, [path]).cells())


CASES = {
    "rates": _rates,
    "priority": _priority,
    "shifts": _shifts,
    "queue": _queue,
    "protocols": _protocols,
    "federation": _federation,
}

if __name__ == "__main__":
    run(measure, options)
