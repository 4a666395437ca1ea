from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from arborcast.cli.trace import format_story
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Evaluation, Matched, State
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import _evaluated_in
from arborcast.dispatch.operations.trace.story import (
    AttemptRow,
    ControlHistory,
    DeliveryStory,
    Evidence,
    MatchedBy,
    Story,
    Taken,
)
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRecord,
    TriggerEnded,
    TriggerRecord,
)
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification, made_at
from arborcast.topic_model.subscriptions import (
    Datagrams,
    DeliveryPolicy,
    EndpointReference,
    Peer,
    Trigger,
    XPathFilter,
)
from arborcast.topic_model.topics import TopicPath
from tests.support import make, table_rows

# Times are milliseconds; the notification is accepted at 100,000.
ACCEPTED = 100_000


def subscription(name: str = "s", topic: str = "a//.", **more: Any) -> SubscriptionRecord:
    return SubscriptionRecord(make.subscription(name, topic, **{"created_ms": 1_000, **more}))


def history(*records: ControlRecord | tuple[int, ControlRecord]) -> ControlHistory:
    control = ControlHistory()
    for each in (TopicRecord(TopicPath("a/b")), *records):
        at, record = each if isinstance(each, tuple) else (1_000, each)
        control.add(record, at)
    return control


def attempt(name: str, number: int, state: State, started: int, **more: Any) -> AttemptRow:
    more = {"push": "p" if number else "", "accepted_ms": ACCEPTED, "duration_ms": 20.0, "status": 0, **more}
    made = table_rows.attempt("n", name, state, number=number, started_ms=started, **more)
    row: AttemptRow = rows_of(attempts.encode([made])).to_pylist()[0]
    return row


def evidence(control: ControlHistory, *rows: AttemptRow, stamp: int = UNSTAMPED, **more: Any) -> Evidence:
    message = make.notification("n", payload=b"<x><level>3</level></x>", accepted_ms=ACCEPTED, control=stamp)
    values = {"logged_ms": ACCEPTED + 2, "partition": 1, "offset": 9, **more}
    return Evidence("n", message, control, attempts=rows, **values)


def only(found: Evidence, name: str | None = None) -> DeliveryStory:
    (delivery,) = explain(found, name).deliveries
    return delivery


def told(*rows: AttemptRow, **more: Any) -> DeliveryStory:
    """The story of the delivery to one subscription."""
    return only(evidence(history(subscription()), *rows, **more))


def steps_of(story: Story | DeliveryStory) -> list[tuple[str, str, str]]:
    return [(step.what, step.where, step.detail) for step in story.steps]


def test_delivered_at_the_second_attempt_step_by_step() -> None:
    retry = attempt(
        "s", 1, "parked", ACCEPTED + 50, status=503, error="server-error", detail="HTTP 503", batch=7, next_ms=110_000
    )
    story = explain(
        evidence(history(subscription("s")), retry, attempt("s", 2, "delivered", 110_001, status=202, batch=-1))
    )

    assert steps_of(story) == [
        ("accepted by the gateway", "", ""),
        ("stored in the log", "partition 1, offset 9", ""),
        ("taken by the dispatch", "", "batch 7"),
    ]
    (delivery,) = story.deliveries
    assert (delivery.outcome, delivery.why) == ("delivered", "delivered on attempt 2")
    assert delivery.expression == "a//."
    assert steps_of(delivery) == [
        ("attempt 1: HTTP 503 after 20 ms", "http://s/", "(server-error)"),
        ("attempt 2: HTTP 202 after 20 ms", "http://s/", ""),
    ]
    assert [step.at for step in delivery.steps] == [
        datetime(1970, 1, 1, 0, 1, 40, 50_000, UTC),
        datetime(1970, 1, 1, 0, 1, 50, 1_000, UTC),
    ]


