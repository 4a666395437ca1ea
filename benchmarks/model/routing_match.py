"""How long `match` takes, over sizes of tree and table, and beside other ways to do it.

python -m benchmarks.model.routing_match [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from arborcast.topic_model.patterns.alternatives import Reach
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath, ancestors
from benchmarks.harness import Report, run, warn
from benchmarks.model.routing_data import NAMESPACE, subscription, topic

_CHUNK = 1_000
_HOT = 1_000

Match = Callable[[TopicPath], Sequence[Subscription] | Iterable[object]]


def nanoseconds(match: Match, asked: Sequence[TopicPath], rounds: int = 3) -> float:
    """Best time per call. Each topic is a new string, as it is when a notification was just decoded."""
    best = float("inf")
    for _ in range(rounds):
        spent = 0.0
        for start in range(0, len(asked), _CHUNK):
            fresh = [TopicPath(path[:1] + path[1:]) for path in asked[start : start + _CHUNK]]
            begin = time.perf_counter()
            for path in fresh:
                match(path)
            spent += time.perf_counter() - begin
        best = min(best, spent / len(asked) * 1e9)
    return best


def zipf(choices: Sequence[TopicPath], count: int, generator: random.Random) -> list[TopicPath]:
    """Draws in which the n-th of the choices is n times as rare as the first."""
    cumulative = list(itertools.accumulate(1 / rank for rank in range(1, len(choices) + 1)))
    return [choices[bisect(cumulative, generator.random() * cumulative[-1])] for _ in range(count)]


def table_of(topics: Iterable[TopicPath], subscriptions: Iterable[Subscription]) -> RoutingTable:
    table = RoutingTable()
    for path in topics:
        table.apply(TopicRecord(path))
    for each in subscriptions:
        table.apply(SubscriptionRecord(each))
    return table


def ask_everything(table: RoutingTable, topics: Iterable[TopicPath]) -> dict[str, object]:
    return {path: table.match(path) for path in topics}


def grid(report: Report) -> None:
    sizes = (10, 1_000, 100_000) if report.quick else (10, 1_000, 100_000, 1_000_000)
    numbers = (100, 10_000) if report.quick else (100, 10_000, 1_000_000)
    draws = 50_000 if report.quick else 300_000
    with report.table(
        "match, nanoseconds per call, answers of one subscription, depth 4",
        "topics",
        "subscriptions",
        "hot 1,000",
        "zipf",
        "uniform",
        "uniform, bare dict",
        "matches/s, uniform",
        note="Subscriptions beyond the topics are on other topics. `bare dict` is one dictionary of finished answers: "
        "what it costs to fetch\na random one of so many objects from memory. Lookups are timed alone.",
    ) as table:
        for size, number in itertools.product(sizes, numbers):
            table.add(size, number, *_cell(size, number, 4, draws))
    with report.table(
        "match over depth, nanoseconds per call, 100,000 topics and subscriptions"
        if not report.quick
        else "match over depth, nanoseconds per call, 10,000 topics and subscriptions",
        "depth",
        "subscriptions",
        "hot 1,000",
        "zipf",
        "uniform",
        "uniform, bare dict",
        "matches/s, uniform",
    ) as table:
        for depth in (2, 5, 10, 20):
            size = 10_000 if report.quick else 100_000
            table.add(depth, size, *_cell(size, size, depth, draws))


def _cell(size: int, number: int, depth: int, draws: int) -> tuple[float, float, float, float, float]:
    generator = random.Random(size + number)
    topics = [topic(each, depth) for each in range(size)]
    asked = generator.sample(topics, min(size, number))
    others = (topic(each, depth, "elsewhere") for each in range(number - len(asked)))
    table = table_of(topics, (subscription(at, path) for at, path in enumerate(itertools.chain(asked, others))))
    answers = ask_everything(table, generator.sample(asked, len(asked)))
    gc.collect()
    uniform = generator.choices(asked, k=draws)
    measured = (
        nanoseconds(table.match, generator.choices(asked[:_HOT], k=draws)),
        nanoseconds(table.match, zipf(asked, draws, generator)),
        nanoseconds(table.match, uniform),
        nanoseconds(answers.__getitem__, uniform),  # type: ignore[arg-type]
    )
    return *measured, 1e9 / measured[2]


def answers(report: Report) -> None:
    """What a wider answer costs, and the first look-up after a change."""
    size = 10_000 if report.quick else 100_000
    generator = random.Random(3)
    with report.table(
        f"first and further look-ups of a topic, nanoseconds, {size:,} topics, one exact subscription each",
        "depth",
        "wide subscriptions",
        "answer",
        "first",
        "further (hot)",
    ) as table:
        for depth, wide in ((4, 0), (4, 1), (4, 10), (20, 1)):
            topics = [topic(each, depth) for each in range(size)]
            exact = (subscription(at, path) for at, path in enumerate(topics))
            subtrees = (subscription(size + each, f"{{{NAMESPACE}}}plant//.") for each in range(wide))
            routing = table_of(topics, itertools.chain(exact, subtrees))
            order = generator.sample(topics, size)
            first = nanoseconds(routing.match, order, rounds=1)
            hot = nanoseconds(routing.match, generator.choices(order[:_HOT], k=size))
            table.add(depth, wide, len(routing.match(order[0])), first, hot)


def scan(subscriptions: Sequence[Subscription]) -> Match:
    """Every subscription is asked."""
    patterns = [(parse_normal(each.topics[0].normal), each) for each in subscriptions]
    return lambda path: [each for pattern, each in patterns if pattern.matches(path)]


def walk(subscriptions: Sequence[Subscription]) -> Match:
    """No answer is remembered: the anchors of the topic's ancestors are looked up for each notification."""
    anchored: dict[tuple[str, Reach], list[Subscription]] = {}
    for each in subscriptions:
        for alternative in parse_normal(each.topics[0].normal).alternatives:
            anchored.setdefault((alternative.anchor, alternative.reach), []).append(each)

    def match(path: TopicPath) -> list[Subscription]:
        found = [*anchored.get((path, Reach.SELF), ()), *anchored.get((path, Reach.SUBTREE), ())]
        for distance, above in enumerate(ancestors(path)):
            if distance == 0:
                found += anchored.get((above, Reach.CHILDREN), ())
            found += anchored.get((above, Reach.DESCENDANTS), ())
            found += anchored.get((above, Reach.SUBTREE), ())
        return found

    return match


