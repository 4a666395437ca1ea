"""What a subscription may ask for beyond its topics: a minimum interval, a deadline, types.

    python -m benchmarks.dispatch.subscription_qos [--quick] [--json FILE]

The interval: a thousand notifications a second on one topic, a worker killed in the middle. Deadlines: a publisher that
is stopped and started again. Types: what matching costs in the worker, without and with them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Matched, evaluation_in
from arborcast.dispatch.matching.filters import Allowance, Conditions, Judge
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import History, Recipients, RoutingTable
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from benchmarks.dispatching import PAYLOAD, Dispatching, dispatching, percentile
from benchmarks.harness import Report, run, seconds

_TOPIC = TopicPath("bench/topic0")

_RATE, _INTERVAL_MS = 1_000, 100

_DEADLINE_S = 2.0

INTERVAL = f"{_RATE:,}/s on one topic, minimum interval {_INTERVAL_MS} ms, a worker killed in the middle"

DEADLINE = f"Deadline {_DEADLINE_S:g} s, publisher stopped and started"

TYPES = "Type filter, matching in a worker"


def measure(report: Report) -> None:
    intervals(report)
    deadlines(report)
    types(report)


def _subscription(bench: Dispatching, name: str, policy: DeliveryPolicy) -> SubscriptionRecord:
    return SubscriptionRecord(
        Subscription(
            name,
            EndpointReference(f"{bench.receiver_url}/{name}"),
            address=f"http://127.0.0.1/wsn/subscriptions/{name}",
            topics=(TopicFilter("", "bench//.", "bench//."),),
            form="raw",
            policy=policy,
            created_ms=int(time.time() * 1000),
        )
    )


def _publish(
    kafka: KafkaSettings, rate: float, for_s: float, label: str, halfway: Callable[[], object] = lambda: None
) -> dict[str, int]:
    """At an even rate on one topic; when each was accepted, by id. `halfway` is done in the middle."""
    producer = make_producer(kafka)
    accepted: dict[str, int] = {}
    began, done = time.time(), False
    for number in itertools.count():
        at = began + number / rate
        if at > began + for_s:
            break
        if not done and at > began + for_s / 2:
            done = True
            halfway()
        time.sleep(max(0.0, at - time.time()))
        name, now_ms = f"{label}-{number}", int(time.time() * 1000)
        key, value = notifications.encode(Notification(name, _TOPIC, PAYLOAD, now_ms))
        producer.send(kafka.topic("notifications"), key=key, value=value)
        accepted[name] = now_ms
    producer.flush()
    producer.close(timeout=5)
    return accepted


def passing(accepted_ms: Sequence[int], interval_ms: int) -> int:
    """How many pass, by the rule alone."""
    until = count = 0
    for at_ms in accepted_ms:
        if at_ms >= until:
            until, count = at_ms + interval_ms, count + 1
    return count


def intervals(report: Report) -> None:
    columns = ("gear", "accepted", "due", "arrived", "twice", "apart ms", "matched", "thinned", "neither")
    with report.table(
        INTERVAL,
        *columns,
        note="due: what passes by the rule; apart: the least time between the acceptances of two that arrived; matched "
        "and thinned: by\nthe attempts log",
    ) as table:
        for gear in ("realtime", "batch"):
            with dispatching({"dispatch.gear": gear}) as bench:
                bench.control([_subscription(bench, "sparse", DeliveryPolicy(interval_ms=_INTERVAL_MS))])
                warm = _publish(bench.kafka, 20, 2, "warm")
                bench.arrivals(passing(list(warm.values()), _INTERVAL_MS), timeout=20)
                accepted = _publish(bench.kafka, _RATE, 10 if report.quick else 60, "n", lambda: _kill_worker(bench))
                due = passing([*accepted.values()], _INTERVAL_MS)
                found = [each.notification for each in bench.arrivals(1 << 30, timeout=20)]
                arrived = [name for name in found if name in accepted]
                times = sorted(accepted[name] for name in set(arrived))
                evaluated = _evaluated(bench.kafka, accepted)
                matched = sum(each.subscriptions for each in evaluated)
                thinned = sum(each.thinned for each in evaluated)
                table.add(
                    gear,
                    len(accepted),
                    due,
                    len(times),
                    len(arrived) - len(times),
                    min((after - before for before, after in itertools.pairwise(times)), default=None),
                    matched,
                    thinned,
                    len(accepted) - matched - thinned,
                )


def _kill_worker(bench: Dispatching) -> None:
    bench.processes()["worker"][0].kill()


def _evaluated(kafka: KafkaSettings, accepted: dict[str, int]) -> list[Matched]:
    """What was last written of each of these."""
    found: dict[str, Matched] = {}
    with LogScan(kafka, "attempts") as log:
        for record in log.read_all():
            evaluation = evaluation_in(record.value)
            for each in evaluation.matched if evaluation is not None else ():
                if each.notification in accepted:
                    found[each.notification] = each
    return list(found.values())


def deadlines(report: Report) -> None:
    rounds = 3 if report.quick else 10
    with report.table(
        DEADLINE,
        *("gear", "stops", "misses", "mets", "miss late, median ms", "most", "met late, median ms", "most "),
        note="late: a miss behind the deadline's end, a met behind the acceptance of what came again, as the receiver "
        "saw it",
    ) as table:
        for gear in ("realtime", "batch"):
            with dispatching({"dispatch.gear": gear}) as bench:
                policy = DeliveryPolicy(deadline_ms=int(_DEADLINE_S * 1000))
                bench.control([_subscription(bench, "asks", policy)])
                bench.arrivals(len(_publish(bench.kafka, 20, 2, "warm")), timeout=20)
                first_s, last_s = [], []
                for number in range(rounds + 1):
                    times = list(_publish(bench.kafka, 20, 1, f"d{number}").values())
                    first_s.append(times[0] / 1000)
                    last_s.append(times[-1] / 1000)
                    time.sleep(_DEADLINE_S + 2)
                arrived = {each.notification: each.at for each in bench.arrivals(1 << 30, timeout=3)}
                late: dict[str, list[float]] = {"deadline-missed": [], "deadline-met": []}
                for kind, at in _told(bench.kafka, arrived):
                    # The last one that it can be about.
                    due = [each + _DEADLINE_S for each in last_s] if kind == "deadline-missed" else first_s
                    if (before := [each for each in due if each <= at]) and at < last_s[-1] + _DEADLINE_S:
                        late[kind].append(at - before[-1])
                table.add(
                    gear,
                    rounds,
                    len(late["deadline-missed"]),
                    len(late["deadline-met"]),
                    *(
                        value * 1000 if values else None
                        for values in late.values()
                        for value in (percentile(values or [0.0], 0.5), max(values, default=0.0))
                    ),
                )


def _told(kafka: KafkaSettings, arrived: Mapping[str, float]) -> list[tuple[str, float]]:
    """What the engine said of deadlines: which, and when it arrived."""
    found = []
    with LogScan(kafka, "notifications") as log:
        for record in log.read_all():
            made = notifications.decode(record.value)
            kind = made.topic.rpartition("/")[2]
            if kind.startswith("deadline-") and made.id in arrived:
                found.append((kind, arrived[made.id]))
    return found


def _match(recipients: Recipients, judge: Judge, notification: Notification) -> list[tuple[Subscription, bool]]:
    found = recipients.of(notification)
    return judge.wanted(notification, [*found.there, *found.ended])


def types(report: Report) -> None:
    number, rounds = 10_000, 5 if report.quick else 20
    reading, alarm = "{urn:plant}reading", "{urn:plant}alarm"
    notification = Notification("n", _TOPIC, PAYLOAD, 1, type=reading)
    costs: dict[str, float] = {}
    with report.table(
        TYPES,
        "subscriptions want",
        "subscriptions",
        "matched",
        "ms",
        "times none",
        note="one notification; the best of some",
    ) as table:
        for wanted, kinds in {
            "every type": (),
            "this type": (reading,),
            "this and another": (alarm, reading),
            "another type": (alarm,),
        }.items():
            routing = RoutingTable(history=History())
            routing.apply(TopicRecord(_TOPIC))
            for each in range(number):
                made = Subscription(
                    f"s{each}",
                    EndpointReference(f"http://r/{each}"),
                    topics=(TopicFilter("", _TOPIC, _TOPIC),),
                    types=kinds,
                )
                routing.apply(SubscriptionRecord(made))
            recipients = routing.recipients()
            judge = Judge(Conditions(), Allowance(1_000.0, 1_000.0))

            match = partial(_match, recipients, judge, notification)
            matched = len(match())
            costs[wanted] = seconds(match, rounds * 5) * 1000
            table.add(wanted, number, matched, costs[wanted], costs[wanted] / costs["every type"])


if __name__ == "__main__":
    run(measure)