def test_what_a_receiver_says_later_is_told_beside_the_try_that_it_is_about() -> None:
    taken = {"error": "later", "detail": "HTTP 202: its receiver reports the result later", "status": 202}
    rows = [attempt("s", 1, "parked", ACCEPTED + 50, batch=7, next_ms=110_000, **taken)]
    waits = told(*rows)
    assert (waits.outcome, waits.why) == (
        "waiting",
        "its receiver accepted it and reports the result by 1970-01-01 00:01:50 UTC; otherwise it is tried again",
    )

    facts = {"push": "", "batch": -1}
    rows += [
        attempt("s", 1, "parked", 105_000, error="reported", detail="no paper", next_ms=106_000, **facts),
        attempt("s", 2, "parked", 106_000, batch=-1, next_ms=116_000, **taken),
        attempt("s", 2, "parked", 116_000, error="no-result", detail="silence", next_ms=120_000, **facts),
        attempt("s", 3, "parked", 120_000, batch=-1, next_ms=130_000, **taken),
        attempt("s", 3, "delivered", 125_000, detail="its receiver reported this after 5.0 s: printed", **facts),
    ]
    done = told(*rows)
    assert done.outcome == "delivered"
    assert done.why == "delivered on attempt 3: reported this after 5.0 s: printed"
    assert [(step.what, step.detail) for step in done.steps][1::2] == [
        ("failed, its receiver says", "no paper"),
        ("no result in time", "silence"),
        ("done, its receiver says", "its receiver reported this after 5.0 s: printed"),
    ]


@pytest.mark.parametrize(
    ("logged_ms", "matched_ms", "pushed_ms", "shown_ms"),
    [
        (2, 10, 20, [0, 2, 10]),
        # Written down while the first pushes were under way; by another clock.
        (2, 370, 364, [0, 2, 364]),
        (400, 370, 364, [0, 364, 364]),
        (-5, 10, -3, [0, 0, 0]),
    ],
)
def test_steps_are_in_the_order_of_cause_and_of_time(
    logged_ms: int, matched_ms: int, pushed_ms: int, shown_ms: list[int]
) -> None:
    rows = [attempt("s", 1, "delivered", ACCEPTED + pushed_ms, batch=7), attempt("t", 1, "delivered", 200_000, batch=7)]
    matched = MatchedBy(ACCEPTED + matched_ms, 7, 5, 2)
    found = evidence(history(subscription("s")), *rows, logged_ms=ACCEPTED + logged_ms, evaluated=matched)
    steps = explain(found).steps
    assert [step.what for step in steps] == ["accepted by the gateway", "stored in the log", "matched by the dispatch"]
    assert [round(step.at.timestamp() * 1000) - ACCEPTED for step in steps if step.at] == shown_ms


@pytest.mark.parametrize(
    ("number", "state", "error", "detail", "why"),
    [
        (1, "parked", "connect", "refused", "next attempt at 1970-01-01 01:00:00 UTC: refused"),
        (0, "parked", "waiting", "its endpoint is slow", "queued after earlier messages: its endpoint is slow"),
        (5, "dead", "server-error", "HTTP 500", "failed after 5 attempts, kept as a dead letter: HTTP 500"),
        (1, "dead", "address", "10.0.0.1 is private", "not permitted, kept as a dead letter: 10.0.0.1 is private"),
        (2, "expired", "lifespan", "", "expired: lifespan"),
        (0, "cancelled", "ended", "", "the subscription has ended: ended"),
        (1, "dropped", "timely", "no answer", "dropped, the subscription is timely and was not ready: no answer"),
        (0, "dropped", "resources", "7 messages waited", "dropped, backlog limit: 7 messages waited"),
    ],
)
def test_last_row_says_how_it_stands(number: int, state: State, error: str, detail: str, why: str) -> None:
    delivery = told(attempt("s", number, state, ACCEPTED, error=error, detail=detail, next_ms=3_600_000 * number))
    assert (delivery.outcome, delivery.why) == ("waiting" if state == "parked" else state, why)


PENDING = "to be pushed; no outcome is recorded yet"
PAUSED = "the subscription was paused then, and for pull points nothing is stored meanwhile"


def condition(text: str) -> tuple[XPathFilter]:
    return (XPathFilter(XPATH_1, text),)


