from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from arborcast.cli.trace import format_explanation
from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Evaluation, Matched, State
from arborcast.dispatch.operations.trace.evidence import (
    ControlHistory,
    DeliveryExplanation,
    Evidence,
    MatchedBy,
    Row,
    Step,
    utc,
)
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import _evaluated_in, in_pull_points
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
from arborcast.topic_model.records.notifications import Notification, made_at
from arborcast.topic_model.records.pull import ERASED, Claimed, PullRecord, Returned, Settled, StoredMessage, encode
from arborcast.topic_model.subscriptions import Datagrams, DeliveryPolicy, EndpointReference, Peer, Trigger, XPathFilter
from arborcast.topic_model.topics import TopicPath
from tests.support import make, table_rows
from tests.support.listed_logs import Listed

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


def attempt(name: str, number: int, state: State, started: int, **more: Any) -> Row:
    more = {"push": "p" if number else "", "accepted_ms": ACCEPTED, "duration_ms": 20.0, "status": 0, **more}
    made = table_rows.attempt("n", name, state, number=number, started_ms=started, **more)
    row: Row = rows_of([attempts.encode(made)]).to_pylist()[0]
    return row


def evidence(
    control: ControlHistory, *rows: Row, message: Mapping[str, Any] = MappingProxyType({}), **more: Any
) -> Evidence:
    made = make.notification("n", payload=b"<x><level>3</level></x>", accepted_ms=ACCEPTED, **message)
    values = {"logged_ms": ACCEPTED + 2, "partition": 1, "offset": 9, **more}
    return Evidence("n", made, control, attempts=rows, **values)


def of(*records: ControlRecord | tuple[int, ControlRecord], rows: Sequence[Row] = (), **more: Any) -> Evidence:
    """The evidence of a delivery to one subscription with these records."""
    return evidence(history(*(records or (subscription(),))), *rows, **more)


def only(found: Evidence, name: str | None = None) -> DeliveryExplanation:
    (delivery,) = explain(found, name).deliveries
    return delivery


def row(number: int, state: State, error: str = "", detail: str = "", at: int = ACCEPTED, **more: Any) -> Row:
    return attempt("s", number, state, at, error=error, detail=detail, **{"next_ms": 3_600_000 * number, **more})


def test_later_results_follow_their_attempts() -> None:
    taken = "later", "HTTP 202: its receiver reports the result later"
    facts: dict[str, Any] = {"push": "", "batch": -1}
    rows = [
        row(1, "parked", *taken, ACCEPTED + 50, status=202, batch=7, next_ms=110_000),
        row(1, "parked", "reported", "no paper", 105_000, next_ms=106_000, **facts),
        row(2, "parked", *taken, 106_000, status=202, batch=-1, next_ms=116_000),
        row(2, "parked", "no-result", "silence", 116_000, next_ms=120_000, **facts),
        row(3, "parked", *taken, 120_000, status=202, batch=-1, next_ms=130_000),
        row(3, "delivered", "", "its receiver reported this after 5.0 s: printed", 125_000, **facts),
    ]
    assert only(of(rows=rows[:1])).why == (
        "its receiver accepted it and reports the result by 1970-01-01 00:01:50 UTC; otherwise it is tried again"
    )
    done = only(of(rows=rows))
    assert (done.outcome, done.why) == ("delivered", "delivered on attempt 3: reported this after 5.0 s: printed")
    assert [(step.what, step.detail) for step in done.steps][1::2] == [
        ("failed, as reported by its receiver", "no paper"),
        ("no result in time", "silence"),
        ("done, as reported by its receiver", "its receiver reported this after 5.0 s: printed"),
    ]


@pytest.mark.parametrize(
    ("logged_ms", "matched_ms", "pushed_ms", "shown_ms"),
    [
        (2, 10, 20, [0, 2, 10]),
        # Recorded by another clock while the first pushes were in flight.
        (2, 370, 364, [0, 2, 364]),
        (400, 370, 364, [0, 364, 364]),
        (-5, 10, -3, [0, 0, 0]),
    ],
)
def test_steps_are_in_causal_order_with_monotonic_times(
    logged_ms: int, matched_ms: int, pushed_ms: int, shown_ms: list[int]
) -> None:
    rows = [attempt("s", 1, "delivered", ACCEPTED + pushed_ms, batch=7), attempt("t", 1, "delivered", 200_000, batch=7)]
    matched = MatchedBy(ACCEPTED + matched_ms, 7, 5, 2)
    found = evidence(history(subscription("s")), *rows, logged_ms=ACCEPTED + logged_ms, evaluated=matched)
    steps = explain(found).steps
    assert [step.what for step in steps] == ["accepted by the gateway", "stored in the log", "matched by the dispatch"]
    assert [round(step.at.timestamp() * 1000) - ACCEPTED for step in steps if step.at] == shown_ms


