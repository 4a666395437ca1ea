"""Whether those who get little wait for those who get much, within a partition of a batch: one lane with many messages,
one message for each of the others, one message per request, over libcurl.

    python -m benchmarks.dispatch.fairness [--quick] [--json FILE]
"""

from __future__ import annotations

import subprocess
import sys
import time

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run
from tests.support.dispatch_process import ROOT
from tests.support.outbound import THIS_MACHINE

_TOPIC = TopicPath("a")


def measure(report: Report) -> None:
    backlog, others = (500, 20) if report.quick else (10_000, 100)
    receiver = subprocess.Popen(
        [sys.executable, "-m", "tests.support.receiver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert receiver.stdout is not None
        url = receiver.stdout.readline().split()[0].rstrip("/")
        columns = ("in the long lane", "other lanes", "others done after, ms", "long lane done after, ms")
        with report.table("lanes served in turn", *columns) as table:
            for _ in range(3):
                last, end = _serve(url, backlog, others)
                table.add(backlog, others, last * 1e3, end * 1e3)
    finally:
        receiver.kill()
        receiver.wait()


def _serve(url: str, backlog: int, others: int) -> tuple[float, float]:
    """Seconds until the last of the others has its message, and until all is done."""
    lanes = Lanes(LaneLimits(1, 1))
    for number in range(backlog + others):
        name = "long" if number < backlog else f"other{number}"
        target = Subscription(name, EndpointReference(f"{url}/{name}"), form="raw")
        lanes.add(Received(Notification(str(number), _TOPIC, b"<x/>" * 200, 0), 0, number), target)
    transport = CurlTransport(PushSettings(), THIS_MACHINE)
    began = time.perf_counter()
    last = 0.0
    while not lanes.empty:
        while transport.in_flight < 64 and (taken := lanes.take()) is not None:
            subscription, messages = taken[0], [each.notification for each in taken[1]]

            def settled(result: PushResult, name: str = subscription.id) -> None:
                nonlocal last
                assert result.status == 202, result
                lanes.settle(name, _TOPIC)
                if name != "long":
                    last = time.perf_counter() - began

            transport.submit(Envelope(subscription).request(messages, attempt=1), settled)
        transport.drive(1.0)
    transport.close()
    return last, time.perf_counter() - began


if __name__ == "__main__":
    run(measure)