@pytest.mark.parametrize(
    ("record", "outcome", "why"),
    [
        (subscription(paused=True, pull_point="p"), "skipped", PAUSED),
        (subscription(paused=True), "pending", PENDING),
        (
            subscription(terminates_ms=99_000),
            "skipped",
            "the subscription's time was over at 1970-01-01 00:01:39 UTC",
        ),
        (
            subscription(content=condition("//level > 5")),
            "skipped",
            "filtered: the payload does not fulfil //level > 5",
        ),
        (
            subscription(types=("{urn:plant}alarm", "reading")),
            "skipped",
            "filtered: it is of the type x, and wanted are {urn:plant}alarm reading",
        ),
        (
            subscription(producer=condition("boolean(//none)")),
            "skipped",
            "filtered: the producer's properties do not fulfil boolean(//none)",
        ),
        (subscription(content=condition("//level > 2")), "pending", PENDING),
        (subscription(topic="a/c"), "no match", "a/c doesn't match a/b; a/b would, and so would a//."),
        (
            subscription(topic="A//."),
            "no match",
            "A//. doesn't match a/b: A//. has another namespace or spelling",
        ),
        (
            (200_000, subscription(created_ms=200_000)),
            "no match",
            "the subscription was made later, at 1970-01-01 00:03:20 UTC",
        ),
    ],
)
def test_subscription_without_attempts_has_a_reason(
    record: ControlRecord | tuple[int, ControlRecord], outcome: str, why: str
) -> None:
    delivery = only(evidence(history(record)), "s")
    assert (delivery.outcome, delivery.why) == (outcome, why)


def test_subscription_that_had_ended_before_and_one_that_never_was() -> None:
    control = history(
        subscription("s"), (50_000, SubscriptionEnded("s", "unsubscribed", 50_000)), (60_000, Tombstone("sub:s"))
    )

    assert only(evidence(control), "s").why == (
        "the subscription had ended before, at 1970-01-01 00:00:50 UTC (unsubscribed)"
    )
    assert only(evidence(control), "t").why == "there is no such subscription, and there was none lately"


def test_current_message_is_for_one_subscription_alone() -> None:
    message = make.notification("n", accepted_ms=ACCEPTED, only="new")
    found = Evidence("n", message, history(subscription("new"), subscription("old")))
    outcomes = {each.subscription: each.outcome for each in explain(found).deliveries}
    assert outcomes == {"new": "pending", "old": "skipped"}


@pytest.mark.parametrize(
    ("taken", "what", "why"),
    [
        (Taken(matched=False, done=False), "waits for the dispatch", "not processed yet"),
        (Taken(matched=True, done=False), "taken by the dispatch", "no outcome is recorded yet"),
        (Taken(matched=True, done=True), "taken by the dispatch", "settled; its outcome is not recorded"),
    ],
)
def test_without_a_row_the_progress_of_the_dispatch_says_how_far_it_is(taken: Taken, what: str, why: str) -> None:
    story = explain(evidence(history(subscription("s")), taken=taken))

    assert story.steps[-1].what == what
    assert why in story.deliveries[0].why


def test_attempts_of_a_notification_that_is_not_archived_any_more() -> None:
    found = Evidence("n", None, history(), attempts=[attempt("s", 1, "delivered", ACCEPTED, status=202)])
    story = explain(found)

    assert (story.found, story.topic) == (True, "a/b")
    assert [(each.subscription, each.endpoint, each.outcome) for each in story.deliveries] == [
        ("s", "http://s/", "delivered")
    ]


def test_a_try_that_was_due_is_not_announced_for_the_past() -> None:
    row = attempt("s", 1, "parked", ACCEPTED, error="connect", detail="refused", next_ms=3_600_000)
    assert told(row, now=datetime(1970, 1, 1, 2, tzinfo=UTC)).why == "next attempt due: refused"


def test_unknown_notification() -> None:
    assert not explain(Evidence("n", None, history(subscription("s")))).found


def test_ids_say_when_they_were_made() -> None:
    assert made_at("018bcfe5687b7000b000000000000000") == 0x018BCFE5687B
    strange = "n1", "018bcfe5687b4000b000000000000000", "zzzzzzzzzzzz7000b000000000000000"
    assert list(map(made_at, strange)) == [0, 0, 0]


