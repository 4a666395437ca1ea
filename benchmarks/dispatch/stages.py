"""What each step of a worker costs for one notification to one subscriber, by itself and in one process.

python -m benchmarks.dispatch.stages [--quick] [--json FILE]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest, Transport
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.delivery.transport.futures import FuturesTransport
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.filters import Conditions, Subject
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter, XPathFilter
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run, seconds
from tests.support.dispatch_process import ROOT
from tests.support.outbound import THIS_MACHINE

_TOPIC = TopicPath("{urn:t}bench/p1")
_PAYLOAD = b'<b:m xmlns:b="urn:bench" size="7"><b:a>1</b:a>' + b"x" * 740 + b"</b:m>"


def measure(report: Report) -> None:
    count = 2_000 if report.quick else 50_000
    message = Notification("0" * 32, _TOPIC, _PAYLOAD, 1)
    _, record = notifications.encode(message)
    topics = (TopicFilter("", "t:bench//.", "{urn:t}bench//."),)
    subscription = Subscription("s" * 24, EndpointReference("http://h/c"), "http://b/s", topics)
    table = RoutingTable()
    table.apply(SubscriptionRecord(subscription))
    view = SnapshotView(Snapshot.build(table))
    texts = ("@size > 5", "//b:a = 1 and contains(., 'y')")
    filtered = [
        Subscription("f", EndpointReference("http://h/"), content=(XPathFilter(XPATH_1, text, {"b": "urn:bench"}),))
        for text in texts
    ]
    conditions = Conditions()
    envelope = Envelope(subscription)
    fifty = [message] * 50
    received = Received(message, 0, 0)

    def lanes() -> None:
        waiting = Lanes(LaneLimits(1, 1))
        for _ in range(count):
            waiting.add(received, subscription)
        while (taken := waiting.take()) is not None:
            waiting.settle(taken[0].id, _TOPIC)

    with report.table("a worker's steps", "step", "us for each") as steps:
        for name, step in (
            ("read the record", lambda: notifications.decode(record)),
            ("match by topic", lambda: view.match(_TOPIC)),
            ("a content filter, payload parsed", lambda: Subject(conditions, message).passes(filtered[0])),
            ("a longer one, payload parsed", lambda: Subject(conditions, message).passes(filtered[1])),
            ("envelope, one message", lambda: envelope.request([message], attempt=1)),
            ("envelope, fifty messages, each", lambda: envelope.request(fifty, attempt=1)),
        ):
            share = 50 if "fifty" in name else 1
            steps.add(name, _each(step, count // share) / share)
        steps.add("queue in a lane, take and settle", seconds(lanes, 3) / count * 1e6)
        request = envelope.request([message], attempt=1)
        _pushes(steps.add, request, count)


def _each(step: Callable[[], object], count: int) -> float:
    def many() -> None:
        for _ in range(count):
            step()

    return seconds(many, 3) / count * 1e6


def _pushes(add: Callable[[str, float], None], request: PushRequest, count: int) -> None:
    """CPU of this process only: the receiver has a process of its own."""
    receiver = subprocess.Popen(
        [sys.executable, "-m", "tests.support.receiver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert receiver.stdout is not None
        url = receiver.stdout.readline().split()[0]
        transports: tuple[tuple[str, Transport, int], ...] = (
            ("push with libcurl", CurlTransport(PushSettings(), THIS_MACHINE), count),
            ("push with requests-futures", FuturesTransport(PushSettings(), THIS_MACHINE), count // 10),
        )
        for name, transport, number in transports:
            _push(transport, PushRequest(url, request.headers, request.body), 200)
            began = time.process_time()
            _push(transport, PushRequest(url, request.headers, request.body), number)
            add(name, (time.process_time() - began) / number * 1e6)
            transport.close()
    finally:
        receiver.kill()
        receiver.wait()


def _push(transport: Transport, request: PushRequest, count: int) -> None:
    begun = 0
    while begun < count or transport.in_flight:
        while begun < count and transport.in_flight < 64:
            transport.submit(request, lambda _: None)
            begun += 1
        transport.drive(1.0)


if __name__ == "__main__":
    run(measure)
