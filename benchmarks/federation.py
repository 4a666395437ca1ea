"""Over one link to another engine: the rate beside that of local delivery, and the latency that it adds.

    python -m benchmarks.federation [--quick] [--json FILE]

Two engines in two groups, with a broker between them: each with a gateway and a job. The same messages go to a
subscriber at the engine where they are published, and to one at the other. Then two engines of one group: messages in
turn on a topic that is confirmed and on one that is sent as datagrams, of which some may be lost.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.client import Client
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, run, wait_for
from benchmarks.rig import OUTCOME, ReceiverProcess, check, payload
from tests.support.broker import new_broker, settings_for
from tests.support.federation import EngineRun, carried, federation

_HERE, _THERE, _GROUP = "/here", "/there", "/group"
_SURE, _FAST = TopicPath("load/sure"), TopicPath("load/fast")
_TOGETHER = 100


def measure(report: Report) -> None:
    rate, seconds, burst = (50.0, 5.0, 1_000) if report.quick else (100.0, 30.0, 20_000)
    with TemporaryDirectory() as folder, ReceiverProcess() as receiver:
        broker = new_broker(Path(folder) / "broker")
        broker.start()
        kafka = settings_for(broker)
        try:
            with federation(Path(folder) / "engines", kafka, ["G/a", "H/b"], jobs=True) as (_, (a, b)):
                _subscribe(a, receiver.url + _HERE)
                _subscribe(b, receiver.url + _THERE)
                _warm(a, receiver, [_HERE, _THERE], ["load/x"])
                sent = _publish(a, ["load/x"], "steady", rate, seconds)
                _show(report, f"{rate:g}/s", receiver, [_HERE, _THERE], sent)
                receiver.clear()
                sent = {}
                with Client(a.gateway.broker) as client:
                    for first in range(0, burst, _TOGETHER):
                        marks = [f"burst-{number:08d}" for number in range(first, first + _TOGETHER)]
                        sent |= dict.fromkeys(marks, time.time())
                        client.notify_all([("load/x", payload(mark).decode()) for mark in marks])
                _show(report, f"{burst:,} at once", receiver, [_HERE, _THERE], sent)
            kafka = dataclasses.replace(kafka, prefix=f"{kafka.prefix}group.")
            names = ["G/a", "G/b"]
            with federation(Path(folder) / "group", kafka, names, jobs=True, datagrams=True) as (_, (a, b)):
                _subscribe(b, receiver.url + _GROUP)
                wait_for(
                    lambda: bool(carried(a, "peer-fast.b") and carried(a, "peer-b")), "both links carry messages", 240
                )
                with closing(ControlLog(a.kafka)) as log:
                    log.append([TopicRecord(_FAST, policy=TopicPolicy(routing="group fast")), TopicRecord(_SURE)])
                _warm(a, receiver, [_GROUP], [_SURE, _FAST])
                sent = _publish(a, [_SURE, _FAST], "group", rate, seconds)
                arrived = receiver.arrivals(len(sent), paths=[_GROUP])
                with report.table(f"within a group, {rate:g}/s", "way", *OUTCOME) as table:
                    for number, way in enumerate(("confirmed", "datagrams")):
                        mine = {mark: at for mark, at in sent.items() if int(mark[-8:]) % 2 == number}
                        table.add(way, *check(mine, arrived, [_GROUP]).cells())
        finally:
            broker.kill()


def _subscribe(engine: EngineRun, url: str) -> None:
    with Client(engine.gateway.broker) as client:
        client.subscribe("load//.", to=url)


def _warm(engine: EngineRun, receiver: ReceiverProcess, paths: Sequence[str], topics: Sequence[str]) -> None:
    """Until each topic arrives at each path."""
    with Client(engine.gateway.broker) as client:

        def all_arrive() -> bool:
            receiver.clear()
            for topic in topics:
                client.notify(topic, payload(f"warm-{topic[-4:]}").decode())
            found = receiver.arrivals(len(paths) * len(topics), 1.0, paths)
            return len({(each.path, each.mark) for each in found}) == len(paths) * len(topics)

        wait_for(all_arrive, "the link carries messages", 300, 0.1)
    receiver.clear()


def _publish(engine: EngineRun, topics: Sequence[str], label: str, rate: float, seconds: float) -> dict[str, float]:
    """One by one, on the topics in turn."""
    due: dict[str, float] = {}
    with Client(engine.gateway.broker) as client:
        began = time.time()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.time()))
            mark = f"{label}-{number:08d}"
            due[mark] = time.time()
            client.notify(topics[number % len(topics)], payload(mark).decode())
    return due


def _show(report: Report, title: str, receiver: ReceiverProcess, paths: Sequence[str], sent: dict[str, float]) -> None:
    arrived = receiver.arrivals(len(sent) * len(paths), paths=paths)
    with report.table(title, "subscriber", *OUTCOME) as table:
        for path in paths:
            table.add(path, *check(sent, arrived, [path]).cells())


if __name__ == "__main__":
    run(measure)
