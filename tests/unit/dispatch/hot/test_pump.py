from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest

from arborcast.dispatch.delivery import pushes
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push
from arborcast.dispatch.hot import batch_outcomes
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.pump import Pump, PumpRun
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Tries
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription
from tests.support.fake_journal import FakeJournal
from tests.support.fake_transport import FakeTransport
from tests.support.hot import RETRY, limits, outcomes_in, received
from tests.support.make import Clock, subscription

NOW_MS = 12_500
FIRST_WAIT_MS = 2_000
AWAY, GONE, TAKEN, FAILS = PushResult(0, "connect"), PushResult(410), PushResult(202), PushResult(500)

to = partial(subscription, form="raw")


def now() -> float:
    return NOW_MS / 1000


def filled(*messages: tuple[str, Subscription], per_endpoint: int = 16) -> Lanes:
    lanes = Lanes(limits(per_endpoint=per_endpoint))
    for name, target in messages:
        lanes.add(received(name), target)
    return lanes


class Ran:
    """One run of the pump over lanes. Each push takes `seconds_each`."""

    def __init__(
        self,
        lanes: Lanes,
        answer: Callable[[PushRequest], PushResult] = lambda _: TAKEN,
        max_in_flight: int = 100,
        seconds_each: float = 0.0,
    ) -> None:
        self.journal, self.transport, self.shown = FakeJournal(), FakeTransport(answer), list[int]()
        self.states, self.sent = self.journal.states, self.transport.sent
        settlement = outcomes_in(self.journal, now)
        pump = Pump(
            *(self.transport, Envelope, max_in_flight, RETRY.batch_wait_s, now), lambda: seconds_each * len(self.sent)
        )
        run = PumpRun(lanes, settlement, show=self.shown.append)
        pump.run(run)
        assert lanes.empty
        assert not run._pace
        assert not self.transport.pending
        self.outcomes, self.report, self.rows = settlement, settlement.report, self.journal.rows


def test_a_message_that_waited_beyond_its_validity_is_not_pushed() -> None:
    """A receiver hangs for three seconds; messages with a validity of one second wait."""
    clock, journal = Clock(0.0), FakeJournal()
    lanes = filled()
    for number in range(5):
        lanes.add(received(f"n{number}", number, valid_until_ms=10_000 if number == 3 else 1_000), to("hangs"))
    lanes.add(received("m", 5), to("other"))

    def answer(request: PushRequest) -> PushResult:
        clock.after(3.0)
        return PushResult(202, duration_s=3.0)

    Pump(FakeTransport(answer), Envelope, 1, RETRY.batch_wait_s, clock).run(PumpRun(lanes, outcomes_in(journal, clock)))

    assert lanes.empty
    over = [(f"n{number}", "expired", "lifespan") for number in (1, 2, 4)]
    assert journal.states("hangs") == [("n0", "delivered", ""), *over[:2], ("n3", "delivered", ""), over[2]]
    assert journal.states("other") == [("m", "delivered", "")]
    assert journal.buried == []


def test_no_more_pushes_in_flight_than_allowed() -> None:
    ran = Ran(filled(*((f"n{i}", to(f"s{i}")) for i in range(20))), max_in_flight=3)
    assert ran.transport.most_in_flight == 3
    assert (max(ran.shown), ran.shown[-1], len(ran.rows)) == (3, 0, 20)


def test_messages_of_an_unreachable_endpoint_are_parked_untried() -> None:
    away, well = to("away"), to("well")
    ran = Ran(
        filled(("n1", away), ("n2", away), ("n3", away), ("n1", well), ("n2", well)),
        lambda request: AWAY if "away" in request.url else TAKEN,
    )

    waiting = [("n2", "parked", "waiting"), ("n3", "parked", "waiting")]
    assert ran.states("away") == [("n1", "parked", "connect"), *waiting]
    assert ran.journal.parked == {
        ("away", "n1"): Tries(1, 1, NOW_MS + FIRST_WAIT_MS, NOW_MS),
        ("away", "n2"): Tries(),
        ("away", "n3"): Tries(),
    }
    assert [state for _, state, _ in ran.states("well")] == ["delivered", "delivered"]
    assert sum("//away/" in request.url for request in ran.sent) == 1
    assert ran.report.signs == [("http://away/", Sign("unreachable", "n1"))]


