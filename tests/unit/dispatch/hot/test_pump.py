from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from arborcast.dispatch.delivery.capacity import Limits
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.pump import Pump, PumpRun
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Tries
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.fake_transport import FakeTransport

NOW_S = 12.5
NOW_MS = 12_500
RETRY = RetrySettings(first_wait_s=1.0, jitter=0.0, breaker_failures=3, batch_wait_s=2.0)


def subscription(
    name: str, form: str = "raw", policy: DeliveryPolicy | None = None, **consumer: object
) -> Subscription:
    reference = EndpointReference(f"http://{name}/", **consumer)  # type: ignore[arg-type]
    return Subscription(
        name,
        reference,
        form=form,  # type: ignore[arg-type]
        addressing=bool(consumer),
        policy=policy or DeliveryPolicy(),
    )


def message(name: str) -> Received:
    return Received(Notification(name, TopicPath("a"), b"<x/>", 5), 0, 0, 7)


def filled(*messages: tuple[str, Subscription], bounds: Limits = Limits(16, 128)) -> Lanes:  # noqa: B008 - immutable
    lanes = Lanes(LaneLimits(10, 10_000), bounds)
    for name, target in messages:
        lanes.add(message(name), target)
    return lanes


class Ran:
    """One run of the pump over lanes, with a clock that goes on by `seconds_each` with every push."""

    def __init__(
        self,
        lanes: Lanes,
        answer: Callable[[PushRequest], PushResult] = lambda _: PushResult(202),
        max_in_flight: int = 100,
        seconds_each: float = 0.0,
        watched: frozenset[str] = frozenset(),
    ) -> None:
        self.journal = FakeJournal()
        self.transport = FakeTransport(answer)
        settlement = BatchOutcomes(self.journal, PushSettings(), RETRY, watched, now=lambda: NOW_S, chance=lambda: 0.0)
        pump = Pump(
            self.transport,
            Envelope,
            max_in_flight,
            RETRY.batch_wait_s,
            now=lambda: NOW_S,
            clock=lambda: seconds_each * len(self.transport.sent),
        )
        self.told: list[int] = []
        pump.run(PumpRun(lanes, settlement, show=self.told.append))
        assert lanes.empty
        assert not self.transport.pending
        self.report = settlement.report

    @property
    def rows(self) -> list[Attempt]:
        return self.journal.rows

    def pushes_to(self, name: str) -> int:
        return sum(f"//{name}/" in request.url for request in self.transport.sent)


def test_what_waited_in_its_lane_for_too_long_is_not_pushed_any_more() -> None:
    """A receiver hangs for three seconds, and what waits behind is valid for one: none of it is pushed."""
    moment = [0.0]

    def answer(request: PushRequest) -> PushResult:
        moment[0] += 3.0
        return PushResult(202, duration_s=3.0)

    lanes = filled()
    target, other = subscription("hangs"), subscription("other")
    for number in range(5):
        notification = Notification(
            f"n{number}", TopicPath("a"), b"<x/>", 0, valid_until_ms=1_000 * (1 + 9 * (number == 3))
        )
        lanes.add(Received(notification, 0, number, 7), target)
    lanes.add(Received(Notification("m", TopicPath("a"), b"<x/>", 0), 0, 5, 7), other)
    journal, transport = FakeJournal(), FakeTransport(answer)
    outcomes = BatchOutcomes(journal, PushSettings(), RETRY, now=lambda: moment[0], chance=lambda: 0.0)

    Pump(transport, Envelope, 1, RETRY.batch_wait_s, now=lambda: moment[0]).run(PumpRun(lanes, outcomes))

    assert lanes.empty
    assert journal.states("hangs") == [
        ("n0", "delivered", ""),
        ("n1", "expired", "lifespan"),
        ("n2", "expired", "lifespan"),
        ("n3", "delivered", ""),
        ("n4", "expired", "lifespan"),
    ]
    assert journal.states("other") == [("m", "delivered", "")]
    assert journal.buried == []


def test_no_more_pushes_under_way_than_allowed() -> None:
    ran = Ran(filled(*((f"n{i}", subscription(f"s{i}")) for i in range(20))), max_in_flight=3)

    assert ran.transport.most_in_flight == 3
    assert (max(ran.told), ran.told[-1]) == (3, 0)
    assert len(ran.rows) == 20


