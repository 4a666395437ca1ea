"""What is urgent, behind what waits: one receiver that is slow, so many messages of priority 0 waiting for it, and ten
a second of priority 5 beside them, for the same subscription and on the same topics.

    python -m benchmarks.dispatch.priority [--quick] [--json FILE]

*Parked* is what has come while the subscription was paused: from the resume on the redelivery pushes it. *In the log*
is what was accepted in one burst and is being read: what is urgent stands behind all of that. Delays count from the
append to the log, of the urgent ones from the moment at which each was meant to be appended; of those that were parked,
from the resume.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from arborcast.core.eventlog.scan import LogScan
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from benchmarks.dispatching import Arrival, Dispatching, dispatching, out_of_order, percentile, settings_arguments
from benchmarks.harness import Report, Table, run

TITLE = "Ten urgent ones a second behind what waits"

# With fifty messages in a push it takes some 800 a second.
_PATH = "slow/0.05"
_PACE = 800

_URGENT = 5
_RATE = 10.0
_PARK_S = 300.0


def measure(report: Report) -> None:
    columns = ("gear", "where", "waiting", "priority", "sent", "lost", "twice", "disorder", "p50 ms", "p99 ms")
    parked, read = ((2_000,), 2_000) if report.quick else ((10_000, 100_000), 20_000)
    note = "a receiver that takes 50 ms for each push of up to 50 messages"
    with report.table(TITLE, *columns, note=note) as table:
        for gear in ("realtime", "batch"):
            with dispatching(settings_arguments([f"dispatch.gear={gear}"])) as bench:
                slow = _subscribed(bench)
                warm = bench.append_at(20, 5, "warm")
                bench.arrivals(len(warm))
                for waiting in parked:
                    _behind_parked(bench, table, gear, slow, waiting)
                _behind_read(bench, table, gear, read)


def _subscribed(bench: Dispatching) -> Subscription:
    topics = (TopicFilter("", "bench//.", "bench//."),)
    consumer = EndpointReference(f"{bench.receiver_url}/{_PATH}")
    slow = Subscription("slow", consumer, "http://127.0.0.1/wsn/slow", topics)
    bench.control([SubscriptionRecord(slow)])
    return slow


def _behind_parked(bench: Dispatching, table: Table, gear: str, slow: Subscription, waiting: int) -> None:
    bench.clear()
    bench.control([SubscriptionRecord(msgspec.structs.replace(slow, paused=True))])
    time.sleep(1.0)  # without a stamp it is the moment of matching that counts
    before = _parked(bench)
    ordinary = bench.append([f"p{waiting}-{number}" for number in range(waiting)])
    deadline = time.monotonic() + _PARK_S
    while _parked(bench) < before + waiting:
        assert time.monotonic() < deadline, f"not all was parked within {_PARK_S:g} s"
        time.sleep(0.5)
    resumed = time.time()
    bench.control([SubscriptionRecord(slow)])
    urgent = bench.append_at(_RATE, 0.75 * waiting / _PACE, f"pu{waiting}", priority=_URGENT)
    _compare(bench, table, (gear, "parked", waiting), dict.fromkeys(ordinary, resumed), urgent)


def _behind_read(bench: Dispatching, table: Table, gear: str, waiting: int) -> None:
    bench.clear()
    ordinary = bench.append([f"r{waiting}-{number}" for number in range(waiting)])
    urgent = bench.append_at(_RATE, 0.75 * waiting / _PACE, f"ru{waiting}", priority=_URGENT)
    _compare(bench, table, (gear, "in the log", waiting), ordinary, urgent)


def _compare(
    bench: Dispatching,
    table: Table,
    case: tuple[str, str, int],
    ordinary: Mapping[str, float],
    urgent: Mapping[str, float],
) -> None:
    arrived = bench.arrivals(len(ordinary) + len(urgent), timeout=30)
    gear, where, waiting = case
    for priority, sent in ((0, ordinary), (_URGENT, urgent)):
        mine: list[Arrival] = [each for each in arrived if each.notification in sent]
        unique = {each.notification for each in mine}
        delays = [(each.at - sent[each.notification]) * 1000 for each in mine]
        lost, twice = len(sent) - len(unique), len(mine) - len(unique)
        figures = (lost, twice, out_of_order(mine, sent), percentile(delays, 0.5), percentile(delays, 0.99))
        table.add(gear, where, f"{waiting:,}", priority, len(sent), *figures)


def _parked(bench: Dispatching) -> int:
    """How many records the log of parked deliveries has had."""
    with LogScan(bench.kafka, "parked") as log:
        return sum(log.ends().values())


if __name__ == "__main__":
    run(measure)
