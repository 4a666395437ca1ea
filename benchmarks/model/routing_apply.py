"""What subscribing costs: exact subscriptions, wide ones, replaying a log, coming and going; time and memory.

    python -m benchmarks.model.routing_apply [--quick] [--json FILE]

The log is replayed from encoded records in memory, so this is decoding and applying without Kafka.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    TopicRecord,
    decode,
    encode,
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, median_ms, resident, run
from benchmarks.model.routing_data import NAMESPACE, NOW_MS, subscription, topic

_CHUNK = 10_000


def exact(number: int) -> ControlRecord:
    return SubscriptionRecord(subscription(number, topic(number)))


def shared_topic(number: int) -> ControlRecord:
    return SubscriptionRecord(subscription(number, topic(number % 1_000), consumer=number % 5_000))


def legacy_subtree(number: int) -> ControlRecord:
    return SubscriptionRecord(subscription(number, f"{topic(number)}//."))


def plain_topic(number: int) -> ControlRecord:
    return TopicRecord(topic(number))


def mixed(number: int) -> ControlRecord:
    """Of ten records: a topic, seven exact subscriptions, a renewal, an end."""
    match number % 10:
        case 0:
            return TopicRecord(topic(number))
        case 8:
            return SubscriptionRecord(subscription(number - 7, topic(number - 7, tree="renewed")))
        case 9:
            return SubscriptionEnded(f"{number - 7:032x}", "unsubscribed", NOW_MS)
        case _:
            return exact(number)


def feed(table: RoutingTable, make: Callable[[int], ControlRecord], count: int) -> tuple[float, float]:
    """Seconds spent on decoding, and on applying."""
    decoding = applying = 0.0
    for start in range(0, count, _CHUNK):
        made = [encode(make(number)) for number in range(start, min(count, start + _CHUNK))]
        begin = time.perf_counter()
        records = [decode(key, value) for key, value in made]
        middle = time.perf_counter()
        for record in records:
            table.apply(record)
        applying += time.perf_counter() - middle
        decoding += middle - begin
    return decoding, applying


def rates(report: Report) -> None:
    count = 20_000 if report.quick else 1_000_000
    with report.table(
        f"{count:,} records from their encoded form into a new table",
        "records",
        "decoded and applied/s",
        "applied/s",
        "seconds",
        "resident bytes each",
        "with answers remembered",
        note="Every string is another one: ids, consumers and manager addresses of 32 to 69 characters, paths of 55.",
    ) as table:
        for name, make in (
            ("exact, a topic each", exact),
            ("exact, 1,000 topics", shared_topic),
            ("subtree of a topic each", legacy_subtree),
            ("topics", plain_topic),
            ("mixed log", mixed),
        ):
            routing = RoutingTable(remembered_answers=count)
            before = resident()
            decoding, applying = feed(routing, make, count)
            after = resident()
            remembered = None
            if make is exact:
                for number in range(count):
                    routing.match(topic(number))
                remembered = (resident() - before) / count
            seconds = decoding + applying
            table.add(name, count / seconds, count / applying, seconds, (after - before) / count, remembered)
            del routing
            gc.collect()


def traced(report: Report) -> None:
    """The same memory as Python's allocator sees it; apart, because tracing slows everything down."""
    count = 10_000 if report.quick else 100_000
    with report.table(f"bytes per exact subscription at {count:,}, traced", "traced bytes each") as table:
        routing = RoutingTable()
        tracemalloc.start()
        feed(routing, exact, count)
        gc.collect()
        table.add(tracemalloc.get_traced_memory()[0] / count)
        tracemalloc.stop()


def wide(report: Report) -> None:
    size = 20_000 if report.quick else 1_000_000
    routing = RoutingTable()
    for number in range(size):
        routing.apply(TopicRecord(topic(number)))
    root = f"{{{NAMESPACE}}}plant"
    kinds = {
        "subtree": f"{root}//.",
        "children": f"{root}/*",
        "everything": "//.",
        "two alternatives": f"{root}//.|{root}x//.",
        "one name at any depth": f"{root}//machine7",
        "one level of any name": f"{root}/*/level2-3//.",
    }
    with report.table(
        f"wide subscriptions over {size:,} topics",
        "kind",
        "first, ms",
        "2nd to 1000th, median ms",
        "slowest ms",
        "bytes each",
        "keys",
        "first answer after, us",
        note="Answers of 100,000 topics were remembered before each, and are forgotten by it.",
    ) as table:
        for kind, normal in kinds.items():
            for number in range(min(size, 100_000)):
                routing.match(topic(number))
            first = _timed(routing, subscription(0, normal))
            begin = time.perf_counter()
            routing.match(topic(5))
            answered = (time.perf_counter() - begin) * 1e6
            more = [subscription(number, normal) for number in range(1, 1_000)]
            times = [_timed(routing, each) for each in more]
            keys = sum(1 for _, selector in routing.expansion() if selector == normal)
            for each in more:
                routing.apply(SubscriptionEnded(each.id, "unsubscribed", NOW_MS))
            # Traced, and so not timed: what was resident before would be used again unseen.
            gc.collect()
            tracemalloc.start()
            for each in more:
                _timed(routing, each)
            gc.collect()
            each_bytes = tracemalloc.get_traced_memory()[0] / len(more)
            tracemalloc.stop()
            table.add(kind, first * 1e3, median_ms(times), max(times) * 1e3, each_bytes, keys, answered)
            for number in range(1_000):
                routing.apply(SubscriptionEnded(f"{number:032x}", "unsubscribed", NOW_MS))


def _timed(routing: RoutingTable, each: Subscription) -> float:
    # As it comes from the log: nothing in it is shared with other subscriptions.
    key, value = encode(SubscriptionRecord(each))
    record = decode(key, value)
    begin = time.perf_counter()
    routing.apply(record)
    return time.perf_counter() - begin


def coming_and_going(report: Report) -> None:
    pairs = 20_000 if report.quick else 1_000_000
    with report.table(
        f"{pairs:,} pairs of subscribe and unsubscribe, each matched in between; 10,000 subscriptions stay",
        "kind",
        "pairs/s",
        "resident before, MB",
        "after, MB",
        "change, %",
        note="Ids, consumers and topics never repeat. The first twentieth of the pairs is run before `before` is read.",
    ) as table:
        kinds: dict[str, Callable[[int], str]] = {
            "exact": topic,
            "subtree": lambda number: f"{topic(number)}//.",
            "with steps": lambda number: f"{topic(number)}//a|{topic(number)}",
        }
        for kind, normal in kinds.items():
            routing = RoutingTable()
            feed(routing, exact, 10_000)
            checkpoint = routing.checkpoint()
            checkpoint.take()
            _pairs(routing, range(10**7, 10**7 + pairs // 20), normal)
            before = resident()
            begin = time.perf_counter()
            _pairs(routing, range(2 * 10**7, 2 * 10**7 + pairs), normal)
            seconds = time.perf_counter() - begin
            after = resident()
            assert checkpoint.overlay().size == 0
            table.add(kind, pairs / seconds, before / 1e6, after / 1e6, (after / before - 1) * 100)


def _pairs(routing: RoutingTable, numbers: range, normal: Callable[[int], str]) -> None:
    for number in numbers:
        each = subscription(number, normal(number))
        routing.apply(SubscriptionRecord(each))
        assert routing.match(TopicPath(topic(number)))
        routing.apply(SubscriptionEnded(each.id, "unsubscribed", NOW_MS))


def measure(report: Report) -> None:
    rates(report)
    traced(report)
    wide(report)
    coming_and_going(report)


if __name__ == "__main__":
    run(measure)