def test_what_is_parked_waits_for_what_stands_in_its_way_now() -> None:
    parked = attempt("s", 0, "parked", ACCEPTED + 50, error="waiting", detail="put aside", next_ms=3_600_000)

    def why(*records: ControlRecord | tuple[int, ControlRecord]) -> str:
        delivery = only(evidence(history(subscription("s"), *records), parked))
        assert delivery.outcome == "waiting"
        return delivery.why

    paused = (200_000, subscription("s", paused=True))
    suspended = (200_000, SubscriptionSuspended("s", "it answers nothing", 1, 200_000))
    assert why() == "next attempt at 1970-01-01 01:00:00 UTC: put aside"
    assert why(paused) == "held: the subscription is paused: put aside"
    assert why(paused, (300_000, subscription("s"))) == why()
    assert why(suspended) == (
        "held: the subscription is suspended since 1970-01-01 00:03:20 UTC (it answers nothing): put aside"
    )
    assert why(suspended, (300_000, Tombstone("susp:s"))) == why()
    ended = why((200_000, SubscriptionEnded("s", "unsubscribed", 200_000)))
    assert ended.startswith("the subscription has ended since, at 1970-01-01 00:03:20 UTC (unsubscribed)")


def test_what_was_matched_is_known_to_the_record_when_the_batch_has_said_so() -> None:
    """Between the batch's look at the control log and its first push others came, went and were paused: by time alone
    they would have had it, or not."""
    control = ControlHistory()
    control.add(TopicRecord(TopicPath("a/b")), 1_000, 0)
    control.add(subscription("there"), 1_000, 1)
    control.add(subscription("late", created_ms=ACCEPTED + 4), ACCEPTED + 5, 2)
    control.add(SubscriptionEnded("there", "unsubscribed", ACCEPTED + 6), ACCEPTED + 6, 3)
    first_push = attempt("there", 1, "delivered", ACCEPTED + 50, batch=7)
    matched = MatchedBy(ACCEPTED + 8, batch=7, control=2, subscriptions=1)
    story = explain(evidence(control, first_push, evaluated=matched))

    assert [(each.subscription, each.outcome) for each in story.deliveries] == [("there", "delivered")]
    assert (story.steps[-1].what, story.steps[-1].detail) == ("matched by the dispatch", "batch 7, for 1 subscription")
    assert story.steps[-1].at == datetime(1970, 1, 1, 0, 1, 40, 8_000, UTC)
    late = only(evidence(control, first_push, evaluated=matched), "late")
    assert late.why == "the subscription was made later, at 1970-01-01 00:01:40 UTC"
    # With the batch after that it is the other way round.
    next_batch = MatchedBy(ACCEPTED + 8, batch=8, control=4, subscriptions=1)
    after = explain(evidence(control, evaluated=next_batch))
    assert [(each.subscription, each.outcome) for each in after.deliveries] == [("late", "pending")]
    assert "had ended before" in only(evidence(control, evaluated=next_batch), "there").why


@pytest.mark.parametrize(
    ("created", "ended", "why"),
    [
        (50_000, 90_000, "the subscription had ended before, at 1970-01-01 00:01:30 UTC (unsubscribed)"),
        (150_000, 200_000, "the subscription was made later, at 1970-01-01 00:02:30 UTC"),
        (50_000, 200_000, "the subscription was there; what became of the notification is not recorded (any more)"),
    ],
)
def test_subscription_that_only_the_table_remembers(created: int, ended: int, why: str) -> None:
    row = {
        "created_at": datetime.fromtimestamp(created / 1000, UTC),
        "ended_at": datetime.fromtimestamp(ended / 1000, UTC),
        "reason": "unsubscribed",
        "expression": "a//.",
        "endpoint": "http://s/",
    }
    delivery = only(evidence(history(), forgotten={"s": row}), "s")

    assert (delivery.outcome, delivery.why) == ("no match", why)
    assert (delivery.expression, delivery.endpoint) == ("a//.", "http://s/")