def test_an_unreachable_endpoint_is_not_tried_per_subscription() -> None:
    shared = [to(f"s{number}", url="http://away/") for number in range(5)]
    one_by_one = Ran(filled(*(("n1", each) for each in shared), per_endpoint=1), lambda _: AWAY)
    assert len(one_by_one.sent) == 1
    assert [one_by_one.states(each.id) for each in shared[1:]] == [[("n1", "parked", "waiting")]] * 4

    together = Ran(filled(*(("n1", each) for each in shared)), lambda _: AWAY)
    assert len(together.sent) == 5
    assert [sign.kind for _, sign in together.report.signs] == ["unreachable"], "one sign"


class Slow:
    """A pump with receivers that answer on the test's command, and a fake clock."""

    def __init__(self, *messages: tuple[str, Subscription], max_in_flight: int = 100) -> None:
        self.journal, self.transport, self.clock = FakeJournal(), _Silent(), Clock(0.0)
        self.outcomes = outcomes_in(self.journal, now, total_timeout_s=15.0)
        self.lanes = filled(*messages)
        self.run = PumpRun(self.lanes, self.outcomes)
        self.pump = Pump(self.transport, Envelope, max_in_flight, RETRY.batch_wait_s, now, self.clock)
        self.pump.begin(self.run)

    def after(self, seconds: float) -> None:
        self.clock.after(seconds)
        self.transport.drive(0.0)
        self.pump.turn(self.run)

    def answer(self, result: PushResult) -> None:
        self.transport.pending.popleft().callback(result)


class _Silent(FakeTransport):
    """Pushes are answered by the test alone."""

    def drive(self, timeout_s: float) -> None: ...


@pytest.mark.parametrize(
    ("answer", "state", "error", "status"),
    [
        (PushResult(503, retry_after_s=60.0), "failed", "server-error", 503),
        (PushResult(202, duration_s=4.0), "delivered", "", 202),
        (PushResult(0, "timeout"), "failed", "timeout", 0),
        (FAILS, "failed", "server-error", 500),
        (PushResult(0, "address"), "refused", "address", 0),
    ],
)
def test_a_late_answer_is_a_result_for_the_redelivery(answer: PushResult, state: str, error: str, status: int) -> None:
    setup = Slow(("n1", to("slow")), ("n2", to("slow")))
    setup.after(2.0)
    assert setup.journal.parked == {}
    setup.after(0.1)

    # A push that is lost with its worker is repeated once its answer is no longer possible.
    due_ms = NOW_MS + 15_000 + 1_000
    waits = Tries(1, 0, due_ms, NOW_MS, UNANSWERED_PUSH + setup.journal.rows[0].push)
    assert setup.journal.parked == {("slow", "n1"): waits, ("slow", "n2"): Tries()}
    assert setup.journal.states("slow") == [("n1", "parked", "waiting"), ("n2", "parked", "waiting")]
    assert setup.outcomes.report.signs == [("http://slow/", Sign("slow", late=True))]
    assert setup.lanes.empty
    assert (len(setup.transport.sent), setup.pump.in_flight, setup.pump.unanswered) == (1, 0, 1)

    setup.answer(answer)

    (result,) = setup.journal.answers
    assert (result.state, result.error, result.status) == (state, error, status)
    assert result.retry_after_s == answer.retry_after_s
    assert (result.promise.subscription, result.promise.push) == ("slow", waits.awaits)
    assert setup.pump.unanswered == 0
    assert len(setup.journal.rows) == 2, "the redelivery writes the row"