PENDING = "to be pushed; no outcome is recorded yet"
PAUSED = "the subscription was paused then, and for pull points nothing is stored meanwhile"
OVER = "the subscription had ended before, at 1970-01-01 00:00:50 UTC (unsubscribed)"


def condition(text: str) -> tuple[XPathFilter]:
    return (XPathFilter(XPATH_1, text),)


def forgotten(created: int, ended: int) -> Evidence:
    """The subscription is in the table only."""
    times = {"created_at": utc(created), "ended_at": utc(ended)}
    subscribed = {**times, "reason": "unsubscribed", "expression": "a//.", "endpoint": "http://s/"}
    return evidence(history(), forgotten={"s": subscribed})


def peer(datagrams: Datagrams = "", **message: Any) -> Evidence:
    return of(subscription("s", form="peer", peer=Peer("G/a", "G/b", datagrams)), message=message)


def trigger(name: str = "s", of: Trigger = Trigger("hot", TopicPath("alarms"), "<alarm/>")) -> TriggerRecord:  # noqa: B008
    made = subscription(name).subscription
    return TriggerRecord(msgspec.structs.replace(made, consumer=EndpointReference(of.endpoint), trigger=of))


def health(breaker: str) -> dict[str, dict[str, object]]:
    return {"http://s/": {"endpoint": "http://s/", "breaker": breaker, "at": utc(0)}}


ASIDE = row(0, "parked", "waiting", "put aside", ACCEPTED + 50, next_ms=3_600_000)
BEHIND = row(0, "parked", "waiting", "earlier ones wait", ACCEPTED + 50)
PAUSED_NOW = (200_000, subscription("s", paused=True))
SUSPENDED_NOW = (200_000, SubscriptionSuspended("s", "it answers nothing", 1, 200_000))
NEXT = "next attempt at 1970-01-01 01:00:00 UTC: put aside"
UNSUBSCRIBED = SubscriptionEnded("s", "unsubscribed", 50_000)
AT_MOST = subscription("s", policy=DeliveryPolicy(interval_ms=1_500))
TRIGGER_ENDED = [(ACCEPTED + 500, each) for each in (TriggerEnded("s", "removed", 9_000), Tombstone("trigger:s"))]


