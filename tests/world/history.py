"""One history: an engine with its gateways, receivers and logs, from one seed."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import PULL_LOG, RESULTS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts, parked
from arborcast.dispatch.operations.audit.ledger import Ledger
from arborcast.dispatch.operations.audit.order import BY_PRIORITY, OrderCheck, order_of
from arborcast.dispatch.operations.audit.report import Report
from arborcast.ingest.elements.publication import Publication
from arborcast.topic_model.records import control, notifications, pull, results
from arborcast.topic_model.records.control import Erasure, SubscriptionEnded, SubscriptionRecord, TriggerRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import (
    DeliveryPolicy,
    EndpointReference,
    Subscription,
    TopicFilter,
    queue_topic,
)
from arborcast.topic_model.topics import TopicPath
from tests.world.brokers import Broker, Record
from tests.world.engine import PUSH, RETRY, Engine, exchanges, settings
from tests.world.gateways import GatewayProcess
from tests.world.installed import installed
from tests.world.kernel import Host, Kernel
from tests.world.operators import Operators
from tests.world.oracle import Accepted, Member, Oracle
from tests.world.receivers import Network

# Limits of the largest record: `feed` is cut at 1 MiB, `progress` at 32 KiB of lists, `attempts` at 64 KiB and a row.
MOST_BYTES = {"feed": 1_100_000, "progress": 40_000, "attempts": 80_000}


class History:
    """The world of one seed; its events are in `scenario`."""

    def __init__(
        self, seed: int, tell: Callable[[str], None] = lambda line: None, kafka: KafkaSettings | None = None
    ) -> None:
        self.seed = seed
        self._tell = tell
        self.kernel = kernel = Kernel(seed)
        self.random = kernel.random
        self.kafka = kafka or KafkaSettings(partitions=4)
        self.broker = Broker(kernel, self.kafka)
        self.network = Network(kernel, PUSH.total_timeout_s)
        self.hosts = {name: Host(name) for name in ("one", "two")}
        self.folder = Path(tempfile.mkdtemp(prefix="arborcast-world-", dir=_memory()))
        self.key_file = self.folder / "secrets.keys"
        self.key_file.write_text(f"world {base64.b64encode(bytes(32)).decode()}")
        self.key_file.chmod(0o600)
        self.retry = RETRY
        self.operators = Operators(kernel, self.kafka)
        self.engine: Engine | None = None
        self.gateways: list[GatewayProcess] = []
        self.oracle = Oracle(kernel)
        self.mode = "auto"
        self.numbers = 0
        self.network.began.append(self.oracle.pushed)
        self.network.answered.append(self.oracle.answered)
        self.network.deferred.append(self.oracle.defers)
        self.attempts: list[Any] = []  # records of the log
        self.broker.appended.append(self._appended)
        self.broker.unacknowledged.append(self._unacknowledged)

    def run(self, scenario: Callable[[History], Any], days: float) -> None:
        """Run it to its end, and raise its errors."""
        more = dict(exchanges(self.kernel, self.broker, self.network))
        try:
            with installed(self.kernel, self.broker, more):
                actor = self.kernel.process("scenario", Host("outside"))
                state = {"over": False}

                def act() -> None:
                    scenario(self)
                    state["over"] = True

                self.kernel.spawn(actor, act, "scenario")
                self.kernel.run((days + 2) * 86_400.0, lambda: state["over"])
                if not state["over"]:
                    raise AssertionError("the history did not come to its end")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    # Actions of a scenario

    def say(self, what: str) -> None:
        self._tell(f"{_clock(self.kernel.now)}  {what}")

    def start_gateway(self, name: str) -> GatewayProcess:
        made = GatewayProcess(self.kernel, self.broker, name, self.hosts["one"], str(self.key_file))
        self.gateways.append(made)
        return made

    def start_engine(self, host: str = "one") -> Engine:
        """Start the job, with a data directory for each host."""
        home = self.folder / host
        for folder in (home, home / "run", home / "parked"):
            folder.mkdir(exist_ok=True)
        job_settings = settings(home, self.kafka, self.mode, str(self.key_file), self.retry)
        self.engine = Engine(self.kernel, self.broker, self.hosts[host], job_settings)
        self.say(f"the dispatch job starts on host {host}, dispatch.mode = {self.mode}")
        return self.engine

    def wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        until = self.kernel.now + timeout_s
        while not done():
            if self.kernel.now >= until:
                raise AssertionError(f"{what} within {timeout_s:g} s: it did not happen")
            self.kernel.sleep(0.05)

    def commit(self, gateway: GatewayProcess, records: list[Any], done: Callable[[Any], None]) -> None:
        gateway.commit(records, done)

    def subscribe(
        self,
        gateway: GatewayProcess,
        name: str,
        topic: str,
        form: str = "raw",
        more: Mapping[str, Any] | None = None,
        current: bool = False,
        **policy: Any,
    ) -> Member:
        """Begin a Subscribe. `more` are fields of the subscription; `current`: with the current message."""
        host = gateway.process.host
        made = Subscription(
            name,
            EndpointReference(f"http://{name}/"),
            address=f"http://gateway/wsn/subscriptions/{name}",
            form=form,  # type: ignore[arg-type]
            policy=DeliveryPolicy(**policy),
            created_ms=int(self.kernel.wall_s(host) * 1000),
            **{"topics": (TopicFilter("", topic, topic),), **(more or {})},
        )
        member = self.oracle.member(made)
        if current:
            self.say(f"{member.name}: in force, with the current message, through {gateway.process.name}")
            change = member.change(self.kernel.now, True)

            def done(result: Any) -> None:
                member.answered(change, self.kernel.now, result)
                self.oracle.subscribed_with_current(member)

            gateway.subscribe_with_current(made, done)
        else:
            self._change(gateway, member, made, True)
        return member

    def change(self, gateway: GatewayProcess, member: Member, **changed: Any) -> None:
        """Begin a Pause, a Resume or a Renew."""
        made = msgspec.structs.replace(member.subscription, **changed)
        self._change(gateway, member, made, not made.paused)

    def unsubscribe(self, gateway: GatewayProcess, member: Member) -> None:
        self.say(f"{member.name}: Unsubscribe through {gateway.process.name}")
        change = member.change(self.kernel.now, None)
        at_ms = int(self.kernel.wall_s(gateway.process.host) * 1000)
        record = SubscriptionEnded(member.name, "unsubscribed", at_ms)
        gateway.commit([record], lambda result: member.answered(change, self.kernel.now, result))

    def _change(self, gateway: GatewayProcess, member: Member, made: Subscription, receives: bool) -> None:
        self.say(f"{member.name}: {'in force' if receives else 'paused'} through {gateway.process.name}")
        member.subscription = made
        change = member.change(self.kernel.now, receives)
        record = SubscriptionRecord(made) if made.trigger is None else TriggerRecord(made)
        gateway.commit([record], lambda result: member.answered(change, self.kernel.now, result))

    def notify(self, gateway: GatewayProcess, topic: str, payload: bytes = b"<m/>", **said: Any) -> Accepted:
        """Begin a Notify; `said` are fields of its publication."""
        self.numbers += 1
        number = f"{int(self.kernel.wall_s(gateway.process.host) * 1000):012x}7{self.numbers:019x}"
        accepted = self.oracle.accepted(number, topic, self.kernel.now)
        message = Notification(number, TopicPath(topic), payload, 0)

        def done(result: Any) -> None:
            if isinstance(result, InfrastructureError):
                accepted.refused = True
            else:
                self.oracle.acknowledged(accepted)

        gateway.accept(message, Publication(**said), done)
        return accepted

    def judge(self) -> None:
        """Raises Violated with all broken promises. Also checks the size of records of internal logs, and that a driver
        keeps no broadcast of an earlier run."""
        for log, most in MOST_BYTES.items():
            if (largest := self.broker.largest.get(log, 0)) > most:
                self.oracle.faults.append(f"size: a record of {log} has {largest} bytes")
        if kept := self.kernel.notes.get("broadcasts kept"):
            self.oracle.faults.append(f"size: from {kept[0]:.3f} on a driver keeps broadcasts of earlier runs")
        self.oracle.faults += self._audited()
        self.oracle.judge()

    def _audited(self) -> list[str]:
        """The findings of `arborcast audit --order` in the rows."""
        ledger = Ledger()
        for record in self.attempts:
            ledger.add(record.value, record.timestamp)
        orders = {
            # The present order is that of all rows if it has not changed.
            name: order_of(each.subscription) if len(each.changes) == 1 else BY_PRIORITY
            for name, each in self.oracle.members.items()
            if queue_topic(name) is None and not each.subscription.queue
        }
        with closing(OrderCheck(ledger, ledger.evaluations(), orders)) as check:
            for record in self.attempts:
                check.add(record)
            report = Report(0, 0)
            check.report(report, 20)
        self.kernel.count("first attempts in the order of their rows", report.first_attempts)
        self.kernel.count("first attempts whose order the rows do not show", report.undecided)
        return [
            f"audited: {each.notification[-6:]} for {each.subscription} is {each.kind}"
            for each in report.problems
            if not self.oracle.depends_on_clock(self.oracle.notifications[each.notification])
        ]

    # Observers

    def _appended(self, log: str, record: Record) -> None:
        if log == "notifications" and record.value is not None:
            self.oracle.stored(notifications.decode(record.value), record)
        elif log == "attempts" and record.value is not None:
            self.attempts.append(record)
            self.oracle.rows(attempts.decode(record.value).attempts)
        elif log == PULL_LOG and record.value is not None:
            _, stored = pull.decode(record.key, record.value)
            if isinstance(stored, pull.StoredMessage):
                self.oracle.put_into_pull_point(record.offset, stored.subscription, stored.notification)
        elif log == RESULTS_LOG and record.value is not None:
            self.oracle.result_stored(results.decode(record.value))
        elif log == "control" and record.value is not None:
            change = control.decode(record.key, record.value)
            if isinstance(change, SubscriptionEnded):
                self.oracle.ended(change.id)
            elif isinstance(change, Erasure) and change.done_ms:
                self.kernel.count("erasures done")
                self.oracle.erased_at.setdefault(change.scope.id, self.kernel.now)

    def _unacknowledged(self, log: str, record: Record) -> None:
        if log == "parked" and record.value is not None:
            delivery, _ = parked.decode_key(record.key)
            if isinstance(value := parked.decode(record.value), parked.Parked):
                self.oracle.parked_again.add((delivery.subscription, value.notification.id))


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # a file system in memory, where there is one


def _clock(seconds: float) -> str:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    return f"day {int(days)} {int(hours):02}:{int(minutes):02}:{rest:09.6f}"