def test_the_answer_to_an_unanswered_push_in_parts_is_awaited_longer_with_each_part() -> None:
    """Otherwise the redelivery would push the message a second time."""
    target = subscription("slow", form="legacy", policy=DeliveryPolicy(fragment_bytes=600))
    setup = Slow()
    setup.lanes.add(received("n1", payload=b"<m>" + b"x" * 3_000 + b"</m>"), target)
    setup.pump.begin(setup.run)
    setup.after(2.1)
    push = setup.journal.rows[0].push
    clock, awaited = Clock(NOW_MS / 1000), list[int]()
    setup.outcomes._now = clock
    for seconds in (0, 3, 4, 15):
        clock.after(seconds)
        setup.answer(TAKEN)
        awaited.append(setup.journal.parked["slow", "n1"].due_ms - int(clock() * 1000))
    assert len(setup.transport.sent) == 5, "each part is sent once"
    assert awaited == [16_000, 21_000, 17_000, 21_000], "no less than the time of the next part"
    assert setup.journal.parked["slow", "n1"].awaits == UNANSWERED_PUSH + push


def test_a_late_promise_of_a_result_is_parked() -> None:
    setup, message = Slow(("n1", to("slow"))), received("n1")
    setup.after(2.1)
    request = dataclasses.replace(setup.transport.pending[0].request, result_by_ms=NOW_MS + 60_000)
    push = Push("p", [message.notification], request, PushResult(202, later=True), NOW_MS)
    setup.outcomes.answered(to("slow"), [message], push, classify(push.result, request.result_by_ms))
    assert setup.journal.parked["slow", "n1"] == Tries(1, 0, NOW_MS + 61_000, NOW_MS, "p")
    assert setup.journal.answers == []


def test_an_unread_answer_is_not_late_after_a_thread_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Slow(("n1", to("s")))
    monkeypatch.setattr(setup.transport, "drive", lambda _: setup.answer(PushResult(202, duration_s=0.1)))
    setup.clock.after(60.0)
    setup.pump.turn(setup.run)
    assert setup.journal.states("s") == [("n1", "delivered", "")]


def test_unanswered_pushes_free_their_slots_up_to_a_bound() -> None:
    setup = Slow(*((f"n{number}", to(f"s{number}")) for number in range(20)), max_in_flight=2)
    begun = [len(setup.transport.sent)]
    for _ in range(5):
        setup.after(2.1)
        begun.append(len(setup.transport.sent))
    assert begun == [2, 4, 6, 8, 8, 8], "at most four times max_in_flight"