def mqtt(subscriptions: Sequence[Subscription]) -> Match | None:
    """The matcher of paho-mqtt, a trie that well-used MQTT clients have; None when it is not installed."""
    try:
        from paho.mqtt.matcher import MQTTMatcher
    except ImportError:
        warn("paho-mqtt is not installed: its column stays empty (pip install paho-mqtt)")
        return None
    untyped: Any = MQTTMatcher  # its package is typed, this class is not
    matcher = untyped()
    by_filter: dict[str, list[Subscription]] = {}
    for each in subscriptions:
        # `#` is a subtree with its root, as `//.` is.
        by_filter.setdefault(each.topics[0].normal.replace("//.", "/#"), []).append(each)
    for text, members in by_filter.items():
        matcher[text] = members
    return lambda path: [each for members in matcher.iter_match(path) for each in members]


def rivals(report: Report) -> None:
    numbers = (100, 1_000) if report.quick else (100, 10_000, 100_000)
    with report.table(
        "beside other ways, nanoseconds per match, one exact subscription per topic and ten on subtrees",
        "subscriptions",
        "depth",
        "RoutingTable",
        "its first look-ups",
        "walk up per notification",
        "paho-mqtt matcher",
        "naive scan",
        note="Uniform draws; each answer is the exact subscription and the subtrees above it.",
    ) as table:
        for number, depth in itertools.product(numbers, (4, 12)):
            generator = random.Random(number)
            topics = [topic(each, depth) for each in range(number - 10)]
            subtrees = sorted({above for path in topics[:200] for above in ancestors(path)}, key=len)[:10]
            normals = itertools.chain(topics, (f"{above}//." for above in subtrees))
            everyone = [subscription(at, normal) for at, normal in enumerate(normals)]
            routing = table_of(topics, everyone)
            asked = generator.choices(topics, k=20_000)
            first = nanoseconds(routing.match, generator.sample(topics, len(topics)), rounds=1)
            ways: list[Match | None] = [routing.match, walk(everyone), mqtt(everyone), scan(everyone)]
            _must_agree([way for way in ways if way], asked[:20])
            routed, walked, matched, scanned = (
                None if way is None else nanoseconds(way, asked if at < 3 else asked[: 2_000_000 // number], rounds=2)
                for at, way in enumerate(ways)
            )
            table.add(number, depth, routed, first, walked, matched, scanned)


def _must_agree(ways: Sequence[Match], asked: Sequence[TopicPath]) -> None:
    for path in asked:
        found: Iterator[list[str]] = (sorted(each.id for each in way(path)) for way in ways)  # type: ignore[attr-defined]
        expected = next(found)
        assert all(other == expected for other in found), path


def measure(report: Report) -> None:
    grid(report)
    answers(report)
    rivals(report)


if __name__ == "__main__":
    run(measure)
