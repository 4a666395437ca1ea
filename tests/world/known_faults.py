"""Former faults of the dispatch: each is reintroduced for one short history, in which the world must find it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.hot import lanes, recovered, sink, stream
from arborcast.dispatch.hot import task as partition_task
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.realtime import driver, realtime_mode, recovery, task
from arborcast.dispatch.realtime.messages import ExclusionChange, WorkerProgress
from arborcast.dispatch.redelivery import redeliverer, session
from arborcast.ingest.state import changes, pull_queues
from arborcast.ingest.state.pull_queues import MessageClaim
from arborcast.topic_model.records.notifications import UNSTAMPED
from tests.world import engine, spark
from tests.world.gateways import GatewayProcess
from tests.world.history import History
from tests.world.oracle import Receipt, Violated


def begin(history: History, mode: str = "realtime", gateways: int = 1) -> None:
    """Start the gateways."""
    history.mode = mode
    for number in range(gateways):
        history.start_gateway(f"gateway {number + 1}")
    history.wait(lambda: all(each.ready for each in history.gateways), 60, "the gateways are ready")


def start(history: History) -> None:
    engine = history.start_engine()
    history.wait(lambda: engine.ready or engine.ended, 300, "the job is ready")
    if engine.error is not None:
        raise Violated(f"start: the job ended: {engine.error}")


def stop(history: History) -> None:
    engine = history.engine
    assert engine is not None
    engine.request_stop()
    history.wait(lambda: engine.ended, 120, "the job has stopped")


def subscribe(history: History, name: str, topic: str, **policy: Any) -> None:
    member = history.subscribe(history.gateways[0], name, topic, **policy)
    history.wait(lambda: member.changes[-1].answered is not None, 10, "the Subscribe is answered")


def notify(history: History, topic: str, count: int = 1, pause_s: float = 0.05, **said: Any) -> None:
    for _ in range(count):
        history.notify(history.gateways[0], topic, **said)
        history.kernel.sleep(pause_s)


def settled(history: History, within_s: float = 300.0) -> None:
    until = history.kernel.now + within_s
    while history.oracle.left() and history.kernel.now < until:
        history.kernel.sleep(0.5)
    history.kernel.sleep(2.0)


def rest(history: History, seconds: float) -> None:
    history.kernel.stretch(5_000.0)
    history.kernel.sleep(seconds)
    history.kernel.unstretch()
    history.kernel.sleep(0.1)


# Histories


def an_idle_partition_and_an_orderly_stop(history: History) -> None:
    begin(history)
    busy = next(name for number in range(100) if not partition_of_key((name := f"t{number}").encode(), 4))
    subscribe(history, "s", busy)
    start(history)
    for _ in range(10):
        notify(history, busy, 20)
        rest(history, 1_200.0)
    stop(history)
    start(history)
    assert history.engine is not None
    read = history.broker.read.get(("attempts", history.engine.process.pid), 0)
    if read > 20:
        raise Violated(f"start: {read} records of attempts were read behind an orderly stop with nothing under way")


def an_interval_of_a_day_for_nine_days(history: History) -> None:
    """Runs in real time end, and begin."""
    begin(history)
    subscribe(history, "s", "a", interval_ms=86_400_000)
    start(history)
    for _ in range(9 * 24 // 5):
        notify(history, "a")
        rest(history, 5 * 3_600.0)


def the_clock_put_back_before_a_task_begins(history: History) -> None:
    begin(history)
    subscribe(history, "s", "a")
    start(history)
    history.network.receiver("http://s/").behaviour = "failing"
    notify(history, "a")
    assert history.engine is not None
    assert history.engine.job is not None
    query: Any = history.engine.job.modes._realtime._query
    rest(history, 1_800.0)
    notify(history, "a", 3)
    history.hosts["one"].ahead_s -= 3_600.0
    query.end_batch()
    history.kernel.sleep(4.0)
    notify(history, "a", 3)
    history.network.receiver("http://s/").behaviour = "well"


def a_notify_through_another_gateway_behind_a_subscribe(history: History) -> None:
    begin(history, gateways=2)
    start(history)
    first, second = history.gateways
    subscribe(history, "other", "a")
    assert history.engine is not None
    second.process.lag_s, history.engine.process.lag_s = 1.0, 0.05
    for number in range(5):
        member = history.subscribe(first, f"s{number}", "a")
        while member.changes[-1].answered is None:
            history.kernel.sleep(0.001)
        history.notify(second, "a")
        history.kernel.sleep(0.5)
    second.process.lag_s = history.engine.process.lag_s = 0.0


def a_worker_killed_while_it_parks(history: History) -> None:
    """Its receiver is well again as soon as the first of what it parks is in the log."""
    begin(history, "batch")
    subscribe(history, "s", "a")
    start(history)
    receiver = history.network.receiver("http://s/")

    def recover(log: str, record: Any) -> None:
        if log == "parked":
            receiver.behaviour = "well"

    history.broker.appended.append(recover)
    for step in range(4, 20, 3):
        receiver.behaviour = "failing"
        for _ in range(12):
            history.notify(history.gateways[0], "a")
        history.kernel.sleep(0.001)
        assert history.engine is not None
        for each in history.engine.spark.idle[-1:]:
            each.kill_at = each.steps + step
        settled(history, 60.0)


def the_same_with_a_driver_an_hour_ahead_of_kafka(history: History) -> None:
    history.broker.host.ahead_s = -3_600.0
    a_worker_killed_while_it_parks(history)


def endpoints_that_are_dead_for_an_hour(history: History) -> None:
    begin(history)
    for number in range(60):
        subscribe(history, f"a-rather-long-name-of-an-endpoint-{number}", "a")
    start(history)
    for receiver in history.oracle.members:
        history.network.receiver(f"http://{receiver}/").behaviour = "refusing"
    notify(history, "a", 3)
    history.kernel.sleep(120.0)
    before, began = history.broker.bytes["feed"], history.kernel.now
    for _ in range(20):
        notify(history, "a")
        history.kernel.sleep(5.0)
    a_minute = (history.broker.bytes["feed"] - before) * 60.0 / (history.kernel.now - began)
    for receiver in history.oracle.members:
        history.network.receiver(f"http://{receiver}/").behaviour = "well"
    # 60 endpoints, each on trial about once a minute: a name each time, and a position with each retry.
    if a_minute > 60_000:
        raise Violated(f"bytes: {a_minute:.0f} bytes a minute in feed, with 60 dead endpoints")


def a_subscribe_behind_a_notify_while_no_job_runs(history: History) -> None:
    begin(history)
    subscribe(history, "before", "a")
    notify(history, "a")
    subscribe(history, "behind", "a")
    start(history)
    notify(history, "a")


def a_reliable_message_for_a_timely_subscription_that_is_away(history: History) -> None:
    begin(history)
    subscribe(history, "s", "a", reliability="timely")
    start(history)
    history.network.receiver("http://s/").behaviour = "refusing"
    notify(history, "a", 3, reliable=True)
    history.kernel.sleep(20.0)
    history.network.receiver("http://s/").behaviour = "well"


def a_validity_that_ends_while_an_endpoint_is_away(history: History) -> None:
    begin(history)
    subscribe(history, "s", "a")
    start(history)
    history.network.receiver("http://s/").behaviour = "refusing"
    notify(history, "a", 2, valid_until_ms=int((history.kernel.wall_s() + 10.0) * 1000))
    history.kernel.sleep(120.0)
    history.network.receiver("http://s/").behaviour = "well"


def a_last_message_while_a_worker_is_dead(history: History) -> None:
    """The next worker matches it before its first report."""
    begin(history)
    subscribe(history, "s", "a", deadline_ms=60_000)
    start(history)
    notify(history, "a")
    history.kernel.sleep(5.0)
    assert history.engine is not None
    for worker in history.engine.spark.workers:
        history.kernel.call(0.0, worker.kill)
    notify(history, "a")
    history.kernel.sleep(90.0)


def workers_that_die_again_and_again(history: History) -> None:
    begin(history)
    subscribe(history, "s", "a")
    start(history)
    history.network.receiver("http://s/").behaviour = "slow"
    assert history.engine is not None
    for _ in range(4):
        notify(history, "a", 3)
        for worker in history.engine.spark.workers:
            history.kernel.call(0.0, worker.kill)
        history.kernel.sleep(30.0)


def a_receiver_that_ends_its_subscription(history: History) -> None:
    begin(history)
    subscribe(history, "s", "a")
    start(history)
    member = history.oracle.members["s"]
    history.network.receiver("http://s/").behaviour = "gone"
    member.gone = True
    member.change(history.kernel.now, None)
    notify(history, "a")
    history.kernel.sleep(200.0)


def an_outage_of_kafka_right_after_retries(history: History) -> None:
    begin(history)
    subscribe(history, "s", "a")
    start(history)
    receiver = history.network.receiver("http://s/")
    receiver.behaviour = "failing"
    notify(history, "a", 20)
    history.kernel.sleep(1.0)
    receiver.behaviour = "well"
    history.wait(lambda: any(each.received and each.accepted for each in receiver.pushes), 120, "a retry succeeds")
    now = history.kernel.now
    history.broker.away_until = now + 30.0
    history.oracle.kafka_was_slow.append((now, now + 30.0))
    history.kernel.sleep(60.0)


def a_stop_while_messages_for_many_wait(history: History) -> None:
    begin(history)
    for number in range(600):
        history.subscribe(history.gateways[0], f"r{number}", "a")
    subscribe(history, "s", "a")
    with patched((engine, "PUSH", replace(engine.PUSH, max_in_flight=2))):
        start(history)
        notify(history, "a", 4, 0.0)
        history.wait(lambda: len(history.oracle.pushes) > 10, 60, "pushes have begun")
        stop(history)
        start(history)
        settled(history)
    # The oracle excuses the kill of a worker.
    if any(sum(each.accepted for each in pushes) > 1 for pushes in history.oracle.pushes.values()):
        raise Violated("twice: pushes were repeated after an orderly stop")


def a_backlog_of_large_messages(history: History) -> None:
    """Each round has room for some of them."""
    begin(history, "batch")
    subscribe(history, "s", "a")
    with patched((sink, "_MOST_BYTES", 40_000), (stream, "_BATCH_BYTES", 40_000)):
        start(history)
        history.kernel.sleep(10.0)
        notify(history, "a", 200, 0.0, payload=b"<m>" + b"x" * 10_000 + b"</m>")
        settled(history)
    read = history.kernel.counts["rows read by tasks of batches"]
    if read > 400:
        raise Violated(f"size: the tasks have read {read} rows of 200 notifications")


def a_client_that_receives_slowly(history: History) -> None:
    """Another client asks another gateway meanwhile."""
    begin(history, gateways=2)
    member = history.subscribe(history.gateways[0], "s", "a", more={"pull_point": "p"})
    history.wait(lambda: member.changes[-1].answered is not None, 10, "the Subscribe is answered")
    start(history)
    notify(history, "a")
    for gateway in history.gateways:
        history.kernel.sleep(5.0)

        def sent(claim: MessageClaim, gateway: GatewayProcess = gateway) -> bool:
            receipt = Receipt(gateway.process, history.kernel.now, cut=False)
            history.oracle.received([each.offset for each in claim.messages], receipt)
            return True

        gateway.pull("p", 1, 60.0, 100.0, sent, lambda _: None)
    history.kernel.sleep(200.0)


# The faults


async def _nothing(*_: object) -> None:
    """Replaces the request for the end of the log."""


@contextlib.contextmanager
def patched(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in attributes:
            patch.setattr(owner, name, value)
        yield


def _of_all_partitions(self: Any) -> recovered.StartState:
    """Idle partitions are not known as clean; rows of all partitions count."""
    known = self._listener.known
    positions = self._placed({number: each.position for number, each in known.items()})
    since = min((each.since for each in known.values() if not each.clean), default=-1)
    if since < 0:
        return recovered.StartState(positions, recovered.NOTHING, self.newest())
    found = recovered.settled_since(self._kafka, since, dict.fromkeys(positions, 0), len(positions))
    parked = self._redeliverer.parked_behind(positions)
    return recovered.StartState(
        positions, recovered.RecoveredDeliveries.of(found.deliveries, parked, since), self.newest(), since
    )


def _all_endpoints(before: Exclusions, now: Exclusions) -> Iterator[Any]:
    """All endpoints in each change."""
    if now != before:
        yield ExclusionChange(now.held, before.held - now.held, dict(now.read), now.degraded, now.watched)


def _read_as(**changed: Any) -> Callable[[], Any]:
    """Tasks read each notification with these fields."""
    read = partition_task.read_notification

    def read_notification(value: bytes, partition: int, offset: int) -> Any:
        found = read(value, partition, offset)
        return None if found is None else msgspec.structs.replace(found, **changed)

    return lambda: patched((partition_task, "read_notification", read_notification))


def _counts_or_signs(progress: WorkerProgress) -> bool:
    return bool(progress.signs or progress.gone or progress.costly or progress.notifications)


def _of_batch_alone(
    kafka: KafkaSettings, batch: int, ends: recovered.OutcomeEnds, timeout_s: float
) -> recovered.SettledRows:
    """Without rows of the redelivery."""
    with patched((attempts, "NO_BATCH", batch)):
        return recovered.settled_in_batch(kafka, batch, ends, timeout_s)


def _wall_clock(here: bool) -> Callable[[], float]:
    time: Any = vars(task)["time"]
    return lambda: float(time.time())


# A task of a second batch of a run begins with the state of the first.
_TASKS_OF_SECOND_BATCHES = ((spark.TaskOfSpark, "getLocalProperty", lambda task, name: "0"),)


@dataclass(frozen=True)
class KnownFault:
    """A fault, its reintroduction, the history that finds it, and the kinds of its findings."""

    name: str
    put_back: Callable[[], Any]
    history: Callable[[History], None]
    found: str


KNOWN = (
    KnownFault(
        "a start reads everything since the last message of the quietest partition",
        lambda: patched(
            (recovery.Recovery, "start_state", _of_all_partitions),
            (recovery.Recovery, "write_clean", lambda self, run, begin, positions: None),
        ),
        an_idle_partition_and_an_orderly_stop,
        "start",
    ),
    KnownFault(
        "messages parked after the clock was put back precede earlier parked ones",
        lambda: patched(
            (task, "clock_of", _wall_clock), (realtime_mode, "clock_of", _wall_clock), *_TASKS_OF_SECOND_BATCHES
        ),
        the_clock_put_back_before_a_task_begins,
        "overtaken audited",
    ),
    KnownFault(
        "a repeated task of a batch ignores the parked messages of the dead worker",
        lambda: patched((sink, "parked_in_batch", lambda *asked: []), (sink, "settled_in_batch", _of_batch_alone)),
        a_worker_killed_while_it_parks,
        "twice",
    ),
    KnownFault(
        "a repeated task reads the logs from the time of the driver's clock",
        lambda: patched((recovered, "_behind", lambda log, ends: log.at(time_ms() - 60_000))),
        the_same_with_a_driver_an_hour_ahead_of_kafka,
        "twice",
    ),
    KnownFault(
        "each change sends all degraded endpoints to the workers",
        lambda: patched((driver, "exclusion_changes", _all_endpoints)),
        endpoints_that_are_dead_for_an_hour,
        "bytes",
    ),
    KnownFault(
        "a gateway stamps before it has read the answered changes of another gateway",
        lambda: patched((changes.ControlChanges, "keep_up", _nothing)),
        a_notify_through_another_gateway_behind_a_subscribe,
        "lost",
    ),
    KnownFault(
        "a minimum interval begins again with each of Spark's batches in real time",
        lambda: patched((realtime_mode, "RUN_S", math.inf), *_TASKS_OF_SECOND_BATCHES),
        an_interval_of_a_day_for_nine_days,
        "interval",
    ),
    KnownFault(
        "a notification matches the subscriptions of the time of matching",
        _read_as(control=UNSTAMPED),
        a_subscribe_behind_a_notify_while_no_job_runs,
        "stranger",
    ),
    KnownFault(
        "a reliable message is dropped like a timely one",
        _read_as(reliable=False),
        a_reliable_message_for_a_timely_subscription_that_is_away,
        "dropped",
    ),
    KnownFault(
        "a message is pushed after the end of its validity",
        _read_as(valid_until_ms=0),
        a_validity_that_ends_while_an_endpoint_is_away,
        "late",
    ),
    KnownFault(
        "the deadline watch ignores matches in a report without a count of notifications",
        lambda: patched((driver, "_has_report", _counts_or_signs)),
        a_last_message_while_a_worker_is_dead,
        "silence",
    ),
    KnownFault(
        "a driver keeps the recovered deliveries of each run",
        lambda: patched((spark.Broadcast, "destroy", lambda self: None)),
        workers_that_die_again_and_again,
        "size",
    ),
    KnownFault(
        "a subscription continues after its receiver has answered 410",
        lambda: patched((redeliverer.SubscriptionEnds, "end", lambda self, ids: None)),
        a_receiver_that_ends_its_subscription,
        "gone",
    ),
    KnownFault(
        "a session of the redelivery that cannot read the control log drops its outcomes",
        lambda: patched((session.RedeliverySession, "end", lambda self, until: None), (session, "_COMMIT_S", 1.0)),
        an_outage_of_kafka_right_after_retries,
        "twice",
    ),
    KnownFault(
        "a stop waits for the deliveries of messages for many, and ends the workers before",
        lambda: patched((lanes.Lanes, "leave_fan_outs", lambda self: None)),
        a_stop_while_messages_for_many_wait,
        "twice",
    ),
    KnownFault(
        "a claim on messages of a pull point is not renewed while they are sent",
        lambda: patched((pull_queues._OwnClaims, "due", False)),
        a_client_that_receives_slowly,
        "twice",
    ),
    KnownFault(
        "each round of a batch reads a large backlog again",
        lambda: patched((stream.BatchSize, "read", lambda self, reports: None)),
        a_backlog_of_large_messages,
        "size",
    ),
)


def find(fault: KnownFault, tell: Callable[[str], None] = lambda line: None, put_back: bool = True) -> str:
    """The finding of the world; empty without one."""
    history = History(1, tell, KafkaSettings(partitions=4))

    def scenario(history: History) -> None:
        fault.history(history)
        settled(history)
        history.judge()

    with fault.put_back() if put_back else contextlib.nullcontext():
        try:
            history.run(scenario, 10.0)
        except RuntimeError as error:
            if not isinstance(error.__cause__, AssertionError):
                raise
            return str(error.__cause__)
    return ""