def test_what_waits_behind_an_endpoint_that_is_away_is_parked_untried() -> None:
    away, well = subscription("away"), subscription("well")

    def answer(request: PushRequest) -> PushResult:
        return PushResult(0, "connect") if "away" in request.url else PushResult(202)

    ran = Ran(filled(("n1", away), ("n2", away), ("n3", away), ("n1", well), ("n2", well)), answer)

    assert ran.journal.states("away") == [
        ("n1", "parked", "connect"),
        ("n2", "parked", "waiting"),
        ("n3", "parked", "waiting"),
    ]
    assert ran.journal.parked == {
        ("away", "n1"): Tries(1, 1, NOW_MS + 1000, NOW_MS),
        ("away", "n2"): Tries(),
        ("away", "n3"): Tries(),
    }
    assert [state for _, state, _ in ran.journal.states("well")] == ["delivered", "delivered"]
    assert ran.pushes_to("away") == 1
    assert ran.report.signs == [("http://away/", Sign("unreachable", "n1"))]


def test_an_endpoint_that_was_away_is_not_tried_for_other_subscriptions_of_the_batch() -> None:
    def at(name: str) -> Subscription:
        return Subscription(name, EndpointReference("http://away/"), form="raw")

    ran = Ran(
        filled(("n1", at("s1")), ("n1", at("s2")), ("n1", at("s3")), bounds=Limits(1, 128)),
        lambda _: PushResult(0, "connect"),
    )

    assert len(ran.transport.sent) == 1
    assert [ran.journal.states(name) for name in ("s2", "s3")] == [[("n1", "parked", "waiting")]] * 2


def test_a_host_where_nothing_answers_is_not_tried_endpoint_by_endpoint() -> None:
    ports = [
        Subscription(f"s{port}", EndpointReference(f"http://host:{port}/"), form="raw") for port in range(100, 150)
    ]

    silent = Ran(filled(*(("n1", each) for each in ports)), lambda _: PushResult(0, "timeout"), max_in_flight=1)
    assert len(silent.transport.sent) == 4

    def answer(request: PushRequest) -> PushResult:
        return PushResult(202) if request.url == "http://host:104/" else PushResult(0, "timeout")

    partly = Ran(filled(*(("n1", each) for each in ports[4:] + ports[:4])), answer, max_in_flight=1)
    assert len(partly.transport.sent) > 4


class Slow:
    """A pump whose receivers answer when the test says so, and whose clock is the test's."""

    def __init__(self, *messages: tuple[str, Subscription], max_in_flight: int = 100) -> None:
        self.journal, self.transport, self.clock = FakeJournal(), _Silent(), 0.0
        self.outcomes = BatchOutcomes(
            self.journal, PushSettings(total_timeout_s=15.0), RETRY, now=lambda: NOW_S, chance=lambda: 0.0
        )
        self.lanes = filled(*messages)
        self.run = PumpRun(self.lanes, self.outcomes)
        self.pump = Pump(
            self.transport,
            Envelope,
            max_in_flight,
            RETRY.batch_wait_s,
            now=lambda: NOW_S,
            clock=lambda: self.clock,
        )
        self.pump.begin(self.run)

    def after(self, seconds: float) -> None:
        self.clock += seconds
        self.pump.drive(0.0)
        self.pump.turn(self.run)

    def answer(self, name: str, result: PushResult) -> None:
        (pending,) = [each for each in self.transport.pending if f"//{name}/" in each.request.url]
        self.transport.pending.remove(pending)
        pending.callback(result)


class _Silent(FakeTransport):
    """`readable` is what was answered, and is taken in by the next `drive`."""

    readable: Callable[[], None] | None = None

    def drive(self, timeout_s: float) -> None:
        readable, self.readable = self.readable, None
        if readable is not None:
            readable()


def test_a_push_without_an_answer_goes_on_and_the_redelivery_waits_for_its_result() -> None:
    target = subscription("slow")
    world = Slow(("n1", target), ("n2", target))
    world.after(2.0)
    assert world.journal.parked == {}
    world.after(0.1)

    # A push that is lost with its worker is made again when it cannot have an answer any more.
    due_ms = NOW_MS + 15_000 + 1_000
    waits = Tries(1, 0, due_ms, NOW_MS, UNANSWERED_PUSH + world.journal.rows[0].push)
    assert world.journal.parked == {("slow", "n1"): waits, ("slow", "n2"): Tries()}
    assert world.journal.states("slow") == [("n1", "parked", "waiting"), ("n2", "parked", "waiting")]
    assert world.outcomes.report.signs == [("http://slow/", Sign("slow", late=True))]
    assert world.lanes.empty
    assert (len(world.transport.sent), world.pump.in_flight, world.pump.unanswered) == (1, 0, 1)

    world.answer("slow", PushResult(202, duration_s=4.0))

    (result,) = world.journal.answers
    assert (result.state, result.promise.subscription, result.promise.push) == ("delivered", "slow", waits.awaits)
    assert world.pump.unanswered == 0
    assert len(world.journal.rows) == 2, "the redelivery writes the row"


