"""A chain of three triggers beside a plain delivery of the same messages: each step is one more way through the log.

    python -m benchmarks.operation.triggers [--quick] [--json FILE]

Asked: about as many times the median of a plain delivery as there are ways, four; in both gears.
"""

from __future__ import annotations

import time
from itertools import pairwise

from arborcast.core.eventlog.scan import LogScan
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TriggerRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter, Trigger
from arborcast.topic_model.topics import TopicPath
from benchmarks.dispatching import Dispatching, dispatching, percentile
from benchmarks.harness import Report, run

_STEPS = ("bench//.", "chain/one", "chain/two", "chain/three")
_MOST = 1.5 * len(_STEPS)


def measure(report: Report) -> None:
    rate, seconds = (20.0, 5.0) if report.quick else (20.0, 30.0)
    title = f"{rate:g}/s for {seconds:g} s: plain, and through three triggers in a row"
    columns = ("gear", "plain p50 ms", "chain p50 ms", "p50 ratio", "plain p99 ms", "chain p99 ms", "asked")
    with report.table(title, *columns) as table:
        for gear in ("realtime", "batch"):
            with dispatching({"dispatch.gear": gear}) as bench:
                bench.subscribe(("plain",))
                bench.subscribe(("chain",), _STEPS[-1])
                bench.control(_chain())
                time.sleep(2.0)
                bench.arrivals(2 * len(bench.append_at(rate, 3.0, "warm")))
                bench.clear()
                sent = bench.append_at(rate, seconds, "n")
                arrived = bench.arrivals(2 * len(sent))
                roots = _roots(bench)
                plain, chain = (
                    [
                        (each.at - sent[root]) * 1e3
                        for each in arrived
                        if each.path == path and (root := roots[each.notification]) in sent
                    ]
                    for path in ("/plain", "/chain")
                )
            if min(len(plain), len(chain)) < len(sent):
                raise RuntimeError(f"of {len(sent)} came {len(plain)} and, through triggers, {len(chain)}")
            medians, slowest = ([percentile(each, share) for each in (plain, chain)] for share in (0.5, 0.99))
            table.add(gear, *medians, round(medians[1] / medians[0], 2), *slowest, f"at most {_MOST:g}")


def _chain() -> list[ControlRecord]:
    records: list[ControlRecord] = [TopicRecord(TopicPath(each)) for each in _STEPS[1:]]
    for number, (on, to) in enumerate(pairwise(_STEPS)):
        trigger = Trigger(f"step{number}", TopicPath(to))
        topics = (TopicFilter("", on, on),)
        endpoint = EndpointReference(trigger.endpoint)
        records.append(TriggerRecord(Subscription(trigger.name, endpoint, topics=topics, trigger=trigger)))
    return records


def _roots(bench: Dispatching) -> dict[str, str]:
    """By id of a notification that of the one which set it all off."""
    with LogScan(bench.kafka, "notifications") as log:
        causes = {each.id: each.cause for each in (notifications.decode(record.value) for record in log.read_all())}
    roots: dict[str, str] = {}
    for name in causes:
        root = name
        while causes.get(root):
            root = causes[root]
        roots[name] = root
    return roots


if __name__ == "__main__":
    run(measure)
