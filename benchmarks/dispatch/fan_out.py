"""One notification for many subscriptions of one topic, in both gears: how fast it reaches them all, and what a
notification on another topic, for a receiver on another host, waits meanwhile.

python -m benchmarks.dispatch.fan_out [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Sequence

from arborcast.core.eventlog.client import Producer, make_producer
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from benchmarks.dispatching import PAYLOAD, Dispatching, dispatching, percentile
from benchmarks.harness import Report, run
from tests.support.receiver import Receiver

_PROBES_S = 0.1
_TOPICS = 8
_TIMEOUT_S = 600.0
_WARM_UP_S = 8.0
# A second push of a message arrives within this time.
_AGAIN_S = 10.0


def measure(report: Report) -> None:
    few, many = (100, 2_000) if report.quick else (500, 50_000)
    columns = ("gear", "subscriptions", "deliveries/s", "twice", "until all have it, s", "probes p50, ms", "p99, ms")
    with report.table("one notification for many subscriptions, and ten a second on other topics", *columns) as table:
        for gear in ("realtime", "batch"):
            with dispatching({"dispatch.gear": gear}) as bench, Receiver(keep_bodies=False, host="127.0.0.2") as probed:
                _subscribe(bench, few, many, probed)
                for count, times in ((few, 1), (few, 20), (many, 1)):
                    with _Probing(bench, probed) as probing:
                        time.sleep(_WARM_UP_S)
                        seconds, arrived = _fan_out(bench, count, times)
                    rate, twice = count * times / seconds, arrived - count * times
                    delays = probing.delays
                    table.add(
                        gear, count, rate, twice, seconds / times, percentile(delays, 0.5), percentile(delays, 0.99)
                    )


def _subscribe(bench: Dispatching, few: int, many: int, probed: Receiver) -> None:
    records = []
    for count in (few, many):
        topic = f"fan/{count}"
        for number in range(count):
            url = f"{bench.receiver_url}/{count}-{number}"
            records.append(SubscriptionRecord(_subscription(f"fan{count}-{number}", url, topic)))
    records.append(SubscriptionRecord(_subscription("probe", probed.url("/probe"), "probe//.")))
    for start in range(0, len(records), 1_000):
        bench.control(records[start : start + 1_000])


def _subscription(name: str, url: str, topic: str) -> Subscription:
    address = f"http://127.0.0.1/wsn/subscriptions/{name}"
    return Subscription(name, EndpointReference(url), address, (TopicFilter("", topic, topic),), form="raw")


def _fan_out(bench: Dispatching, count: int, times: int) -> tuple[float, int]:
    """Seconds until all have it that often, one after the other; how many pushes there were."""
    bench.clear()
    producer = make_producer(bench.kafka)
    sent: list[tuple[str, float]] = []
    for number in range(times):
        sent.append((f"fan-{count}-{time.time_ns()}", time.time()))
        _send(bench, producer, sent[-1][0], f"fan/{count}")
        _wait_for(bench, count * (number + 1))
    producer.close(timeout=5)
    time.sleep(_AGAIN_S)
    found = bench.arrivals(count * times)
    last = {name: max(each.at for each in found if each.notification == name) for name, _ in sent}
    return sum(last[name] - at for name, at in sent), len(found)


def _wait_for(bench: Dispatching, requests: int) -> None:
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{bench.receiver_url}/_stats") as response:  # noqa: S310 - our own receiver
            if json.load(response)["requests"] >= requests:
                return
        time.sleep(0.05)
    raise TimeoutError(f"not all have it after {_TIMEOUT_S:g} s")


def _send(bench: Dispatching, producer: Producer, name: str, topic: str) -> None:
    key, value = notifications.encode(Notification(name, TopicPath(topic), PAYLOAD, int(time.time() * 1000)))
    producer.send(bench.kafka.topic("notifications"), key=key, value=value)
    producer.flush()


class _Probing:
    """Notifies one subscription on several topics, which are in several partitions; each delay in ms."""

    def __init__(self, bench: Dispatching, probed: Receiver) -> None:
        self._bench = bench
        self._probed = probed
        self._sent: dict[str, float] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._probe)

    def __enter__(self) -> _Probing:
        self._before = len(self._probed.received("/probe"))
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ends.set()
        self._thread.join()
        self._probed.wait_for(self._before + len(self._sent), "/probe", timeout=_TIMEOUT_S)

    def _probe(self) -> None:
        producer = make_producer(self._bench.kafka)
        run, number = time.time_ns(), 0
        while not self._ends.wait(_PROBES_S):
            name = f"probe-{run}-{number}"
            self._sent[name] = time.time()
            _send(self._bench, producer, name, f"probe/{number % _TOPICS}")
            number += 1
        producer.close(timeout=5)

    @property
    def delays(self) -> Sequence[float]:
        arrived = {each.headers["arborcast-notification-id"]: each.at for each in self._probed.received("/probe")}
        # Without the first seconds, when nothing else is under way yet.
        began = min(self._sent.values()) + _WARM_UP_S
        return [1_000 * (arrived[name] - at) for name, at in self._sent.items() if at >= began] or [0.0]


if __name__ == "__main__":
    run(measure)
