"""The events of a history: traffic, quiet hours, and every kind of fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import partition_of_key
from arborcast.dispatch.delivery.envelope import CALLBACK_HEADER
from arborcast.ingest.state.pull_queues import MessageClaim
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import Erasure, ErasureScope, Tombstone, TopicPolicy, TopicRecord
from arborcast.topic_model.records.results import PATH
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryPolicy,
    Peer,
    TopicFilter,
    Trigger,
    XPathFilter,
    queue_of,
)
from arborcast.topic_model.topics import TopicPath
from tests.world.gateways import GatewayProcess
from tests.world.history import History
from tests.world.kernel import Host, Process, Waiters
from tests.world.oracle import ALL_TOPICS, MARK, Member, Receipt
from tests.world.receivers import TAKES_S, Behaviour, Push, Receiver

HOUR_S = 3_600.0

PULL_POINT = "pull-point"

LARGE = b"<m>" + bytes(4_000_000).replace(b"\0", b"x") + b"</m>"

# Of the parts for a subscriber of the older form.
_PART_BYTES = 1_200

# Bytes an hour in an internal log of an idle engine: state is repeated every ten minutes, a few kB for twenty
# subscriptions and seven topics.
IDLE_BYTES = 100_000

# Within this time a restarted job writes the rows of its last pushes.
_CATCHES_UP_S = 60.0

# Within this time all due deliveries are made, including retries of dead endpoints.
_SETTLES_S = 1 * HOUR_S


class Scenario:
    """Traffic and faults from the seed of the history."""

    def __init__(self, history: History, days: float) -> None:
        self.history = history
        self.kernel, self.random = history.kernel, history.random
        self.until = days * 86_400.0
        self.topics = list(self._topics())
        self.added: list[str] = []
        self.members: list[Member] = []
        self.numbers = 0
        self.stopping = False
        self.host = "one"  # of the engine
        self.large = 2 if history.seed % 10 == 5 else 0  # the remaining messages of 4 MB, which take long
        self.faults: list[tuple[int, str, Callable[[], None]]] = [
            (4, "driver killed", self.kill_driver),
            (5, "driver killed at a step", self.kill_driver_at_a_step),
            (4, "orderly stop and start", self.stop_and_start),
            (4, "worker killed", self.kill_worker),
            (6, "worker killed at a step", self.kill_worker_at_a_step),
            (4, "shift of the mode", self.shift),
            (4, "end of a run in real time", self.end_run),
            (4, "end of one of Spark's batches in real time", self.end_batch),
            (12, "endpoint changes its behaviour", self.change_behaviour),
            (4, "endpoint ends its subscription (410)", self.end_by_receiver),
            (4, "partition without leader", self.lose_leader),
            (4, "broker away", self.lose_broker),
            (4, "append times out and is in the log", self.lose_acknowledgement),
            (4, "clock put back or forward", self.set_clock),
            (4, "gateway's view lags", self.lag),
            (8, "subscription changes", self.change_subscription),
            (4, "topic added", self.add_topic),
            (4, "gateway killed", self.kill_gateway),
            (3, "dead letters redriven", history.operators.redrive),
            (3, "replay", self.replay),
            (4, "attempts requested", self.retry),
            (1, "subscriptions resumed", self.resume),
            (4, "erasure", self.erase),
        ]
        self.queue = next(
            name
            for number in range(99)
            if not partition_of_key((name := f"q{number}").encode(), history.kafka.partitions)
        )
        # Every other history has topics with current messages.
        self.retains = history.seed % 2 == 0
        if history.seed % 4 == 1:
            history.retry = replace(history.retry, suspend_after_s=HOUR_S)
        history.network.deferred.append(self.report)

    def _topics(self) -> Iterator[str]:
        """Two topics in each of three partitions, and one in the fourth, which is mostly idle."""
        room = {0: 2, 1: 2, 2: 2, 3: 1}
        for number in range(1_000):
            name = f"t{number}"
            partition = partition_of_key(name.encode(), self.history.kafka.partitions)
            if room[partition]:
                room[partition] -= 1
                yield name
            if not any(room.values()):
                return

    @property
    def busy(self) -> list[str]:
        partitions = self.history.kafka.partitions
        topics = [each for each in self.topics if partition_of_key(each.encode(), partitions) != 3]
        return [*topics, *self.added]

    def __call__(self, history: History) -> None:
        history.mode = self.random.choice(["auto", "auto", "realtime", "batch"])
        for name in ("gateway 1", "gateway 2"):
            history.start_gateway(name)
        history.wait(lambda: all(each.ready for each in history.gateways), 60, "the gateways are ready")
        plain = TopicPolicy(retain=self.retains)
        records = [TopicRecord(TopicPath(each), policy=plain) for each in self.topics]
        records.append(TopicRecord(TopicPath(self.queue), policy=TopicPolicy(queue=True)))
        self.gateway().commit(records, lambda result: None)
        for topic in self.topics:
            for form in ("raw", "notify"):
                self.new_member(topic, form=form)
        for expression in ALL_TOPICS:
            self.new_member(expression, form="raw")
        self.new_member("|".join(self.topics[:3]))
        self.new_member(self.topics[0], form="raw", order="strict")
        self.new_member(self.topics[1], form="raw", reliability="strict")
        self.new_member(self.topics[2], form="raw", interval_ms=15_000)
        self.new_member(self.topics[3], form="raw", interval_ms=120_000)
        self.new_member(self.topics[4], form="raw", reliability="timely")
        self.new_member(self.topics[5], form="raw", deadline_ms=600_000)
        self.new_member(self.topics[1], maximum_attempts=2)
        self.new_member(self.topics[2], form="raw", lifespan_ms=60_000)
        self.new_member(self.topics[3], form="legacy", fragment_bytes=_PART_BYTES)
        self.new_member(self.topics[5], more={"content": (XPathFilter(XPATH_1, "boolean(//marked)"),)})
        self.new_member(self.topics[0], form="peer", more={"peer": Peer("world/one", "two")})
        self.new_member(self.topics[1], more={"pull_point": PULL_POINT})
        for number in range(2):
            self.kernel.spawn(self.kernel.process(f"client {number}", Host("client")), self.pull_forever, "client")
        self.new_member(self.topics[2], more={"trigger": Trigger("t", TopicPath(self.topics[4]))})
        self.server = self.new_member(self.queue, more={"queue": 2})  # it stays
        for _ in range(2):
            self.new_member(self.queue, more={"queue": 2})
        topics = (TopicFilter("", self.queue, self.queue),)
        lane = msgspec.structs.replace(queue_of(TopicPath(self.queue)), topics=topics)
        history.oracle.member(lane).change(0.0, True).answered = 0.0
        self.kernel.sleep(1.0)
        history.start_engine()
        self.keep_engine()
        while self.kernel.now < self.until:
            self.burst()
            self.random.choice((self.rest, self.rest, lambda: None))()
        self.heal()
        self.settle()
        history.judge()

    # Traffic

    def gateway(self) -> GatewayProcess:
        return self.random.choice(self.history.gateways)

    def new_member(self, topic: str, **policy: Any) -> Member:
        self.numbers += 1
        member = self.history.subscribe(self.gateway(), f"s{self.numbers}", topic, **policy)
        self.members.append(member)
        return member

    def burst(self) -> None:
        """Messages for some seconds, with faults meanwhile."""
        lasts_s, rate = self.random.choice(
            ((0.5, 40.0), (1.0, 10.0), (1.0, 40.0), (4.0, 10.0), (8.0, 2.0), (10.0, 30.0))
        )
        topics = self.random.sample(self.busy, 3)
        if self.random.random() < 0.1:
            topics.append(self.topics[-1] if self.topics[-1] not in self.busy else self._idle())
        if self.random.random() < 0.4:
            topics.append(self.queue)
        until = self.kernel.now + lasts_s
        faults_at = sorted(self.random.uniform(0.0, lasts_s) for _ in range(self.random.choice((1, 1, 2, 2, 4))))
        for after_s in faults_at:
            self.kernel.call(after_s, self._begin_fault)
        self.history.say(f"messages for {lasts_s:g} s, {rate:g} in a second, {len(faults_at)} faults")
        while self.kernel.now < until:
            count = self.random.choice((1, 1, 1, 5))
            for _ in range(count):
                self.notify(self.random.choice(topics))
            self.kernel.sleep(self.random.expovariate(rate / count))

    def notify(self, topic: str) -> None:
        """Publish a message, sometimes with a priority, an end of its validity, as reliable, or of 4 MB."""
        gateway = self.gateway()
        if topic in self.added and TopicPath(topic) not in gateway.control.table.topics:
            return
        said: dict[str, Any] = {}
        if self.random.random() < 0.1:
            said["priority"] = self.random.choice((1, 9))
        if self.random.random() < 0.1:
            lasts_s = self.random.choice((5.0, 60.0, HOUR_S))
            said["valid_until_ms"] = int((self.kernel.wall_s(gateway.process.host) + lasts_s) * 1000)
        if self.random.random() < 0.2:
            said["reliable"] = True
        if self.large and self.random.random() < 0.02:
            self.large -= 1
            self.kernel.count("messages of 4 MB")
            said["payload"] = LARGE
        elif topic == self.topics[3] and self.random.random() < 0.3:
            said["payload"] = b"<m>" + b"x" * self.random.choice((_PART_BYTES, 3 * _PART_BYTES)) + b"</m>"
        elif topic == self.topics[5] and self.random.random() < 0.5:
            said["payload"] = b"<m>%b</m>" % MARK
        elif topic == self.queue:  # some are equal, and merged
            said["payload"] = b"<m>%d</m>" % self.random.choice((0, 1, self.history.numbers))
        self.history.notify(gateway, topic, **said)

    def _idle(self) -> str:
        return next(each for each in self.topics if each not in self.busy)

    def rest(self) -> None:
        """A period without a message."""
        lasts_s = self.random.choice((60.0, 900.0, 2 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S))
        self.settle(fully=False)
        self.history.say(f"nothing for {lasts_s / HOUR_S:.2f} h")
        # Messages whose append has timed out may be in the log.
        slow = any(end > self.kernel.now - 60.0 for _, end in self.history.oracle.kafka_was_slow)
        idle = not (slow or self._waits() or self.history.oracle.left())
        self.kernel.stretch(200.0 if idle else 100.0)
        self.kernel.sleep(_CATCHES_UP_S)
        before = dict(self.history.broker.bytes)
        self.kernel.sleep(lasts_s - _CATCHES_UP_S)
        self.kernel.unstretch()
        for log in ("feed", "progress", "attempts") if idle and lasts_s >= HOUR_S else ():
            an_hour = (self.history.broker.bytes.get(log, 0) - before.get(log, 0)) / (lasts_s / HOUR_S)
            if an_hour > IDLE_BYTES:
                self.history.oracle.faults.append(f"bytes: {an_hour:.0f} bytes an hour in {log} of an idle engine")
        if lasts_s >= 2 * HOUR_S:
            self.history.oracle.check_silences()
        self.history.broker.clean()
        self.kernel.sleep(0.1)

    def _waits(self) -> bool:
        engine = self.history.engine
        job = engine.job if engine is not None else None
        return job is None or bool(job._redeliverer.statistics().parked)

    def settle(self, fully: bool = True) -> None:
        """Wait until all due deliveries are made, up to a time limit; `judge` reports the others."""
        for waited_s in range(int(_SETTLES_S) if fully else 60):
            if not self.history.oracle.left():
                break
            if waited_s == 120:
                self.kernel.stretch(20.0)
            self.kernel.sleep(1.0)
        self.kernel.unstretch()
        if fully:
            self.kernel.sleep(30.0)

    def heal(self) -> None:
        """End all faults."""
        self.history.say("all faults end")
        self.stopping = True
        self.history.broker.lost_acknowledgements = 0
        for receiver in self.history.network.receivers.values():
            if receiver.behaviour != "gone":
                receiver.behaviour = "well"
        for process in list(self.kernel.processes.values()):
            process.kill_at = 0
            process.lag_s = 0.0
        for host in [*self.history.hosts.values(), self.history.broker.host]:
            if host.ahead_s:  # with a wrong clock, redriven letters expire again
                self.kernel.note("clock set")
                host.ahead_s = 0.0
        self.kernel.sleep(60.0)
        for member in self.members:
            # A killed gateway never answers.
            while not member.is_over and (member.is_paused or member.changes[-1].answered is None):
                self.history.change(self.gateway(), member, paused=False)
                self.kernel.sleep(2.0)
        self.resume()
        operators = self.history.operators
        operators.left = 1
        while operators.left:
            operators.redrive()
            self.kernel.sleep(15.0)

    # The engine's supervisor

    def keep_engine(self) -> None:
        """Restart the job after its end, until the end of the history."""
        history = self.history

        def keep() -> None:
            while True:
                engine = history.engine
                assert engine is not None
                if not engine.ended:
                    over = Waiters(self.kernel)
                    engine.process.at_end.append(over.notify)
                    over.wait(None)
                else:
                    slow = history.oracle.kafka_was_slow_at(self.kernel.now)
                    if engine.error is not None and not (slow and isinstance(engine.error, InfrastructureError)):
                        raise AssertionError(f"the dispatch job ended: {engine.error}") from engine.error
                    if engine.healthy is False and not slow:
                        raise AssertionError("the dispatch job gave up its query")
                    self.kernel.sleep(self.random.choice((0.5, 3.0, 20.0, 600.0)))
                    if self.random.random() < 0.3:
                        history.mode = self.random.choice(["auto", "realtime", "batch"])
                    if self.random.random() < 0.1:
                        self.host = "two" if self.host == "one" else "one"
                        self.kernel.count("driver on another host")
                    history.start_engine(self.host)

        process = self.kernel.current.process if self.kernel.current is not None else None
        assert process is not None
        self.kernel.spawn(process, keep, "supervisor")

    # Faults

    def _begin_fault(self) -> None:
        if self.stopping:
            return
        weights = [weight for weight, _, _ in self.faults]
        ((_, name, fault),) = self.random.choices(self.faults, weights)
        self.kernel.count(name)
        self.history.say(f"fault: {name}")
        fault()

    def _driver(self) -> Process | None:
        engine = self.history.engine
        return engine.process if engine is not None and not engine.ended else None

    def _worker(self) -> Process | None:
        engine = self.history.engine
        found = [each for each in engine.spark.workers if each.alive] if engine is not None else []
        return self.random.choice(found) if found else None

    def kill_driver(self) -> None:
        if (driver := self._driver()) is not None:
            driver.kill()

    def kill_driver_at_a_step(self) -> None:
        if (driver := self._driver()) is not None:
            driver.kill_at = driver.steps + self.random.randint(1, 60)

    def stop_and_start(self) -> None:
        if (engine := self.history.engine) is not None and not engine.ended:
            engine.request_stop()

    def kill_worker(self) -> None:
        if (worker := self._worker()) is not None:
            worker.kill()

    def kill_worker_at_a_step(self) -> None:
        if (worker := self._worker()) is not None:
            worker.kill_at = worker.steps + self.random.randint(1, 60)

    def shift(self) -> None:
        engine = self.history.engine
        if engine is None or engine.ended or engine.job is None or not engine.ready:
            return
        modes = engine.job.modes
        self.kernel.spawn(engine.process, lambda: self._shift(modes), "shift")

    def _shift(self, modes: Any) -> None:
        if modes._may_be_realtime:
            modes.shift("batch" if modes.mode == "realtime" else "realtime")

    def _modes(self) -> Any:
        """The mode controller of a job in real time; None without one."""
        engine = self.history.engine
        job = engine.job if engine is not None and engine.ready and not engine.ended else None
        return job.modes if job is not None and job.modes.mode == "realtime" else None

    def end_run(self) -> None:
        if (modes := self._modes()) is not None:
            modes._realtime._ends_at = 0.0

    def end_batch(self) -> None:
        if (modes := self._modes()) is not None and (query := modes._realtime._query) is not None:
            query.end_batch()

    def end_by_receiver(self) -> None:
        """Let a receiver answer 410 until its subscription has ended."""
        plain = self._plain()
        if len(plain) > 12:
            member = self.random.choice(plain)
            self.history.say(f"{member.name} answers 410")
            self.history.network.receiver(member.subscription.consumer.address).behaviour = "gone"
            member.gone = True
            member.change(self.kernel.now, None)
            self.notify(self._topic_of(member))

    def _plain(self) -> list[Member]:
        """Subscriptions that may change, without a change in progress."""
        return [
            each
            for each in self.members
            if each.subscription.policy == DEFAULT_POLICY
            and each.subscription.pushed
            and each.subscription.peer is None
            and not each.is_over
            and each is not self.server
            and all(change.answered is not None or change.failed for change in each.changes)
        ]

    def _topic_of(self, member: Member) -> str:
        """One of its topics."""
        return self.random.choice([each for each in [*self.busy, self._idle(), self.queue] if member.selects(each)])

    def add_topic(self) -> None:
        """Add a topic that is never idle, and publish on it as soon as the gateway knows it."""
        gateway, name = self.gateway(), f"n{len(self.added)}"
        while partition_of_key(name.encode(), self.history.kafka.partitions) == 3:
            name += "n"
        if gateway.ready:
            self.added.append(name)
            record = TopicRecord(TopicPath(name), policy=TopicPolicy(retain=self.retains))
            gateway.commit([record], lambda result: self.notify(name))

    def report(self, push: Push) -> None:
        """Report the later result of a push some time later, mostly, until it is in the log."""
        path = PATH + dict(push.request.headers)[CALLBACK_HEADER].rpartition("/")[2]
        state = self.random.choice(("delivered", "delivered", "delivered", "failed", "refused", ""))

        def send() -> None:
            if not push.reported and self.kernel.now < push.began + 900.0:
                self.gateway().report(path, state, lambda result: None)
                self.kernel.call(15.0, send)

        if state:
            self.kernel.call(self.random.choice((0.001, 0.5, 20.0, 300.0)), send)

    def pull_forever(self) -> None:
        """A client of a pull point, with requests to both gateways. Its connection may be cut before it has received an
        answer, or before the gateway knows that it has."""
        while True:
            gateway, answers, waiters = self.gateway(), list[Any](), Waiters(self.kernel)
            wait_s = self.random.choice((0.0, 5.0, 60.0)) * self.kernel.stretched[-1][1]
            sends_s, fate = self.random.choice((0.001, 0.01, 0.1, 100.0)), self.random.random()

            def sent(claim: MessageClaim, gateway: GatewayProcess = gateway, fate: float = fate) -> bool:
                if fate > 0.05:
                    receipt = Receipt(gateway.process, self.kernel.now, fate < 0.1)
                    self.history.oracle.received([each.offset for each in claim.messages], receipt)
                    self.kernel.count("messages fetched from pull points", len(claim.messages))
                return fate >= 0.1

            def done(result: Any, answers: list[Any] = answers, waiters: Waiters = waiters) -> None:
                answers.append(result)
                waiters.notify()

            gateway.pull(PULL_POINT, self.random.choice((1, 3, 100)), wait_s, sends_s, sent, done)
            if not answers:
                waiters.wait(wait_s + 120.0)  # a killed gateway never answers
            self.kernel.sleep(self.random.choice((0.01, 1.0, 10.0)), stretches=True)

    def replay(self) -> None:
        pushed = [each for each in self.members if each.subscription.pushed and not each.subscription.queue]
        member = self.random.choice([each for each in pushed if each.subscription.peer is None])
        self.history.operators.replay(member.name, self.random.choice((5.0, 60.0)))

    def retry(self) -> None:
        """Request attempts of messages that wait for an endpoint."""
        self._wait_for_an_endpoint(self._plain(), lambda member: self.history.operators.retry(member.lane))

    def _wait_for_an_endpoint(self, plain: list[Member], then: Callable[[Member], None]) -> None:
        """Publish messages while the endpoint of one of these is away, and do this some time later."""
        plain = [each for each in plain if each.topic in self.busy]
        if not plain:
            return
        member = self.random.choice(plain)
        receiver = self.history.network.receiver(member.subscription.consumer.address)
        receiver.behaviour = "refusing"
        self.kernel.call(60.0, lambda: self._recover(receiver))
        for _ in range(3):
            self.notify(member.topic)
        self.kernel.call(self.random.choice((0.01, 0.3, 3.0, 20.0)), lambda: then(member))

    def resume(self) -> None:
        """Resume the suspended subscriptions, as `arborcast subscriptions resume`."""
        gateway = self.gateway()
        if gateway.ready:
            found = sorted(gateway.control.suspensions.ids())
            self.kernel.count("suspended subscriptions resumed", len(found))
            if found:
                gateway.commit([Tombstone.of("susp", each) for each in found], lambda result: None)

    def erase(self) -> None:
        """Erase a message that waits for an endpoint, or all of its topic so far."""
        # Whether an erased message counts for an interval depends on the time of its erasure.
        plain = [each for each in self._plain() if each.topic not in self.topics[2:4]]
        self._wait_for_an_endpoint(plain, self._erase)

    def _erase(self, member: Member) -> None:
        self.history.oracle.left()
        waiting = [accepted for waits, accepted in self.history.oracle.open if waits is member]
        gateway = self.gateway()
        if not waiting or not gateway.ready:
            return
        chosen, one = self.random.choice(waiting), self.random.random() < 0.5
        at_ms = int(self.kernel.wall_s(gateway.process.host) * 1000)
        scope = ErasureScope(
            f"e{len(self.history.oracle.erasures)}",
            at_ms,
            topic="" if one else chosen.topic,
            notification=chosen.id if one else "",
        )
        self.history.say(f"erasure {scope.id} of {scope.topic or scope.notification[-6:]}")
        self.history.oracle.erasures.append(scope)
        gateway.commit([Erasure(scope, "operator", at_ms)], lambda result: None)

    def _recover(self, receiver: Receiver) -> None:
        if receiver.behaviour != "gone":
            receiver.behaviour = "well"

    def change_behaviour(self) -> None:
        member = self.random.choice([each for each in self.members if each.subscription.pushed and not each.gone])
        receiver = self.history.network.receiver(member.subscription.consumer.address)
        behaviours: list[Behaviour] = [*(each for each in TAKES_S if each != "gone"), "deferring", "rejecting"]
        receiver.behaviour = behaviour = self.random.choice(behaviours)
        lasts_s = self.random.choice((2.0, 20.0, 120.0, 2 * HOUR_S))
        self.history.say(f"{member.name} is {behaviour} for {lasts_s:g} s")
        self.kernel.count(f"endpoint {behaviour}")
        self.kernel.call(lasts_s, lambda: self._recover(receiver))

    def lose_leader(self) -> None:
        name = self.random.choice(("notifications", "attempts", "parked", "feed", "progress", "control", "results"))
        partition = self.random.choice(self.history.broker.log(name))
        self._slow(self.random.uniform(0.5, 25.0), lambda until: setattr(partition, "leader_at", until))

    def lose_broker(self) -> None:
        broker = self.history.broker
        self._slow(self.random.uniform(0.5, 25.0), lambda until: setattr(broker, "away_until", until))

    def lose_acknowledgement(self) -> None:
        self.history.broker.lost_acknowledgements += 1
        self.history.oracle.kafka_was_slow.append((self.kernel.now, self.kernel.now + 60.0))

    def _slow(self, lasts_s: float, begin: Callable[[float], None]) -> None:
        begin(self.kernel.now + lasts_s)
        self.history.oracle.kafka_was_slow.append((self.kernel.now, self.kernel.now + lasts_s + 20.0))

    def set_clock(self) -> None:
        host = self.random.choice([*self.history.hosts.values(), self.history.broker.host])
        before = host.ahead_s
        self.kernel.note("clock set")
        host.ahead_s = self.random.choice((0.0, -HOUR_S, HOUR_S, -30.0, 86_400.0))
        self.history.say(f"the clock of {host.name}: {host.ahead_s - before:+g} s")

    def lag(self) -> None:
        gateway = self.gateway()
        process, lasts_s = gateway.process, self.random.uniform(0.5, 8.0)
        process.lag_s = self.random.uniform(0.1, 3.0)
        self.kernel.call(lasts_s, lambda: setattr(process, "lag_s", 0.0))

    def kill_gateway(self) -> None:
        number = self.random.randrange(len(self.history.gateways))
        dead = self.history.gateways.pop(number)
        dead.process.kill()
        self.history.start_gateway(dead.process.name)

    def change_subscription(self) -> None:
        """A change between two acceptances, through either gateway."""
        if not (plain := self._plain()):
            return
        member = self.random.choice(plain)
        topic = self._topic_of(member)
        what = self.random.choice(
            ("subscribe", "subscribe", "pause", "resume", "renew", "expire", "expire", "replace", "unsubscribe")
        )
        self.notify(topic)
        if what == "subscribe" or member.changes[-1].failed:
            current = self.retains and topic in self.topics and self.random.random() < 0.5
            expression = topic if current else self.random.choice((topic, topic, *ALL_TOPICS))
            made = self.new_member(expression, form=self.random.choice(("raw", "notify")), current=current)
            self._notify_when_answered(made, topic)
        elif what == "unsubscribe" and len(plain) > 12:
            self.history.unsubscribe(self.gateway(), member)
            self._notify_when_answered(member, topic)
        elif what in ("pause", "resume"):
            self.history.change(self.gateway(), member, paused=not member.subscription.paused)
            self._notify_when_answered(member, topic)
        elif what == "replace" and not member.subscription.queue:  # as a durable subscription of the same name
            policy = self.random.choice((DeliveryPolicy(order="strict"), DeliveryPolicy(reliability="strict")))
            self.history.change(self.gateway(), member, policy=policy)
            self._notify_when_answered(member, topic)
        else:
            lasts_s = self.random.choice((5.0, 20.0, 120.0)) if what == "expire" else 400 * 86_400.0
            gateway = self.gateway()
            terminates_ms = int((self.kernel.wall_s(gateway.process.host) + lasts_s) * 1000)
            self.history.change(gateway, member, terminates_ms=terminates_ms)
            if what == "expire":
                for _ in range(8):
                    at = self.random.uniform(0.5, 1.5) * lasts_s
                    self.kernel.call(at, lambda: self.notify(topic))
        self.notify(topic)

    def _notify_when_answered(self, member: Member, topic: str) -> None:
        """Publish immediately after the answer, through either gateway."""
        change = member.changes[-1]

        def look() -> None:
            if change.answered is not None:
                for _ in range(2):
                    self.notify(topic)
            elif not change.failed and self.kernel.now - change.began < 60.0:  # a killed gateway never answers
                self.kernel.call(0.002, look)

        self.kernel.call(0.002, look)
