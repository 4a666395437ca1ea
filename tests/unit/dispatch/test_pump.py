from __future__ import annotations

from dispatch.attempts import Attempt
from dispatch.envelope import Envelope
from dispatch.lanes import LaneLimits, Lanes
from dispatch.pump import Pump
from dispatch.transport.contract import PushRequest, PushResult
from tests.support.fake_transport import FakeTransport
from topic_model.notifications import Notification
from topic_model.subscriptions import EndpointReference, Subscription
from topic_model.topics import TopicPath


def subscription(name: str, form: str = "raw", **consumer: object) -> Subscription:
    reference = EndpointReference(f"http://{name}/", **consumer)  # type: ignore[arg-type]
    return Subscription(name, reference, form=form, addressing=bool(consumer))  # type: ignore[arg-type]


def filled(*messages: tuple[str, Subscription]) -> Lanes:
    lanes = Lanes(LaneLimits(10, 10_000))
    for name, target in messages:
        lanes.add(Notification(name, TopicPath("a"), b"<x/>", 5), target)
    return lanes


def run(transport: FakeTransport, lanes: Lanes, max_in_flight: int = 100) -> list[Attempt]:
    recorded: list[Attempt] = []
    Pump(transport, Envelope, recorded.append, max_in_flight, now=lambda: 12.5).run(lanes, batch=7)
    assert lanes.empty
    assert not transport.pending
    return recorded


def test_each_delivery_becomes_one_attempt_with_its_facts() -> None:
    def answer(request: PushRequest) -> PushResult:
        return PushResult(200, duration_s=0.25, response=b"ok", response_bytes=2, reused=True)

    (recorded,) = run(FakeTransport(answer), filled(("n1", subscription("s"))))

    assert (recorded.notification, recorded.subscription, recorded.number) == ("n1", "s", 1)
    assert (recorded.state, recorded.status, recorded.error) == ("delivered", 200, "")
    assert (recorded.accepted_ms, recorded.started_ms, recorded.duration_ms) == (5, 12_500, 250.0)
    assert (recorded.response, recorded.response_bytes, recorded.reused) == (b"ok", 2, True)
    assert (recorded.endpoint, recorded.batch, recorded.messages) == ("http://s/", 7, 1)
    assert recorded.request_bytes > 100


def test_messages_that_travel_together_share_a_push_and_its_outcome() -> None:
    target = subscription("s", "notify")

    recorded = run(FakeTransport(lambda _: PushResult(500)), filled(("n1", target), ("n2", target)))

    assert [(each.notification, each.state, each.status, each.messages) for each in recorded] == [
        ("n1", "failed", 500, 2),
        ("n2", "failed", 500, 2),
    ]
    assert len({each.push for each in recorded}) == 1


def test_no_more_pushes_under_way_than_allowed() -> None:
    transport = FakeTransport()

    recorded = run(transport, filled(*((f"n{i}", subscription(f"s{i}")) for i in range(20))), max_in_flight=3)

    assert transport.most_in_flight == 3
    assert len(recorded) == 20


def test_one_push_at_a_time_per_subscription() -> None:
    transport = FakeTransport()
    target = subscription("s")

    recorded = run(transport, filled(*((f"n{i}", target) for i in range(5))))

    assert transport.most_in_flight == 1
    assert [each.notification for each in recorded] == [f"n{i}" for i in range(5)]


def test_what_waits_behind_an_endpoint_that_is_away_is_not_tried() -> None:
    away, well = subscription("away"), subscription("well")

    def answer(request: PushRequest) -> PushResult:
        return PushResult(0, "timeout") if "away" in request.url else PushResult(202)

    transport = FakeTransport(answer)
    recorded = run(transport, filled(("n1", away), ("n2", away), ("n3", away), ("n1", well), ("n2", well)))

    assert [(each.notification, each.state, each.error) for each in recorded if each.subscription == "away"] == [
        ("n1", "failed", "timeout"),
        ("n2", "failed", "skipped"),
        ("n3", "failed", "skipped"),
    ]
    assert [each.state for each in recorded if each.subscription == "well"] == ["delivered", "delivered"]
    assert sum("away" in request.url for request in transport.sent) == 1


def test_refused_message_does_not_stop_those_behind_it() -> None:
    answers = iter([PushResult(500), PushResult(202)])
    target = subscription("s")

    recorded = run(FakeTransport(lambda _: next(answers)), filled(("n1", target), ("n2", target)))

    assert [each.state for each in recorded] == ["failed", "delivered"]


def test_subscription_without_a_possible_envelope_fails_alone() -> None:
    broken = subscription("broken", reference_parameters=("<a>",))

    recorded = run(FakeTransport(), filled(("n1", broken), ("n2", broken), ("n1", subscription("well"))))

    assert {(each.subscription, each.notification): (each.state, each.error) for each in recorded} == {
        ("broken", "n1"): ("failed", "internal"),
        ("broken", "n2"): ("failed", "internal"),
        ("well", "n1"): ("delivered", ""),
    }
