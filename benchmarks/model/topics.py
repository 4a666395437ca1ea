"""What topics and expressions cost: memory per topic, reading expressions, selecting topics, documents.

python -m benchmarks.model.topics [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from arborcast.core.errors import ExpressionError
from arborcast.topic_model import expressions
from arborcast.topic_model.documents import read_json, read_topic_set, write_json, write_topic_set
from arborcast.topic_model.patterns.patterns import Pattern, parse_normal
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from benchmarks.harness import Report, resident, run, seconds

NAMESPACES = {"tns": "urn:t", "wsnt": "http://docs.oasis-open.org/wsn/b-2"}
ROOT = TopicPath("{urn:t}root")


def measure(report: Report) -> None:
    """All tables."""
    _tree(report)
    _reading(report)
    _refusing(report)
    _selecting(report)
    _documents(report)


def paths(count: int, width: int) -> Iterator[TopicPath]:
    """A root and below it a tree with so many children each, level by level, `count` topics in all."""
    layer = [ROOT]
    yield ROOT
    made = 1
    while True:
        following = []
        for parent in layer:
            for number in range(width):
                if made == count:
                    return
                made += 1
                path = TopicPath(f"{parent}/t{number}")
                following.append(path)
                yield path
        layer = following


def tree_of(count: int, width: int, *, codes: bool = False) -> TopicTree:
    tree = TopicTree()
    for number, path in enumerate(paths(count, width)):
        tree.put(TopicRecord(path, f"code-{number}" if codes else ""))
    return tree


def _tree(report: Report) -> None:
    columns = ("topics", "children each", "codes", "bytes per topic", "topics added/s")
    with report.table("The tree", *columns, note="Resident memory over that of the empty process, per topic.") as table:
        count = 10_000 if report.quick else 1_000_000
        # A process for each: memory that the last tree has left free would be counted as none.
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
            for width, codes in ((10, False), (2, False), (count, False), (10, True)):
                size, spent = processes.submit(_grow, count, width, codes).result()
                table.add(count, width, "yes" if codes else "no", size / count, count / spent)


def _grow(count: int, width: int, codes: bool) -> tuple[int, float]:
    before = resident()
    start = time.perf_counter()
    tree = tree_of(count, width, codes=codes)
    spent = time.perf_counter() - start
    size = resident() - before
    assert len(tree) == count
    return size, spent


def _microseconds(action: Callable[[], object], quick: bool) -> float:
    times = 200 if quick else 20_000
    return seconds(lambda: [action() for _ in range(times)], repeat=3) / times * 1e6


def _reading(report: Report) -> None:
    topic = TopicPath("{urn:t}site/building/floor/sensor")
    subtree, deep = parse_normal("{urn:t}site/building//."), parse_normal("{urn:t}site//sensor")
    actions: list[tuple[str, Callable[[], object]]] = [
        ("topic of a Notify", lambda: expressions.concrete_topic("tns:site/building/floor", None, NAMESPACES)),
        ("filter, Full", lambda: expressions.parse("tns:site/building//.", expressions.FULL, NAMESPACES)),
        ("filter, XPath", lambda: expressions.parse("//tns:site/building[floor]", expressions.XPATH, NAMESPACES)),
        ("normal form, remembered", lambda: parse_normal("{urn:t}site/building//.")),
        ("topic written for a push", lambda: expressions.write_topic(topic)),
        ("does a subtree match", lambda: subtree.matches(topic)),
        ("does a pattern with // match", lambda: deep.matches(topic)),
    ]
    with report.table("Expressions", "what", "µs each") as table:
        for what, action in actions:
            table.add(what, _microseconds(action, report.quick))


def _refusing(report: Report) -> None:
    hostile = {
        "10 MB": "a/" * 5_000_000,
        "10,000 alternatives": "|".join(["a"] * 10_000),
        "1,000 steps": "/".join(["a"] * 1_000),
        "256 alternatives, last one bad": "|".join(["/".join(["a"] * 60)] * 255) + "|",
    }
    with report.table("Refusing hostile expressions", "expression", "characters", "ms") as table:
        for what, text in hostile.items():
            table.add(what, len(text), seconds(partial(_refused, text), repeat=3) * 1e3)


def _refused(text: str) -> None:
    try:
        expressions.parse(text, expressions.FULL, {})
    except ExpressionError:
        return
    raise AssertionError("a hostile expression was accepted")


def _selecting(report: Report) -> None:
    chosen = [
        (expressions.FULL, "tns:root/t1//."),
        (expressions.FULL, "tns:root//t1"),
        (expressions.XPATH, "tns:root/t1"),
        (expressions.XPATH, "//t1//t2"),
        (expressions.XPATH, "//*//*"),
        (expressions.XPATH, "//*[count(.//*) > 2]"),
    ]
    sizes = (1_000, 4_000) if report.quick else (10_000, 100_000, 1_000_000)
    columns = ("topics", "expression", "selected", "seconds", "µs per topic")
    with report.table("Selecting from the tree", *columns, note="XPath must grow in line with the topics.") as table:
        for count in sizes:
            tree = tree_of(count, 10)
            for dialect, text in chosen:
                pattern = expressions.compile_normal(expressions.parse(text, dialect, NAMESPACES).normal)
                start = time.perf_counter()
                selected = sum(
                    1 for _ in (tree.select(pattern) if isinstance(pattern, Pattern) else pattern.select(tree))
                )
                spent = time.perf_counter() - start
                table.add(count, text, selected, spent, spent / count * 1e6)
            del tree
            gc.collect()


def _documents(report: Report) -> None:
    count = 1_000 if report.quick else 100_000
    records = list(tree_of(count, 10, codes=True).records())
    columns = ("document", "topics", "bytes", "written in s", "read in s")
    with report.table("Documents", *columns) as table:
        for name, write, read in (("TopicSet", write_topic_set, read_topic_set), ("JSON", write_json, read_json)):
            start = time.perf_counter()
            document = write(records)
            written = time.perf_counter()
            read(document)
            table.add(name, count, len(document), written - start, time.perf_counter() - written)


if __name__ == "__main__":
    run(measure)
