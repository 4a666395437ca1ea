"""A receiver that is away for ten seconds, under each reliability: what it gets, and what that does to everybody else.

    python -m benchmarks.operation.reliabilities [--quick] [--json FILE]

Asked: strict gets all of it in order, timely what came while it was there, adaptive no more than may wait; and the
others' p99 within 1.5 times that without it, in the same run. The rate is one that a strict lane keeps up with: it
pushes one message at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.subscriptions import (
    DeliveryPolicy,
    EndpointReference,
    Reliability,
    Subscription,
    TopicFilter,
)
from benchmarks.dispatching import Arrival, Dispatching, dispatching, out_of_order, percentile
from benchmarks.harness import Report, run
from tests.support.held_port import HeldPort
from tests.support.receiver import Receiver

_GEARS = ("realtime", "batch")
_NOBODY = "nobody"
_CASES: tuple[Reliability, ...] = ("strict", "adaptive", "timely")
_OTHERS = ("well0", "well1", "well2")
_LIMIT = 200

# Behind a strict lane that has ten seconds to catch up with.
_CAUGHT_UP_S = 120.0


@dataclass
class _Absent:
    """What a receiver that is away in the middle got. Times are seconds since the epoch."""

    arrived: Sequence[Arrival]
    left: float
    back: float


def measure(report: Report) -> None:
    rate, seconds, away_s, rounds = (50.0, 12.0, 4.0, 1) if report.quick else (200.0, 30.0, 10.0, 3)
    delays: dict[tuple[str, str], list[float]] = {}
    columns = (
        "gear",
        "reliability",
        "of all %",
        "of those sent while there %",
        "while away %",
        "its p99 ms",
        "disorder",
    )
    title = f"{rate:g}/s for {seconds:g} s, a receiver is away for {away_s:g} s, {_LIMIT} may wait"
    with report.table(title, *columns) as table:
        for gear in _GEARS:
            with dispatching({"dispatch.gear": gear, "retry.parked_messages": _LIMIT}) as bench:
                bench.subscribe(_OTHERS)
                bench.arrivals(len(bench.append_at(rate, 3.0, "warm")) * len(_OTHERS))
                for number in range(rounds):
                    # Each has its turn after each other one.
                    for case in (None, *_CASES)[:: -1 if number % 2 else 1]:
                        bench.clear()
                        label = f"{gear}-{number}-{case or _NOBODY}"
                        sent, absent = _away(bench, case, label, rate, seconds, away_s)
                        found = bench.arrivals(len(sent) * len(_OTHERS))
                        delays.setdefault((gear, case or _NOBODY), []).extend(
                            (each.at - sent[each.notification]) * 1e3 for each in found if each.notification in sent
                        )
                        if case is not None and absent is not None:
                            table.add(gear, case, *_got(absent, sent))
    with report.table("the others", "gear", "away is", "p50 ms", "p99 ms", "p99 ratio", "asked") as table:
        for (gear, away), of_others in delays.items():
            p99 = percentile(of_others, 0.99)
            asked = "" if away == _NOBODY else "at most 1.5"
            ratio = round(p99 / percentile(delays[gear, _NOBODY], 0.99), 2)
            table.add(gear, away, percentile(of_others, 0.5), p99, ratio, asked)


def _away(
    bench: Dispatching, case: Reliability | None, label: str, rate: float, seconds: float, away_s: float
) -> tuple[dict[str, float], _Absent | None]:
    """What was sent, and what the receiver got that was away in the middle of it."""
    if case is None:
        return bench.append_at(rate, seconds, label), None
    port = HeldPort()
    receiver = Receiver(port=port.number, keep_bodies=False)
    port.for_life_of(receiver)
    topics = (TopicFilter("", "bench//.", "bench//."),)
    policy = DeliveryPolicy(reliability=case)
    with receiver:
        endpoint = EndpointReference(receiver.url("/away"))
        bench.control(
            [SubscriptionRecord(Subscription(label, endpoint, f"http://127.0.0.1/{label}", topics, policy=policy))]
        )
        time.sleep(1.0)
        times: list[float] = []

        def leave() -> None:
            time.sleep((seconds - away_s) / 2)
            times.append(time.time())
            receiver.stop()
            time.sleep(away_s)
            receiver.start()
            times.append(time.time())

        leaving = threading.Thread(target=leave)
        leaving.start()
        sent = bench.append_at(rate, seconds, label)
        leaving.join()
        deadline, before = time.monotonic() + _CAUGHT_UP_S, -1
        while (count := len(_arrivals(receiver))) < len(sent) and time.monotonic() < deadline:
            if case != "strict" and count == before:
                break
            before = count
            time.sleep(5.0)
        bench.control([SubscriptionEnded(label, "unsubscribed", int(time.time() * 1000))])
        return sent, _Absent(_arrivals(receiver), *times)


def _arrivals(receiver: Receiver) -> list[Arrival]:
    found: dict[str, Arrival] = {}
    for request in receiver.requests:
        for name in request.headers["arborcast-notification-id"].split(","):
            found.setdefault(name, Arrival(request.at, request.path, name))
    return list(found.values())


def _got(absent: _Absent, sent: dict[str, float]) -> tuple[float, float, float, float, int]:
    got = {each.notification: each.at for each in absent.arrived if each.notification in sent}
    away = {name for name, at in sent.items() if absent.left <= at <= absent.back}
    there = sent.keys() - away
    delays = [(at - sent[name]) * 1e3 for name, at in got.items() if name in there]
    shares = (len(got) / len(sent), len(got.keys() & there) / len(there), len(got.keys() & away) / len(away))
    share, of_there, of_away = (round(100 * each, 1) for each in shares)
    disorder = out_of_order(absent.arrived, sent)
    return share, of_there, of_away, percentile(delays, 0.99) if delays else 0.0, disorder


if __name__ == "__main__":
    run(measure)
