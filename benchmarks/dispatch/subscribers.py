"""What subscribers cost each other: many of them, on many ports, and sick ones among healthy ones.

python -m benchmarks.dispatch.subscribers [--quick] [--json FILE]
"""

from __future__ import annotations

from contextlib import suppress

import psutil

from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, Rig, rig
from tests.support.receiver import refusing_url


def measure(report: Report) -> None:
    seconds = 4 if report.quick else 20
    ports = 50 if report.quick else 1_000
    with rig(more_ports=ports) as running:
        running.bench.control(raw_subscriptions({"warm": f"{running.bench.receiver_url}/warm"}, "{urn:t}warm//."))
        running.run(["/warm"], 8, 4, 200, topic="warm/p")
        _sick(report, running, seconds)
        _ports(report, running, ports, seconds)


def raw_subscriptions(consumers: dict[str, str], normal: str) -> list[SubscriptionRecord]:
    """Subscriptions by name with one filter, each pushed one message per request."""
    return [
        SubscriptionRecord(
            Subscription(
                name, EndpointReference(url), f"http://b/{name}", (TopicFilter("", normal, normal),), form="raw"
            )
        )
        for name, url in consumers.items()
    ]


def _sick(report: Report, running: Rig, seconds: int) -> None:
    base = running.bench.receiver_url
    healthy = {f"well{number}": f"{base}/well{number}" for number in range(7)}
    paths = [f"/{name}" for name in healthy]
    columns = ("the other three of ten", *OUTCOME)
    with refusing_url() as dead, report.table("seven healthy subscribers at 100/s", *columns) as table:
        kinds = {
            "are healthy": {f"also{number}": f"{base}/also{number}" for number in range(3)},
            "hang, are dead, fail half": {"hangs": f"{base}/hang", "dead": dead, "half": f"{base}/half"},
        }
        running.bench.control(raw_subscriptions(healthy, "{urn:t}ten//."))
        for kind, others in kinds.items():
            running.bench.control(raw_subscriptions(others, "{urn:t}ten//."))
            table.add(kind, *running.run(paths, 4, seconds, 100, topic="ten/p").cells())
            if "hangs" in others:
                table.add("the same, later on", *running.run(paths, 4, seconds, 100, topic="ten/p").cells())
            running.bench.control([SubscriptionEnded(name, "unsubscribed", 1) for name in others])


def _ports(report: Report, running: Rig, ports: int, seconds: int) -> None:
    consumers = {
        f"port{number}": f"http://127.0.0.1:{port}/port{number}" for number, port in enumerate(running.bench.more_ports)
    }
    running.bench.control(raw_subscriptions(consumers, "{urn:t}ports//."))
    paths = [f"/{name}" for name in consumers]
    columns = ("round", *OUTCOME, "workers' descriptors", "workers' MiB")
    with report.table(f"{ports:,} subscribers on as many ports, 2/s", *columns) as table:
        for number in range(3):
            outcome = running.run(paths, 1, seconds / 2, 2, topic="ports/p")
            table.add(str(number + 1), *outcome.cells(), *_workers(running))


def _workers(running: Rig) -> tuple[int, float]:
    descriptors, memory = 0, 0
    for process in running.bench.processes()["worker"]:
        with suppress(psutil.NoSuchProcess):
            descriptors += process.num_fds()
            memory += process.memory_info().rss
    return descriptors, memory / 2**20


if __name__ == "__main__":
    run(measure)