def test_unanswered_pushes_free_their_bytes_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message in parts may take minutes."""
    monkeypatch.setattr(pushes, "MOST_BYTES", 300)
    setup = Slow()
    for number in range(20):
        setup.lanes.add(received(f"n{number}", payload=b"x" * 100), to(f"s{number}"))
    setup.pump.begin(setup.run)
    begun = [len(setup.transport.sent)]
    for _ in range(3):
        setup.after(2.1)
        begun.append(len(setup.transport.sent))
    assert begun == [3, 6, 6, 6], "at most twice the bytes"
    while setup.transport.pending:
        setup.answer(TAKEN)
    setup.after(0.0)
    assert len(setup.transport.sent) == 9


def test_a_lane_ends_after_several_failures_in_a_row_or_a_410() -> None:
    answers = iter([FAILS, TAKEN, FAILS, FAILS, FAILS])
    ran = Ran(filled(*((f"n{number}", to("s")) for number in range(1, 8))), lambda _: next(answers))
    failed = [(f"n{number}", "parked", "server-error") for number in (1, 3, 4, 5)]
    waiting = [("n6", "parked", "waiting"), ("n7", "parked", "waiting")]
    assert ran.states("s") == [failed[0], ("n2", "delivered", ""), *failed[1:], *waiting]

    ran = Ran(filled(("n1", to("s")), ("n2", to("s"))), lambda _: GONE)
    assert ran.states("s") == [("n1", "cancelled", "client-error"), ("n2", "cancelled", "ended")]
    assert (ran.report.gone, ran.journal.parked, ran.journal.buried) == ({"s"}, {}, [])


def test_dead_letters_of_first_attempts_are_reported() -> None:
    refused = Ran(filled(("n1", to("s")), ("n2", to("s"))), lambda _: PushResult(400))
    assert [state for _, state, _ in refused.states("s")] == ["dead", "dead"]
    new = refused.report.new_letters
    assert (new.number, new.subscription, new.detail) == (2, "s", "HTTP 400")
    assert Ran(filled(("n1", to("s"))), lambda _: FAILS).report.new_letters.number == 0


def test_the_lanes_with_known_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_outcomes, "_LANES", 8)
    ran = Ran(filled(*(("n1", to(f"s{number}")) for number in range(20))), lambda _: FAILS)
    assert list(ran.outcomes._failures) == [f"s{number}" for number in range(12, 20)]


def test_messages_of_a_slow_receiver_are_parked_at_the_budget() -> None:
    quick = [(f"q{number}", to(f"quick{number}")) for number in range(3)]
    ran = Ran(
        filled(*quick, *((f"n{number}", to(name)) for number in range(100) for name in ("slow", "other"))),
        lambda _: PushResult(202, duration_s=0.5),
        max_in_flight=1,
        seconds_each=0.5,
    )

    delivered = [row for row in ran.rows if row.state == "delivered"]
    assert len(delivered) < 20
    assert {row.subscription for row in delivered} >= {f"quick{number}" for number in range(3)}
    waiting = [name for name, state, _ in ran.states("slow") if state == "parked"]
    assert waiting == [f"n{number}" for number in range(100 - len(waiting), 100)]


def test_an_invalid_envelope_fails_its_subscription_alone() -> None:
    torn = EndpointReference("http://broken/", ("<a>",))
    broken = Subscription("broken", torn, form="raw", addressing=True)
    ran = Ran(filled(("n1", broken), ("n2", broken), ("n1", to("well"))))
    assert ran.states("broken") == [("n1", "dead", "envelope"), ("n2", "dead", "envelope")]
    assert ran.states("well") == [("n1", "delivered", "")]


def test_nothing_is_pushed_while_kafka_is_unavailable() -> None:
    class Late(FakeJournal):
        """Kafka is unavailable after the first push until `catch_up`, which takes long."""

        def write_due(self) -> bool:
            self.late = self.late or len(self.rows) == 1
            return not self.late

        def catch_up(self) -> None:
            pushed.append(len(transport.sent))
            assert not transport.in_flight, "pushes in flight are settled first"
            clock.after(1_000.0)
            super().catch_up()
            self.rows.append(self.rows[0])

    pushed, clock = list[int](), Clock(0.0)
    journal, transport = Late(), FakeTransport()
    lanes = filled(*((f"n{i}", to(f"s{i % 2}")) for i in range(40)))
    Pump(transport, Envelope, 100, RETRY.batch_wait_s, clock=clock).run(PumpRun(lanes, outcomes_in(journal, now)))

    assert pushed == [2], "one push of each lane was in flight"
    assert len(transport.sent) == 40
    assert {row.state for row in journal.rows} == {"delivered"}


@pytest.mark.parametrize(
    ("ends", "states"),
    [
        ((AWAY, TAKEN), ["parked", "delivered", "parked", "parked", "parked"]),
        ((GONE, AWAY), ["cancelled", "parked", "cancelled", "cancelled", "cancelled"]),
        ((AWAY, GONE), ["parked", "cancelled", "cancelled", "cancelled", "cancelled"]),
    ],
)
def test_a_lane_is_parked_after_its_pushes_in_flight(ends: tuple[PushResult, PushResult], states: list[str]) -> None:
    """Topics a, b and c of one subscription; `ends` are the outcomes of b and c, which are in flight together."""
    lanes = filled()
    for number, name in enumerate(("a1", "b1", "c1", "a2", "b2", "c2")):
        lanes.add(received(name, number, name[0]), to("s"))
    journal, transport = FakeJournal(), FakeTransport()
    pump = Pump(transport, Envelope, 100, RETRY.batch_wait_s, now)
    run = PumpRun(lanes, outcomes_in(journal, now))
    pump.begin(run)
    transport.drive(0)
    pump.begin(run)
    for left, end in zip((2, 1), ends, strict=True):
        assert [name for name, state, _ in journal.states("s") if state == "parked"] in ([], ["b1"])
        assert len(transport.pending) == left
        transport.pending.popleft().callback(end)
        pump.begin(run)
    assert lanes.empty
    assert [name for name, *_ in journal.states("s")] == ["a1", "b1", "c1", "a2", "b2", "c2"]
    assert [state for _, state, _ in journal.states("s")] == ["delivered", *states]