@pytest.mark.parametrize(
    ("answer", "state", "error", "status"),
    [
        (PushResult(0, "timeout"), "failed", "timeout", 0),
        (PushResult(500), "failed", "server-error", 500),
        (PushResult(0, "address"), "refused", "address", 0),
    ],
)
def test_a_late_failure_is_a_result_too(answer: PushResult, state: str, error: str, status: int) -> None:
    world = Slow(("n1", subscription("slow")))
    world.after(2.1)
    world.answer("slow", answer)
    (result,) = world.journal.answers
    assert (result.state, result.error, result.status) == (state, error, status)


def test_a_late_answer_that_promises_a_result_is_parked_with_that_promise() -> None:
    world = Slow(("n1", subscription("slow")))
    world.after(2.1)
    request = dataclasses.replace(world.transport.pending[0].request, result_by_ms=NOW_MS + 60_000)
    push = Push("p", [message("n1").notification], request, PushResult(202, later=True), NOW_MS)
    world.outcomes.answered(subscription("slow"), [message("n1")], push, classify(push.result, request.result_by_ms))
    assert world.journal.parked["slow", "n1"] == Tries(1, 0, NOW_MS + 61_000, NOW_MS, "p")
    assert world.journal.answers == []


def test_what_was_answered_while_the_thread_stood_still_is_not_late() -> None:
    world = Slow(("n1", subscription("s")))
    world.transport.readable = lambda: world.answer("s", PushResult(202, duration_s=0.1))
    world.clock += 60.0
    world.pump.turn(world.run)
    assert world.journal.states("s") == [("n1", "delivered", "")]


def test_pushes_without_an_answer_leave_their_places_to_others_up_to_a_bound() -> None:
    world = Slow(*((f"n{number}", subscription(f"s{number}")) for number in range(20)), max_in_flight=2)
    begun = [len(world.transport.sent)]
    for _ in range(5):
        world.after(2.1)
        begun.append(len(world.transport.sent))
    assert begun == [2, 4, 6, 8, 8, 8], "four times as many at most"


def test_message_that_fails_does_not_stop_those_behind_it_until_several_in_a_row_do() -> None:
    target = subscription("s")
    answers = iter([PushResult(500), PushResult(202), PushResult(500), PushResult(500), PushResult(500)])

    ran = Ran(filled(*((f"n{number}", target) for number in range(1, 8))), lambda _: next(answers))

    assert ran.journal.states("s") == [
        ("n1", "parked", "server-error"),
        ("n2", "delivered", ""),
        ("n3", "parked", "server-error"),
        ("n4", "parked", "server-error"),
        ("n5", "parked", "server-error"),
        ("n6", "parked", "waiting"),
        ("n7", "parked", "waiting"),
    ]


def test_receiver_that_is_gone_ends_its_subscription() -> None:
    target = subscription("s")

    ran = Ran(filled(("n1", target), ("n2", target)), lambda _: PushResult(410))

    assert ran.journal.states("s") == [("n1", "cancelled", "client-error"), ("n2", "cancelled", "ended")]
    assert ran.report.gone == {"s"}
    assert not ran.journal.parked
    assert not ran.journal.buried


def test_a_receiver_that_holds_up_the_batch_gets_the_rest_later() -> None:
    slow = subscription("slow")
    quick = [(f"q{number}", subscription(f"quick{number}")) for number in range(3)]

    ran = Ran(
        filled(*quick, *((f"n{number}", slow) for number in range(100))),
        lambda _: PushResult(202, duration_s=0.5),
        max_in_flight=1,
        seconds_each=0.5,
    )

    delivered = [row for row in ran.rows if row.state == "delivered"]
    assert len(delivered) < 20
    assert {row.subscription for row in delivered} >= {f"quick{number}" for number in range(3)}
    waiting = [name for name, state, _ in ran.journal.states("slow") if state == "parked"]
    assert waiting == [f"n{number}" for number in range(100 - len(waiting), 100)]


