"""Publications of triggers: ids that depend on the cause alone, bounded chains."""

from __future__ import annotations

import uuid
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import intake
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.hot.triggers import OwnerRates, Refused, derived_id, published
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.settings import RetrySettings, TopicRules
from arborcast.ingest.addresses import NotificationIds
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import MAX_HOPS, MAX_TRIGGERED, Notification, made_at
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription, TriggerTarget
from arborcast.topic_model.topics import SYSTEM, TopicPath
from tests.support.fake_producer import FakeProducer, connecting
from tests.support.hot import intake_of, outcomes_in
from tests.support.routing import make_trigger

NOW_MS = 5_000_000
RULES = TopicRules()
HERE = TriggerTarget(priority=7)


def trigger(
    name: str = "t", to: str = "to", payload: str = "<y/>", target: TriggerTarget | None = HERE
) -> Subscription:
    made = make_trigger(name, "on", to, payload)
    assert made.trigger is not None
    return msgspec.structs.replace(made, trigger=msgspec.structs.replace(made.trigger, target=target))


def cause(**facts: Any) -> Notification:
    return Notification(**({"id": NotificationIds().next(), "topic": TopicPath("on"), "payload": b"<x/>"} | facts))


def result(of: Subscription, by: Notification, rules: TopicRules = RULES) -> Notification | Refused:
    assert of.trigger is not None
    return published(of.id, of.trigger, by, 9, NOW_MS, rules)


def made(of: Subscription, by: Notification, rules: TopicRules = RULES) -> Notification:
    found = result(of, by, rules)
    assert isinstance(found, Notification), found
    return found


TYPED = trigger(payload="", target=TriggerTarget(types=("{urn:t}other",)))

causes = st.builds(
    lambda name, accepted_ms: cause(id=name, accepted_ms=accepted_ms),
    st.one_of(
        st.integers(0, 50).map([NotificationIds().next() for _ in range(51)].__getitem__),
        st.text(max_size=40),
        st.uuids(version=4).map(lambda each: each.hex),
    ),
    st.integers(0, 1 << 45),
)


@given(causes, st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30), st.integers(0, 1 << 45))
def test_the_id_depends_on_trigger_and_cause_alone(by: Notification, one: str, other: str, later_ms: int) -> None:
    found = derived_id(one, by)
    assert found == derived_id(one, msgspec.structs.replace(by, control=3, payload=b"<z/>"))
    assert (found == derived_id(other, by)) == (one == other)
    assert found != by.id
    read = uuid.UUID(found)
    assert (len(found), read.version, read.variant) == (32, 7, uuid.RFC_4122)
    assert made_at(found) == (made_at(by.id) or by.accepted_ms)


def test_fields_of_a_published_notification() -> None:
    by = cause(
        accepted_ms=4_000, producer=b"<p/>", subject=b"<s/>", valid_until_ms=9_000, traceparent="00-1", priority=3
    )
    fixed, same = made(trigger(), by), made(trigger(payload=""), by)
    assert (fixed.topic, fixed.payload, fixed.type) == ("to", b"<y/>", "x")
    assert (same.topic, same.payload, same.type) == ("to", b"<x/>", "x")
    assert (fixed.producer, fixed.subject, fixed.valid_until_ms) == (b"", b"", 0)
    assert (same.producer, same.subject, same.valid_until_ms) == (b"<p/>", b"<s/>", 9_000)
    for each in (fixed, same):
        assert (each.cause, each.hops, each.publisher) == (by.id, 1, "trigger:t")
        assert (each.control, each.accepted_ms, each.priority, each.reliable) == (9, NOW_MS, 7, False)
        assert (each.traceparent, each.only, each.replay, each.request) == ("00-1", "", "", b"")
        assert notifications.decode(notifications.encode(each)[1]) == each
    assert made(trigger(target=TriggerTarget(reliable=True)), by).reliable
    assert made(trigger(payload=""), cause(accepted_ms=1, reliable=True)).reliable
    assert made(trigger(), cause(accepted_ms=2 * NOW_MS)).accepted_ms == 2 * NOW_MS, "not before its cause"