# By outcome: from the last row and the obstacle of a parked delivery; without a row from the subscription, the progress
# of the dispatch, and omissions for an interval, a link or a trigger.
WHY: dict[str, list[tuple[Evidence, str]]] = {
    "waiting": [
        (of(rows=[row(1, "parked", "connect", "refused")]), "next attempt at 1970-01-01 01:00:00 UTC: refused"),
        (of(rows=[row(1, "parked", "connect", "refused")], now=utc(7_200_000)), "next attempt due: refused"),
        (of(rows=[row(0, "parked", "waiting", "x")]), "queued after earlier messages: x"),
        (of(rows=[ASIDE]), NEXT),
        (of(subscription(), PAUSED_NOW, rows=[ASIDE]), "held: the subscription is paused: put aside"),
        (of(subscription(), PAUSED_NOW, (300_000, subscription()), rows=[ASIDE]), NEXT),
        (
            of(subscription(), SUSPENDED_NOW, rows=[ASIDE]),
            "held: the subscription is suspended since 1970-01-01 00:03:20 UTC (it answers nothing): put aside",
        ),
        (of(subscription(), SUSPENDED_NOW, (300_000, Tombstone("susp:s")), rows=[ASIDE]), NEXT),
        (
            of(subscription(), (200_000, UNSUBSCRIBED), rows=[ASIDE]),
            "the subscription has ended since, at ...00:03:20 UTC (unsubscribed)...",
        ),
        (
            of(rows=[BEHIND], endpoints=health("open")),
            "queued after earlier messages; the breaker of its endpoint is open since 1970-01-01 00:00:00 UTC: "
            "earlier ones wait",
        ),
        (of(rows=[BEHIND], endpoints=health("closed")), "queued after earlier messages: earlier ones wait"),
    ],
    "dead": [
        (of(rows=[row(5, "dead", "server-error", "x")]), "failed after 5 attempts, kept as a dead letter: x"),
        (of(rows=[row(1, "dead", "address", "x")]), "not permitted, kept as a dead letter: x"),
    ],
    "expired": [(of(rows=[row(2, "expired", "lifespan")]), "expired: lifespan")],
    "cancelled": [
        (of(rows=[row(0, "cancelled", "ended")]), "the subscription has ended: ended"),
        (of(trigger(), rows=[row(0, "cancelled", "hops", "8 in a row")]), "8 in a row"),
        (of(trigger(), *TRIGGER_ENDED, rows=[row(0, "cancelled", "ended", "x")]), "the subscription has ended..."),
    ],
    "dropped": [
        (
            of(rows=[row(1, "dropped", "timely", "no answer")]),
            "dropped, the subscription is timely and was not ready: no answer",
        ),
        (of(rows=[row(0, "dropped", "resources", "x")]), "dropped, backlog limit: x"),
    ],
    "delivered": [
        (of(rows=[row(1, "parked", "server-error"), row(2, "delivered", at=110_001)]), "delivered on attempt 2"),
        # The clock was put back between the attempts.
        (
            of(rows=[row(1, "parked", "server-error", at=110_001), row(2, "delivered", at=106_501)]),
            "delivered on attempt 2",
        ),
        (of(subscription(pull_point="p"), rows=[row(1, "delivered")]), "stored in the pull point of the subscription"),
    ],
    "skipped": [
        (of(subscription(paused=True, pull_point="p")), PAUSED),
        (of(subscription(terminates_ms=99_000)), "the subscription's time was over at 1970-01-01 00:01:39 UTC"),
        (of(subscription(content=condition("//level > 5"))), "filtered: the payload does not fulfil //level > 5"),
        (
            of(subscription(types=("{urn:plant}alarm", "reading"))),
            "filtered: it is of the type x, and wanted are {urn:plant}alarm reading",
        ),
        (
            of(subscription(producer=condition("boolean(//none)"))),
            "filtered: the producer's properties do not fulfil boolean(//none)",
        ),
        (
            of(AT_MOST, instead={"s": "n0"}, evaluated=MatchedBy(ACCEPTED + 5, 7, 9, 0, 1)),
            "omitted: its minimum interval for this topic is 1.5 s, and n0 was delivered instead",
        ),
        (of(AT_MOST, evaluated=MatchedBy(ACCEPTED + 5, 7, 9, 0, 1)), "...and another one was delivered instead"),
        (peer(path=("G/c",)), "not for G/b: received over G/c"),
        (peer(distribution="local"), "not for G/b: published at this engine, with the routing local"),
        (peer("without", fast=True), "not over this link: it goes to G/b as a datagram"),
        (peer("only", fast=False), "not over this link: it goes to G/b confirmed, not as a datagram"),
    ],
    "pending": [
        (of(subscription(paused=True)), PENDING),
        (of(subscription(content=condition("//level > 2"))), PENDING),
        (of(progress="waits"), "...not processed yet..."),
        (of(progress="matched"), "...no outcome is recorded yet..."),
        (of(progress="settled"), "...settled; its outcome is not recorded..."),
        (of(AT_MOST, evaluated=MatchedBy(ACCEPTED + 5, 7, 9, 1)), PENDING),
        (of(AT_MOST, evaluated=MatchedBy(ACCEPTED + 5, 7, 9, 1, 1, ("s",))), PENDING),
        (of(trigger(), *TRIGGER_ENDED), "..."),
    ],
    "no match": [
        (of(subscription(topic="a/c")), "a/c doesn't match a/b; a/b would, and so would a//."),
        (of(subscription(topic="A//.")), "A//. doesn't match a/b: A//. has another namespace or spelling"),
        (of((200_000, subscription(created_ms=200_000))), "the subscription was created later, at ...00:03:20 UTC"),
        (of(subscription("other")), "there is no such subscription, and there was none lately"),
        (of(subscription(), (50_000, UNSUBSCRIBED), (60_000, Tombstone("sub:s"))), OVER),
        (forgotten(40_000, 50_000), OVER),
        (forgotten(150_000, 200_000), "the subscription was created later, at 1970-01-01 00:02:30 UTC"),
        (
            forgotten(50_000, 200_000),
            "the subscription existed; the outcome of the notification is not, or no longer, recorded",
        ),
        (of((ACCEPTED - 5, TriggerEnded("s", "removed", 9_000))), "...had ended before..."),
    ],
}


@pytest.mark.parametrize(("outcome", "found", "why"), [(outcome, *each) for outcome in WHY for each in WHY[outcome]])
def test_reasons_of_outcomes(outcome: str, found: Evidence, why: str) -> None:
    delivery = only(found, "s")
    assert delivery.outcome == outcome
    assert re.fullmatch(re.escape(why).replace(r"\.\.\.", ".*"), delivery.why)