def test_pull_points_are_not_said_to_have_been_pushed_to() -> None:
    delivery = only(evidence(history(subscription("s", pull_point="p")), attempt("s", 1, "delivered", ACCEPTED + 5)))
    assert (delivery.outcome, delivery.why) == ("delivered", "stored in the pull point of the subscription")


def test_what_waits_for_an_endpoint_that_is_away_says_since_when() -> None:
    parked = attempt("s", 0, "parked", ACCEPTED + 50, error="waiting", detail="earlier ones wait")
    health = {"endpoint": "http://s/", "breaker": "open", "at": datetime(1970, 1, 1, tzinfo=UTC)}
    assert told(parked, endpoints={"http://s/": health}).why == (
        "queued after earlier messages; the breaker of its endpoint is open since 1970-01-01 00:00:00 UTC: "
        "earlier ones wait"
    )
    well = {"http://s/": {**health, "breaker": "closed"}}
    assert told(parked, endpoints=well).why == "queued after earlier messages: earlier ones wait"


def test_what_is_stamped_is_judged_by_the_subscriptions_of_its_acceptance_whenever_it_was_matched() -> None:
    changes: list[ControlRecord] = [
        subscription("renewed", terminates_ms=ACCEPTED + 1),
        subscription("revived", terminates_ms=ACCEPTED),
        subscription("paused", pull_point="p"),
        subscription("resumed", pull_point="p", paused=True),
        subscription("ended"),
        subscription("over"),
        SubscriptionEnded("over", "unsubscribed", 1_000),
    ]
    at = len(changes)
    changes += [
        subscription("renewed", terminates_ms=ACCEPTED + 3_600_000),
        subscription("revived"),
        subscription("paused", pull_point="p", paused=True),
        subscription("resumed", pull_point="p"),
        SubscriptionEnded("ended", "unsubscribed", ACCEPTED + 1_000),
        subscription("elsewhere", created_ms=ACCEPTED - 1),
        subscription("late", created_ms=ACCEPTED),
    ]
    control = ControlHistory()
    for offset, record in enumerate(changes):
        control.add(record, ACCEPTED + 1_000 if offset >= at else 1_000, offset)
    matched = MatchedBy(ACCEPTED + 60_000, batch=7, control=len(changes), subscriptions=4)
    found = evidence(control, stamp=at, evaluated=matched)
    assert {each.subscription: (each.outcome, each.why) for each in explain(found).deliveries} == {
        "renewed": ("pending", PENDING),
        "revived": ("skipped", "the subscription's time was over at 1970-01-01 00:01:40 UTC"),
        "paused": ("pending", PENDING),
        "resumed": ("skipped", PAUSED),
        "ended": (
            "pending",
            "the subscription has ended since, at 1970-01-01 00:01:41 UTC (unsubscribed), so it will be cancelled",
        ),
        "elsewhere": ("pending", PENDING),
    }
    assert only(found, "late").why == "the subscription was made later, at 1970-01-01 00:01:41 UTC"
    assert only(found, "over").outcome == "no match"


def test_what_was_left_out_for_a_minimum_interval_names_what_went_instead() -> None:
    control = history(subscription("s", policy=DeliveryPolicy(interval_ms=1_500)))
    left_out: dict[str, Any] = {"evaluated": MatchedBy(ACCEPTED + 5, 7, 9, 0, 1)}
    named = only(evidence(control, instead={"s": "n0"}, **left_out))
    assert named.outcome == "skipped"
    assert named.why == "omitted: its minimum interval for this topic is 1.5 s, and n0 was delivered instead"
    assert only(evidence(control, **left_out)).why.endswith("and another one was delivered instead"), (
        "the log has forgotten it"
    )
    for matched in (MatchedBy(ACCEPTED + 5, 7, 9, 1), MatchedBy(ACCEPTED + 5, 7, 9, 1, 1, ("s",))):
        assert only(evidence(control, evaluated=matched)).outcome == "pending"


TRIGGER = Trigger("hot", TopicPath("alarms"), "<alarm/>")