def test_one_notification_triggers_at_most_a_thousand() -> None:
    """24 on one topic, 54 on the next: 1,296 without a budget."""
    many, more = (Setup(*(trigger(f"{of}{number}") for number in range(count))) for of, count in (("a", 24), ("b", 54)))
    many.run(cause(accepted_ms=1))
    many.kafka.take()
    first = many.published()
    more.run(*first)
    more.kafka.take(5_000)
    second = more.published()
    assert (len(first), len(second)) == (24, MAX_TRIGGERED - 24)
    assert {each.triggers_left for each in second} == {0}
    refused = [row for row in more.rows() if row[2] == "cancelled"]
    assert len(refused) == 24 * 54 - len(second)
    assert {row[3] for row in refused} == {"hops"}
    last = Setup(trigger("c"))
    last.run(second[0])
    assert last.rows()[0][2:] == ("cancelled", "hops")


@pytest.mark.parametrize(
    ("of", "by", "strict", "error", "detail"),
    [
        (trigger(), {"hops": MAX_HOPS}, False, "hops", ""),
        (trigger(), {"hops": MAX_HOPS - 1}, False, "", ""),
        (trigger(to=f"{SYSTEM}/breaker/closed"), {}, False, "skipped", "only the engine"),
        (trigger(target=None), {}, False, "skipped", "there is no topic to"),
        (TYPED, {}, True, "skipped", ""),
        (TYPED, {}, False, "", ""),  # types are not required
        (TYPED, {"type": "{urn:t}other"}, True, "", ""),
    ],
    ids=["hops", "last hop", "system", "no topic", "type", "any type", "its type"],
)
def test_refused_publications_of_triggers(
    of: Subscription, by: dict[str, Any], strict: bool, error: str, detail: str
) -> None:
    found = result(of, cause(accepted_ms=1, **by), TopicRules(check_types=strict))
    assert (found.error if isinstance(found, Refused) else "") == error
    assert not isinstance(found, Refused) or detail in found.detail
    assert isinstance(found, Refused) or found.hops == by.get("hops", 0) + 1


def test_the_rate_of_an_owner_bounds_its_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_rates", OwnerRates())
    owned = [msgspec.structs.replace(trigger(name), owner=name[0]) for name in ("a1", "a2", "b1")]
    setup = Setup(*owned, rules=TopicRules(per_minute=3))
    setup.run(cause(id="n1", accepted_ms=1), cause(id="n2", accepted_ms=2))
    setup.kafka.take()
    refused = [row[:2] for row in setup.rows() if row[2:] == ("cancelled", "skipped")]
    assert refused == [("n2", "a2")], "four of owner a exceed the rate, two of owner b do not"
    rates = OwnerRates()
    assert [rates.may_publish("a", 2, now) for now in (0, 0, 0, 29, 31, 32, 600, 600, 600)] == [
        *(True, True, False, False, True, False, True, True, False)
    ]


class Rows(list[Attempt]):
    """Replaces the log of attempts of a worker's journal; records the rows."""

    add = list.append

    def write_due(self) -> None:
        """All rows are in the log."""

    def is_behind(self, seconds: float) -> bool:
        return False


