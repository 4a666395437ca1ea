"""Micro-benchmarks, in one process: matching, and a worker's steps.

    python -m benchmarks.model [match] [steps]

Without cases: all.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import psutil

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest, Transport
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.delivery.transport.futures import FuturesTransport
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.filters import Conditions, Subject
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model import expressions
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import (
    EndpointReference,
    Protection,
    SigningSecret,
    Subscription,
    TopicFilter,
    XPathFilter,
)
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, cpu_s, run, seconds
from benchmarks.rig import ReceiverProcess
from tests.support.outbound import THIS_MACHINE

_PLANT = "urn:example:plant"
_NAMESPACES = {"tns": _PLANT, "p": _PLANT}
_NOW_MS = 1_780_000_000_000
_CHUNK = 10_000


def topic(number: int, depth: int = 4) -> TopicPath:
    """A topic of a tree whose branches are ten wide near the root and as wide as needed at the end."""
    middle = "".join(f"/level{level}-{number // 10 ** (level % 3 + 1) % 10}" for level in range(1, depth - 1))
    return TopicPath(f"{{{_PLANT}}}plant{middle}/machine{number}")


def subscription(number: int, normal: str) -> Subscription:
    """As a client makes it: no text is shared with another subscription."""
    name = f"{number:032x}"
    return Subscription(
        id=name,
        consumer=EndpointReference(f"http://10.{number % 200}.7.9:8080/consumers/{number}"),
        address=f"http://broker.example:9000/subscriptions/{name}",
        topics=(TopicFilter(expressions.CONCRETE, normal.replace(f"{{{_PLANT}}}", "p:"), normal, {"p": _PLANT}),),
        created_ms=_NOW_MS + number,
        terminates_ms=_NOW_MS + 3_600_000 + number,
    )


def _nanoseconds(match: Callable[[TopicPath], object], asked: Sequence[TopicPath]) -> float:
    """Best time of three. Each topic is a new string, as in a notification that was just decoded."""
    best = float("inf")
    for _ in range(3):
        spent = 0.0
        for start in range(0, len(asked), 1_000):
            fresh = [TopicPath(path[:1] + path[1:]) for path in asked[start : start + 1_000]]
            spent += seconds(partial(_match_all, match, fresh))
        best = min(best, spent / len(asked) * 1e9)
    return best


def _match_all(match: Callable[[TopicPath], object], paths: Sequence[TopicPath]) -> None:
    for path in paths:
        match(path)


def _zipf(choices: Sequence[TopicPath], count: int, generator: random.Random) -> list[TopicPath]:
    """Draws in which the n-th of the choices is n times as rare as the first."""
    cumulative = list(itertools.accumulate(1 / rank for rank in range(1, len(choices) + 1)))
    return [choices[bisect(cumulative, generator.random() * cumulative[-1])] for _ in range(count)]


def _match(report: Report) -> None:
    sizes = (1_000, 20_000) if report.quick else (1_000, 100_000, 1_000_000)
    draws = 20_000 if report.quick else 300_000
    columns = ("topics and subscriptions", "depth", "hot 1,000", "zipf", "uniform", "bare dict, uniform")
    note = "bare dict: one dictionary of finished answers"
    with report.table("match, nanoseconds", *columns, note=note) as table:
        for size, depth in [*((size, 4) for size in sizes), (sizes[1], 12)]:
            generator, topics = random.Random(size), [topic(number, depth) for number in range(size)]
            routing = RoutingTable()
            for number, path in enumerate(topics):
                routing.apply(SubscriptionRecord(subscription(number, path)))
            answers: dict[str, object] = {path: routing.match(path) for path in topics}
            gc.collect()
            uniform = generator.choices(topics, k=draws)
            table.add(
                size,
                depth,
                _nanoseconds(routing.match, generator.choices(topics[:1_000], k=draws)),
                _nanoseconds(routing.match, _zipf(topics, draws, generator)),
                _nanoseconds(routing.match, uniform),
                _nanoseconds(answers.__getitem__, uniform),
            )


def _steps(report: Report) -> None:
    """What a worker does for one notification and one subscriber."""
    count, place = 2_000 if report.quick else 50_000, TopicPath("{urn:t}bench/p1")
    content = b'<b:m xmlns:b="urn:bench" size="7"><b:a>1</b:a>' + b"x" * 740 + b"</b:m>"
    message = Notification("0" * 32, place, content, 1)
    _, record = notifications.encode(message)
    topics = (TopicFilter("", "t:bench//.", "{urn:t}bench//."),)
    plain = Subscription("s" * 24, EndpointReference("http://h/c"), "http://b/s", topics)
    filtered = Subscription(
        "f", EndpointReference("http://h/"), content=(XPathFilter(XPATH_1, "@size > 5", {"b": "urn:bench"}),)
    )
    keys = KeyRing({"k1": bytes(range(32))})
    secret = SigningSecret(keys.seal(bytes(range(32)), plain.sealing_context()))
    opener = SecretOpener(SecretSettings(), keys)
    signed = Envelope(msgspec.structs.replace(plain, protection=Protection((secret,))), opener)
    envelope, conditions, fifty = Envelope(plain), Conditions(), [message] * 50
    routing = RoutingTable()
    routing.apply(SubscriptionRecord(plain))
    view, received = SnapshotView(Snapshot.build(routing.checkpoint())), Received(message, 0, 0)

    def lane() -> None:
        lanes.add(received, plain)
        taken = lanes.take()
        assert taken is not None
        lanes.settle(taken[0].id, place)

    lanes = Lanes(PushSettings(max_notify_messages=1, max_notify_bytes=1))
    steps: dict[str, Callable[[], object]] = {
        "read the record": lambda: notifications.decode(record),
        "match by topic": lambda: view.match(place),
        "a content filter, payload parsed": lambda: Subject(conditions, message).passes(filtered),
        "queue in a lane, take and settle": lane,
        "envelope, one message": lambda: envelope.request([message], attempt=1),
        "envelope, fifty messages": lambda: envelope.request(fifty, attempt=1),
        "envelope, one message, signed": lambda: signed.request([message], attempt=1),
    }
    with report.table("a worker's steps", "step", "us each") as table, ReceiverProcess() as receiver:
        for name, step in steps.items():
            table.add(name, _each(step, count // (50 if "fifty" in name else 1)))
        request = envelope.request([message], attempt=1)
        target = PushRequest(receiver.url, request.headers, request.body)
        transports: tuple[tuple[str, Transport, int], ...] = (
            ("libcurl", CurlTransport(PushSettings(), THIS_MACHINE), count),
            ("requests-futures", FuturesTransport(PushSettings(), THIS_MACHINE), count // 10),
        )
        for name, transport, number in transports:
            _push(transport, target, 200)
            before = cpu_s(psutil.Process())
            _push(transport, target, number)
            table.add(f"push with {name}, CPU", (cpu_s(psutil.Process()) - before) / number * 1e6)
            transport.close()


def _push(transport: Transport, request: PushRequest, count: int) -> None:
    begun = 0
    while begun < count or transport.in_flight:
        while begun < count and transport.in_flight < 64:
            transport.submit(request, lambda _: None)
            begun += 1
        transport.drive(1.0)


def _each(action: Callable[[], object], count: int) -> float:
    """Microseconds."""
    return seconds(lambda: [action() for _ in range(count)], 3) / count * 1e6


CASES = {"match": _match, "steps": _steps}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))


def measure(report: Report) -> None:
    for case in report.options.cases or CASES:
        CASES[case](report)


if __name__ == "__main__":
    run(measure, options)
