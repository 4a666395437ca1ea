"""One quantity at a time: rate, fan-out, topics, subscriptions, size of a message; all through the gateway.

python -m benchmarks.dispatch.scaling [--quick] [--json FILE]
"""

from __future__ import annotations

from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, Outcome, Rig, rig

_PUBLISHERS = 8


def measure(report: Report) -> None:
    seconds = 2.0 if report.quick else 6.0
    with rig() as running:
        running.bench.subscribe(["one"], topic="{urn:t}bench//.")
        running.run(["/one"], 16, 4)
        _rates(report, running, seconds)
        _sizes(report, running, seconds)
        _topics(report, running, seconds)
        _fan_out(report, running, seconds)
        # Last: what it adds stays.
        _subscriptions(report, running, seconds)


def _rates(report: Report, running: Rig, seconds: float) -> None:
    rates = (100, 1_000) if report.quick else (50, 500, 1_000, 2_000, 3_000, 4_000, 6_000)
    columns = ("offered/s", *OUTCOME)
    with report.table("notifications a second, one subscriber", *columns, note="open loop, 800 bytes") as table:
        for rate in rates:
            table.add(rate, *running.run(["/one"], 16, seconds, rate).cells())


def _sizes(report: Report, running: Rig, seconds: float) -> None:
    sizes = (100, 30_000) if report.quick else (100, 1_000, 10_000, 30_000, 100_000, 1_000_000)
    columns = ("payload bytes", *OUTCOME, "delivered MB/s")
    note = f"{_PUBLISHERS} publishers, one subscriber; publishers send when they have their answer"
    with report.table("size of a message", *columns, note=note) as table:
        for size in sizes:
            # An envelope is about 500 bytes; `size` asks for the payload.
            outcome = running.run(["/one"], _PUBLISHERS, seconds, size=size + 500)
            table.add(size, *outcome.cells(), outcome.per_second * size / 1e6)


def _topics(report: Report, running: Rig, seconds: float) -> None:
    numbers = (8, 800) if report.quick else (8, 800, 8_000, 80_000)
    columns = ("topics published to", *OUTCOME)
    with report.table("topics, one subscriber to all", *columns, note=f"{_PUBLISHERS} publishers, 800 bytes") as table:
        for number in numbers:
            name = f"bench/n{number}x"
            # Beforehand: what publishers may add in a minute is limited, and is not what is measured here.
            each = number // _PUBLISHERS
            paths = [f"{name}{publisher}/t{topic}" for publisher in range(_PUBLISHERS) for topic in range(each)]
            running.bench.control([TopicRecord(TopicPath(f"{{urn:t}}{path}")) for path in paths])
            running.run(["/one"], _PUBLISHERS, 3, 100)  # reads them
            table.add(number, *_closed(running, ["/one"], seconds, name, number // _PUBLISHERS).cells())


def _fan_out(report: Report, running: Rig, seconds: float) -> None:
    numbers = (1, 10) if report.quick else (1, 2, 5, 10, 50, 100, 200)
    columns = ("subscribers", *OUTCOME)
    with report.table("fan-out", *columns, note=f"{_PUBLISHERS} publishers, 800 bytes") as table:
        for number in numbers:
            names = [f"fan{number}-{each}" for each in range(number)]
            running.bench.subscribe(names, topic=f"{{urn:t}}fan{number}//.")
            paths = [f"/{name}" for name in names]
            running.run(paths, _PUBLISHERS, 1, 20, topic=f"fan{number}/p")
            table.add(number, *_closed(running, paths, seconds, f"fan{number}/p").cells())


def _subscriptions(report: Report, running: Rig, seconds: float) -> None:
    numbers = (0, 1_000) if report.quick else (0, 10_000, 100_000, 300_000)
    columns = ("other topics and subscriptions", *OUTCOME)
    note = "500/s open loop to one subscriber; the others have a topic each and match nothing"
    there = 0
    with report.table("subscriptions", *columns, note=note) as table:
        for number in numbers:
            paths = [TopicPath(f"{{urn:other}}tree/branch{each % 300}/leaf{each}") for each in range(there, number)]
            if paths:
                running.bench.control([TopicRecord(path) for path in paths])
                running.bench.control([_elsewhere(path) for path in paths])
            there = number
            running.run(["/one"], _PUBLISHERS, 3, 100)  # reads them
            table.add(number, *running.run(["/one"], _PUBLISHERS, seconds, 500).cells())


def _elsewhere(path: TopicPath) -> SubscriptionRecord:
    name = path.rpartition("/")[2]
    consumer = EndpointReference(f"http://127.0.0.1:9/{name}")
    return SubscriptionRecord(Subscription(name, consumer, f"http://b/{name}", (TopicFilter("", path, path),)))


def _closed(running: Rig, paths: list[str], seconds: float, topic: str, topics: int = 1) -> Outcome:
    return running.run(paths, _PUBLISHERS, seconds, topic=topic, topics=topics)


if __name__ == "__main__":
    run(measure)