def trigger(name: str = "t", of: Trigger = TRIGGER) -> TriggerRecord:
    made = subscription(name).subscription
    return TriggerRecord(msgspec.structs.replace(made, consumer=EndpointReference(of.endpoint), trigger=of))


def test_what_a_trigger_has_published_leads_to_its_cause_and_the_cause_to_it() -> None:
    control = history(trigger(), trigger("u", Trigger("as-it-is", TopicPath("copies"))))
    rows = [
        attempt(each, 1, "delivered", ACCEPTED + 5, detail=f"published as id-{each}", batch=7) for each in ("t", "u")
    ]
    fixed, same = explain(evidence(control, *rows)).deliveries
    assert (fixed.endpoint, fixed.outcome, fixed.expression) == ("trigger:hot", "delivered", "a//.")
    assert fixed.why == "the trigger published its payload on alarms as id-t"
    assert same.why == "the trigger published the same payload on copies as id-u"
    assert [(step.what, step.detail) for step in fixed.steps] == [("stored", "published as id-t")]

    made = Notification("id-t", TopicPath("alarms"), b"<alarm/>", ACCEPTED, publisher="trigger:hot", cause="n", hops=1)
    story = explain(Evidence("id-t", made, history()))
    assert story.cause == "n"
    assert (story.steps[0].what, story.steps[0].detail) == (
        "published by a trigger",
        "from trigger:hot, caused by n, 1 in a row",
    )
    assert any("cause" in str(line) and str(line).endswith(" n") for line in format_story(story))


def test_why_a_trigger_has_published_nothing() -> None:
    control = history(trigger())
    refused = attempt("t", 0, "cancelled", ACCEPTED + 5, error="hops", detail="8 triggers in a row have come to this")
    assert only(evidence(control, refused)).why == "8 triggers in a row have come to this"
    control.add(TriggerEnded("t", "removed", 9_000), ACCEPTED + 500, 9)
    control.add(Tombstone("trigger:t"), ACCEPTED + 500, 10)
    ended = attempt("t", 0, "cancelled", ACCEPTED + 600, error="ended", detail="it ended before this was matched")
    assert only(evidence(control, ended)).why.startswith("the subscription has ended")
    assert only(evidence(control), "t").outcome == "pending"
    gone = history((ACCEPTED - 5, TriggerEnded("t", "removed", 9_000)))
    assert "had ended before" in only(evidence(gone), "t").why


@pytest.mark.parametrize(
    ("datagrams", "message", "why"),
    [
        ("", {"path": ("G/c",)}, "not for G/b: it came over G/c"),
        ("", {"distribution": "local"}, "not for G/b: it is of this engine, and its routing says local"),
        ("without", {"fast": True}, "not over this link: it goes to G/b as a datagram"),
        ("only", {"fast": False}, "not over this link: it goes to G/b confirmed, not as a datagram"),
    ],
)
def test_what_does_not_go_over_a_link_says_why(datagrams: Datagrams, message: dict[str, Any], why: str) -> None:
    found = evidence(history(subscription("peer-b", form="peer", peer=Peer("G/a", "G/b", datagrams))))
    assert found.notification is not None
    found = dataclasses.replace(found, notification=msgspec.structs.replace(found.notification, **message))
    story = explain(found)
    assert story.steps[0].detail == ("by way of G/c" if "path" in message else "")
    (delivery,) = story.deliveries
    assert (delivery.outcome, delivery.why) == ("skipped", why)


def test_subscriptions_that_were_given_it_may_be_named_in_several_records() -> None:
    names = tuple(f"s{number}" for number in range(5_000))
    matched = [Matched("n0", TopicPath("a"), 1, 4, 1, ("other",)), Matched("n1", TopicPath("a"), 1, 5, 5_000, names, 2)]
    evaluated = None
    for value in attempts.encode_evaluation(Evaluation(0, 7, 9, matched)):
        evaluated = _evaluated_in(cast(Any, SimpleNamespace(value=value, timestamp=3)), "n1", evaluated)
    assert evaluated == MatchedBy(3, 7, 9, 5_000, 2, names)