def test_subscription_without_a_possible_envelope_fails_alone() -> None:
    broken = subscription("broken", reference_parameters=("<a>",))

    ran = Ran(filled(("n1", broken), ("n2", broken), ("n1", subscription("well"))))

    assert {(each.subscription, each.notification): (each.state, each.error) for each in ran.rows} == {
        ("broken", "n1"): ("dead", "envelope"),
        ("broken", "n2"): ("dead", "envelope"),
        ("well", "n1"): ("delivered", ""),
    }


def test_nothing_more_is_pushed_while_outcomes_cannot_be_written() -> None:
    class Late(FakeJournal):
        """Kafka goes away after the first push, until it is waited for."""

        def write_due(self) -> bool:
            self.late = self.late or len(self.rows) == 1
            return not self.late

        def catch_up(self) -> None:
            pushed.append(len(transport.sent))
            assert not transport.in_flight, "what is under way has its outcome first"
            self.rows.append(self.rows[0])
            self.late = False

    pushed: list[int] = []
    transport = FakeTransport()
    settlement = BatchOutcomes(Late(), PushSettings(), RETRY, now=lambda: NOW_S)
    lanes = filled(*((f"n{i}", subscription(f"s{i % 2}")) for i in range(6)))
    Pump(transport, Envelope, 100, 2.0).run(PumpRun(lanes, settlement))

    assert pushed == [2], "both lanes had one under way when it went away"
    assert len(transport.sent) == 6


def test_no_lane_is_blamed_for_the_time_in_which_kafka_was_away() -> None:
    class Late(FakeJournal):
        def catch_up(self) -> None:
            super().catch_up()
            clock.append(1_000.0)

    clock = [0.0]
    journal = Late()
    journal.late = True
    settlement = BatchOutcomes(journal, PushSettings(), RETRY, now=lambda: NOW_S)
    lanes = filled(*((f"n{i}", subscription("s")) for i in range(20)))
    Pump(FakeTransport(), Envelope, 1, 2.0, clock=lambda: clock[-1]).run(PumpRun(lanes, settlement))

    assert {row.state for row in journal.rows} == {"delivered"}


def two_under_way_that_end(*ends: PushResult) -> FakeJournal:
    """Topics a, b and c of one subscription: when b and c are under way together, these are their outcomes."""
    lanes, target = Lanes(LaneLimits(10, 10_000)), subscription("s")
    for number, name in enumerate(("a1", "b1", "c1", "a2", "b2", "c2")):
        lanes.add(Received(Notification(name, TopicPath(name[0]), b"<x/>", 5), 0, number, 7), target)
    journal, transport = FakeJournal(), FakeTransport()
    outcomes = BatchOutcomes(journal, PushSettings(), RETRY, now=lambda: NOW_S, chance=lambda: 0.0)
    pump, run = Pump(transport, Envelope, 100, RETRY.batch_wait_s, now=lambda: NOW_S), PumpRun(lanes, outcomes)
    pump.begin(run)
    pump.drive(0)
    pump.begin(run)
    assert len(transport.pending) == 2
    transport.pending.popleft().callback(ends[0])
    pump.begin(run)
    assert [name for name, state, _ in journal.states("s") if state == "parked"] in ([], ["b1"]), "c1 is under way"
    assert len(transport.pending) == 1
    transport.pending.popleft().callback(ends[1])
    pump.begin(run)
    assert lanes.empty
    return journal


AWAY, GONE, TAKEN = PushResult(0, "connect"), PushResult(410), PushResult(202)


def test_what_is_left_is_parked_when_no_topic_of_the_subscription_is_under_way_any_more() -> None:
    assert two_under_way_that_end(AWAY, TAKEN).states("s") == [
        ("a1", "delivered", ""),
        ("b1", "parked", "connect"),
        ("c1", "delivered", ""),
        ("a2", "parked", "waiting"),
        ("b2", "parked", "waiting"),
        ("c2", "parked", "waiting"),
    ]


def test_whichever_push_hears_that_the_receiver_is_gone_nothing_is_left_to_wait() -> None:
    for ends in ((GONE, AWAY), (AWAY, GONE)):
        assert [state for _, state, _ in two_under_way_that_end(*ends).states("s")[3:]] == ["cancelled"] * 3


def test_an_endpoint_that_goes_away_with_many_pushes_under_way_has_gone_away_once() -> None:
    def at(name: str) -> Subscription:
        return Subscription(name, EndpointReference("http://away/"), form="raw")

    ran = Ran(filled(*((f"n{each}", at(f"s{each}")) for each in range(5))), lambda _: PushResult(0, "connect"))

    assert len(ran.transport.sent) == 5
    assert [sign.kind for _, sign in ran.report.signs] == ["unreachable"]
