"""A work queue with three servers that take ten milliseconds for a request, one at a time each.

    python -m benchmarks.operation.queues [--quick] [--json FILE]

A burst shows how much of their time the servers work (three of ten milliseconds do 300 a second), and whether each has
its share; then single requests, with nobody waiting, show how long one takes from the log `notifications` to a server.
Beside it the floor: three threads, each with a connection to one of the servers, and nothing else to do.
Asked: close to the floor, and the most that a server had at most 1.2 times the least.
"""

from __future__ import annotations

import http.client
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from arborcast.core.eventlog.client import make_producer
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from benchmarks.dispatching import PAYLOAD, Dispatching, dispatching, percentile
from benchmarks.harness import Report, run

_SERVERS = 3
_TAKES_S = 0.01
_QUEUE = TopicPath("bench/jobs")


def measure(report: Report) -> None:
    burst, alone = (600, 50) if report.quick else (6_000, 300)
    columns = ("gear", "requests", "a second", "of floor", "most / least", "twice", "alone p50 ms", "alone p99 ms")
    with report.table(f"{_SERVERS} servers of {_TAKES_S * 1000:g} ms", *columns) as table:
        for gear in ("realtime", "batch"):
            with dispatching({"dispatch.gear": gear}) as bench:
                floor = _floor(bench, burst)
                bench.clear()
                _serve(bench)
                _ask(bench, 60, "warm")
                bench.arrivals(60)
                bench.clear()
                sent = _ask(bench, burst, "burst")
                arrived = bench.arrivals(burst)
                took_s = max(each.at for each in arrived) - min(each.at for each in arrived)
                shares = Counter(each.path for each in arrived).values()
                twice = len(arrived) - len({each.notification for each in arrived})
                assert {each.notification for each in arrived} == sent.keys()
                a_second = (len(arrived) - 1) / took_s
                bench.clear()
                lone = _ask(bench, alone, "lone", pause_s=0.05)
                delays = [1000 * (each.at - lone[each.notification]) for each in bench.arrivals(alone)]
                table.add(
                    *(gear, burst, round(a_second, 1), round(a_second / floor, 2)),
                    *(round(max(shares) / min(shares), 2), twice),
                    *(round(percentile(delays, 0.5), 1), round(percentile(delays, 0.99), 1)),
                )


def _floor(bench: Dispatching, count: int) -> float:
    """How many a second three threads have done that only post."""

    def post(path: str) -> None:
        url = urlsplit(bench.receiver_url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port)
        for _ in range(count // _SERVERS):
            connection.request("POST", path, PAYLOAD, {"Content-Type": "application/xml"})
            connection.getresponse().read()
        connection.close()

    begun = time.monotonic()
    with ThreadPoolExecutor(_SERVERS) as threads:
        list(threads.map(post, map(_path, range(_SERVERS))))
    return count / (time.monotonic() - begun)


def _path(server: int) -> str:
    """Three paths, which the receiver reads as the same time."""
    return f"/slow/{_TAKES_S}{'0' * server}"


def _serve(bench: Dispatching) -> None:
    topics = (TopicFilter("", _QUEUE, _QUEUE),)
    bench.control(
        [
            TopicRecord(_QUEUE, policy=TopicPolicy(queue=True)),
            *(
                SubscriptionRecord(
                    Subscription(
                        f"s{number}",
                        EndpointReference(bench.receiver_url + _path(number)),
                        f"http://127.0.0.1/wsn/s{number}",
                        topics,
                        queue=1,
                    )
                )
                for number in range(_SERVERS)
            ),
        ]
    )


def _ask(bench: Dispatching, count: int, label: str, pause_s: float = 0.0) -> dict[str, float]:
    """So many requests; id -> when it was put into the log."""
    producer = make_producer(bench.kafka)
    asked: dict[str, float] = {}
    for number in range(count):
        time.sleep(pause_s)
        name = f"{label}-{number}"
        asked[name] = time.time()
        made = Notification(name, _QUEUE, PAYLOAD, int(asked[name] * 1000), queue=True)
        key, value = notifications.encode(made)
        producer.send(bench.kafka.topic("notifications"), key=key, value=value)
    producer.flush()
    producer.close(timeout=5)
    return asked


if __name__ == "__main__":
    run(measure)