def test_stories_without_the_notification() -> None:
    assert not explain(Evidence("n", None, history(subscription("s")))).found
    explanation = explain(Evidence("n", None, history(), attempts=[row(1, "delivered")]))
    assert (explanation.found, explanation.topic) == (True, "a/b")
    found = [(each.subscription, each.endpoint, each.outcome) for each in explanation.deliveries]
    assert found == [("s", "http://s/", "delivered")]
    from_table = only(forgotten(1, 2), "s")
    assert (from_table.expression, from_table.endpoint) == ("a//.", "http://s/")
    assert explain(of(progress="waits")).steps[-1].what == "waits for the dispatch"
    assert explain(of(progress="matched")).steps[-1].what == "taken by the dispatch"
    taken = explain(of(rows=[row(1, "parked", batch=7), row(2, "delivered", batch=-1)])).steps[-1]
    assert (taken.what, taken.detail) == ("taken by the dispatch", "batch 7")
    assert explain(peer(path=("G/c",))).steps[0].detail == "by way of G/c"


def test_current_message_is_for_one_subscription_alone() -> None:
    found = of(subscription("new"), subscription("old"), message={"only": "new"})
    outcomes = {each.subscription: each.outcome for each in explain(found).deliveries}
    assert outcomes == {"new": "pending", "old": "skipped"}


def test_ids_contain_their_time() -> None:
    assert made_at("018bcfe5687b7000b000000000000000") == 0x018BCFE5687B
    strange = "n1", "018bcfe5687b4000b000000000000000", "zzzzzzzzzzzz7000b000000000000000"
    assert list(map(made_at, strange)) == [0, 0, 0]


def test_a_batch_matches_by_the_control_records_it_has_read() -> None:
    """Between the batch's read of the control log and its first push subscriptions were added and ended: the times
    alone would give other recipients."""
    control = ControlHistory()
    control.add(TopicRecord(TopicPath("a/b")), 1_000, 0)
    control.add(subscription("there"), 1_000, 1)
    control.add(subscription("late", created_ms=ACCEPTED + 4), ACCEPTED + 5, 2)
    control.add(SubscriptionEnded("there", "unsubscribed", ACCEPTED + 6), ACCEPTED + 6, 3)
    first_push = attempt("there", 1, "delivered", ACCEPTED + 50, batch=7)
    matched = MatchedBy(ACCEPTED + 8, batch=7, control=2, subscriptions=1)
    explanation = explain(evidence(control, first_push, evaluated=matched))

    assert [(each.subscription, each.outcome) for each in explanation.deliveries] == [("there", "delivered")]
    assert (explanation.steps[-1].what, explanation.steps[-1].detail) == (
        "matched by the dispatch",
        "batch 7, for 1 subscription",
    )
    assert explanation.steps[-1].at == utc(ACCEPTED + 8)
    late = only(evidence(control, first_push, evaluated=matched), "late")
    assert late.why == "the subscription was created later, at 1970-01-01 00:01:40 UTC"
    # The next batch has the opposite recipients.
    next_batch = MatchedBy(ACCEPTED + 8, batch=8, control=4, subscriptions=1)
    after = explain(evidence(control, evaluated=next_batch))
    assert [(each.subscription, each.outcome) for each in after.deliveries] == [("late", "pending")]
    assert "had ended before" in only(evidence(control, evaluated=next_batch), "there").why


def test_recipients_of_a_message_with_a_control_position() -> None:
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
    found = evidence(control, message={"control": at}, evaluated=matched)
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
    assert only(found, "late").why == "the subscription was created later, at 1970-01-01 00:01:41 UTC"
    assert only(found, "over").outcome == "no match"


def test_links_between_a_triggered_notification_and_its_cause() -> None:
    control = history(trigger("t"), trigger("u", Trigger("as-it-is", TopicPath("copies"))))
    rows = [
        attempt(each, 1, "delivered", ACCEPTED + 5, detail=f"published as id-{each}", batch=7) for each in ("t", "u")
    ]
    fixed, same = explain(evidence(control, *rows)).deliveries
    assert (fixed.endpoint, fixed.outcome, fixed.expression) == ("trigger:hot", "delivered", "a//.")
    assert fixed.why == "the trigger published its payload on alarms as id-t"
    assert same.why == "the trigger published the same payload on copies as id-u"
    assert [(step.what, step.detail) for step in fixed.steps] == [("stored", "published as id-t")]

    made = Notification("id-t", TopicPath("alarms"), b"<alarm/>", ACCEPTED, publisher="trigger:hot", cause="n", hops=1)
    explanation = explain(Evidence("id-t", made, history()))
    assert explanation.cause == "n"
    assert (explanation.steps[0].what, explanation.steps[0].detail) == (
        "published by a trigger",
        "from trigger:hot, caused by n, 1 in a row",
    )
    assert any("cause" in str(line) and str(line).endswith(" n") for line in format_explanation(explanation))