class Setup:
    """An intake with triggers, which can be repeated, and a fake Kafka."""

    def __init__(
        self, *triggers: Subscription, settings: KafkaSettings | None = None, rules: TopicRules = RULES
    ) -> None:
        self.kafka = FakeProducer(partitions=3)
        self.written = Rows()
        self.journal = SinkJournal(settings or KafkaSettings(), 1.0, connecting(self.kafka))
        self.journal._attempts = self.written  # type: ignore[assignment]  # records calls
        self.journal.begin(3)
        self.triggers = triggers
        self.rules = rules

    def run(self, *taken: Notification, at_ms: int = NOW_MS) -> list[int]:
        """The number of recipients of each notification."""

        def now() -> float:
            return at_ms / 1000

        outcomes = outcomes_in(self.journal, now, RetrySettings())
        intake = intake_of(outcomes, self.journal, rules=self.rules, control=at_ms // 1000, now=now)
        for offset, each in enumerate(taken):
            intake.take(Received(each, 0, offset, 3), Found(self.triggers, []))
        return [each.subscriptions for each in intake.matched[0]]

    def published(self, first: int = 0) -> list[Notification]:
        taken = self.kafka.taken[first:]
        assert all(each.key == notifications.decode(each.value).topic.encode() for each in taken)
        return [notifications.decode(each.value) for each in taken]

    def partitions(self) -> set[tuple[str, int]]:
        """The partition of each id."""
        sent = zip(self.published(), self.kafka.taken, strict=True)
        return {(each.id, record.partition) for each, record in sent}

    def rows(self) -> list[tuple[str, str, str, str]]:
        self.journal.write_due()
        return [(row.notification, row.subscription, row.state, row.error) for row in self.written]


def test_a_publication_has_its_row_after_all_its_records() -> None:
    setup = Setup(trigger("t1"), trigger("t2", target=TriggerTarget(retain=True)))
    by = cause(accepted_ms=1)
    setup.run(by)
    assert setup.rows() == []
    setup.kafka.take(2)
    assert [each[1:] for each in setup.rows()] == [("t1", "delivered", "")], (
        "one of two records of the second is missing"
    )
    setup.kafka.take()
    setup.journal.write_due()
    first, second = setup.written
    assert (first.endpoint, second.endpoint) == ("trigger:t1", "trigger:t2")
    logs = [each.topic.rpartition(".")[2] for each in setup.kafka.taken]
    assert logs == ["notifications", "notifications", "retained"]
    assert setup.published()[1] == setup.published()[2]
    assert second.detail == f"published as {setup.published()[2].id}"
    assert (second.notification, second.number, bool(second.push), second.batch) == (by.id, 1, True, 3)


@given(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=6), st.lists(st.integers(0, 6), max_size=4))
def test_a_repeated_batch_publishes_the_same_ids_in_order(topics: list[str], cuts: list[int]) -> None:
    taken = [cause(accepted_ms=number, topic=TopicPath(each)) for number, each in enumerate(topics)]
    triggers = trigger("t1"), trigger("t2", to="{urn:t}elsewhere", payload="")
    whole = Setup(*triggers)
    whole.run(*taken)
    whole.kafka.take()
    expected = [each.id for each in whole.published()]
    assert len(set(expected)) == 2 * len(taken)
    cut_off = Setup(*triggers)
    for number, count in enumerate(cuts):
        cut_off.run(*taken, at_ms=NOW_MS + 1_000 * number)
        before = len(cut_off.kafka.taken)
        cut_off.kafka.take(count)
        cut_off.kafka.abort()  # killed
        assert [each.id for each in cut_off.published(before)] == expected[:count]
    cut_off.run(*taken, at_ms=2 * NOW_MS)
    cut_off.kafka.take()
    assert {each.id for each in cut_off.published()} == set(expected)
    assert [each.id for each in cut_off.published(-len(expected))] == expected
    assert cut_off.partitions() == whole.partitions()


def test_a_refused_publication_has_a_row(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_logged", Recent(1_000))
    last = cause(accepted_ms=1, hops=MAX_HOPS, cause="n")
    setup = Setup(trigger("t1"))
    setup.run(last, msgspec.structs.replace(last, id="again"))
    assert setup.rows() == [(last.id, "t1", "cancelled", "hops"), ("again", "t1", "cancelled", "hops")]
    assert caplog.text.count("the trigger t1 publishes nothing") == 1
    over = Setup(trigger("t1"))
    over.run(cause(id="over", accepted_ms=1, valid_until_ms=2), cause(id="old", accepted_ms=1))
    over.kafka.take()
    assert over.rows() == [("over", "t1", "expired", "lifespan"), ("old", "t1", "delivered", "")]
    large = Setup(trigger("t1", payload=""), settings=KafkaSettings(max_record_bytes=64 * 1024))
    large.run(cause(id="large", accepted_ms=1, payload=b"<x>" + b"." * 60_000 + b"</x>"))
    assert large.rows() == [("large", "t1", "cancelled", "skipped")], "a record above max_record_bytes is not sent"
    assert (setup.kafka.taken, large.kafka.taken) == ([], [])


def test_an_interval_of_a_trigger() -> None:
    setup = Setup(msgspec.structs.replace(trigger("t1"), policy=DeliveryPolicy(interval_ms=100)))
    counts = setup.run(*[cause(id=f"n{number}", accepted_ms=1_000 + 50 * number) for number in range(4)])
    setup.kafka.take()
    assert [row[0] for row in setup.rows()] == ["n0", "n2"]
    assert counts == [1, 0, 1, 0]