def test_subscriptions_may_be_named_in_several_records() -> None:
    names = tuple(f"s{number}" for number in range(5_000))
    matched = [Matched("n0", TopicPath("a"), 1, 4, 1, ("other",)), Matched("n1", TopicPath("a"), 1, 5, 5_000, names, 2)]
    evaluated = None
    for value in attempts.encode_evaluation(Evaluation(0, 7, 9, matched)):
        evaluated = _evaluated_in(cast(Any, SimpleNamespace(value=value, timestamp=3)), "n1", evaluated)
    assert evaluated == MatchedBy(3, 7, 9, 5_000, 2, names)


WAITS = Step(None, "not fetched yet")
MINE = StoredMessage(b"<m/>", "n", "s", ACCEPTED)
OTHER = StoredMessage(b"<m/>", "n2", "s", ACCEPTED)
EXPIRED = StoredMessage(b"<m/>", "n", "s", ACCEPTED, valid_until_ms=1_001)


def log(*records: PullRecord, point: str = "p") -> list[ConsumerRecord]:
    """The records, with offsets from 0 and times from 1,000."""
    made = (encode(point, each) for each in records)
    return [cast(Any, Listed(*each, offset, 1_000 + offset)) for offset, each in enumerate(made)]


@pytest.mark.parametrize(
    ("records", "step"),
    [
        ((OTHER, MINE, Claimed("c", 0, 0, 9), Settled("c")), WAITS),
        ((MINE, OTHER, Claimed("c", 1, 1, 9)), Step(None, "dropped there: the pull point was full")),
        ((MINE, OTHER, Claimed(ERASED + "c", 1, 1, 9), Settled(ERASED + "c")), WAITS),
        ((MINE, OTHER, Claimed("c", 1, 1, 9), Claimed("d", 0, 0, 9), Settled("d")), Step(utc(1_004), "fetched")),
        ((MINE, Claimed("c", 0, 0, 9)), Step(utc(1_001), "handed out, not confirmed yet")),
        ((MINE, Claimed("c", 0, 0, 9), Settled("c")), Step(utc(1_002), "fetched")),
        ((MINE, Claimed("c", 0, 0, 9), Returned("c")), WAITS),
        ((MINE, OTHER, Claimed("c", 0, 1, 9), Returned("c", (0,))), Step(utc(1_003), "fetched")),
        (
            (MINE, Claimed("c", 0, 0, 9), Returned("c"), Claimed("d", 0, 5, 9), Settled("d")),
            Step(utc(1_004), "fetched"),
        ),
        ((MINE, Claimed(ERASED + "c", 0, 0, 9), Settled(ERASED + "c")), Step(utc(1_002), "erased")),
        ((EXPIRED, Claimed("c", 0, 0, 9), Settled("c")), Step(utc(1_002), "expired there")),
    ],
)
def test_the_fetch_of_a_message_from_claims_of_its_pull_point(records: tuple[PullRecord, ...], step: Step) -> None:
    assert in_pull_points(log(*records), "n", until_ms=60_000) == {"s": step}
    others = log(OTHER, Claimed("c", 0, 9, 9), Settled("c"), point="other")
    damaged: Any = Listed(b"p", b"\xc1", 9, 1_000)
    assert in_pull_points([*log(MINE), damaged, *others], "n", until_ms=60_000) == {"s": WAITS}


def test_the_log_is_read_no_further_than_needed() -> None:
    def records() -> Iterator[ConsumerRecord]:
        yield from log(*stored, *[OTHER] * 5)
        raise AssertionError("read to the end")

    stored: tuple[PullRecord, ...] = ()
    assert in_pull_points(records(), "n", until_ms=1_002) == {}
    stored = (MINE, Claimed("c", 0, 0, 9), Settled("c"))
    assert in_pull_points(records(), "n", until_ms=1_002) == {"s": Step(utc(1_002), "fetched")}


def test_the_fetch_is_a_step_of_the_explanation() -> None:
    fetched = Step(utc(200_000), "fetched")
    for step in (fetched, WAITS):
        explanation = only(of(subscription(pull_point="p"), rows=[row(1, "delivered")], pulled={"s": step}))
        assert explanation.steps[1:] == [dataclasses.replace(step, where="http://s/")]
        assert explanation.why == f"stored in the pull point of the subscription; {step.what}"
