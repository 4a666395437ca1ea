"""CreateTrigger and DestroyTrigger: records, and refusals without records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.records.control import ControlRecord, TriggerEnded, TriggerRecord
from arborcast.topic_model.subscriptions import DeliveryPolicy, Trigger
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.limits import PAYLOAD_LEVELS
from tests.support import soap_messages as soap
from tests.support.gateway_parts import START, GatewayParts, HttpAnswer, live
from tests.support.guarded_gateway import ANNA, BERT, Clock, guarded
from tests.support.routing import make_trigger

POLICY = "urn:arborcast:policy"
TO = TopicPath("{urn:t}a/alarm")
TYPES = f'<p:MessageType xmlns:p="{POLICY}" xmlns:o="urn:o">o:reading</p:MessageType>'
ALARM = '<o:alarm xmlns:o="urn:o">1</o:alarm>'


def create(
    name: str = "hot",
    on: str | None = "t:a/b",
    payload: str | None = ALARM,
    to: str = "t:a/alarm",
    more: str = "",
    policy: str = "",
) -> bytes:
    filters = (soap.topic_expression(on) if on is not None else "") + more
    message = "" if payload is None else f"<wsnt:Message>{payload}</wsnt:Message>"
    return soap.envelope(
        f'<p:CreateTrigger xmlns:p="{POLICY}" Name="{name}">'
        f"{f'<wsnt:Filter>{filters}</wsnt:Filter>' if filters else ''}"
        f"{f'<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>' if policy else ''}"
        f"<p:Publish>{soap.topic(to)}{message}</p:Publish></p:CreateTrigger>"
    )


def destroy(name: str = "hot") -> bytes:
    return soap.envelope(f'<p:DestroyTrigger xmlns:p="{POLICY}" Name="{name}"/>')


def delivery(**attributes: str) -> str:
    return f'<p:Delivery xmlns:p="{POLICY}"{"".join(f" {name}={text!r}" for name, text in attributes.items())}/>'


@pytest.fixture
def parts() -> GatewayParts:
    return with_topic(GatewayParts())


def with_topic(parts: GatewayParts) -> GatewayParts:
    parts.have_topics(TO)
    return parts


def created(answer: HttpAnswer) -> str:
    assert answer.status == 200, answer.body
    (found,) = answer.root.iter(f"{{{POLICY}}}CreateTriggerResponse")
    return str(found.get("Id"))


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_trigger_is_recorded_and_found(parts: GatewayParts, version: str) -> None:
    body = create(more=TYPES + soap.content_filter("//o:n > 5"), policy=delivery(MinimumInterval="PT1.5S"))
    identifier = created(parts.post(body.replace(soap.NAMESPACES["1.1"].encode(), soap.NAMESPACES[version].encode())))
    (record,) = parts.control.records
    assert isinstance(record, TriggerRecord)
    made = record.subscription
    assert (made.id, made.consumer.address, made.address) == (identifier, "trigger:hot", "")
    assert (made.selector(), made.types, made.content[0].text) == ("{urn:t}a/b", ("{urn:o}reading",), "//o:n > 5")
    assert made.policy == DeliveryPolicy(interval_ms=1500)
    assert (made.created_ms, made.terminates_ms) == (int(START.timestamp() * 1000), None)
    assert made.trigger == Trigger("hot", TO, ALARM, "{urn:o}alarm", "t")
    assert parts.table.triggers.named("hot") == made
    assert [each.id for each in parts.table.match(TopicPath("{urn:t}a/b"))] == [identifier]


ALL_PRODUCERS = soap.content_filter("true()", "ProducerProperties")
LOOPING = (soap.content_filter("/o:alarm = 1"), TYPES.replace("reading", "alarm"), ALL_PRODUCERS)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *((create(name=name), "has a Name of") for name in ("", "a b", "x" * 101)),
        (create(on="t:a["), "t:a["),
        (create(to="t:nowhere"), "there is no topic {urn:t}nowhere to publish to"),
        (create(payload="text"), "is one XML element"),
        (create(payload=ALARM * 2), "is one XML element"),
        (create(payload="<x>"), ""),
        # It would match its own publications.
        *((create(on=on), "in a loop") for on in ("t:a//.", None)),
        (create(on="t:a/alarm", payload=None), "in a loop"),
        (create(on="t:a//.", payload=None, more=TYPES), "in a loop"),
        *((create(on="t:a//.", more=more), "in a loop") for more in LOOPING),
        (create(policy=delivery(Reliability="strict")), "a trigger has MinimumInterval"),
        (create(policy="<wsnt:UseRaw/>"), "a trigger has MinimumInterval"),
        (create(policy=delivery(MinimumInterval="soon")), "MinimumInterval"),
        (create().replace(b"p:Publish>", b"p:Publishing>"), "one p:Publish"),
        (create(more=soap.content_filter("//o:n[")), "//o:n["),
    ],
)
def test_refused_triggers(parts: GatewayParts, body: bytes, words: str) -> None:
    answer = parts.post(body)
    assert answer.status in (400, 500)
    assert words in answer.reason, answer.reason
    assert (parts.control.records, len(parts.table.triggers)) == ([], 0)


def test_a_filter_may_exclude_the_trigger_s_own_messages(parts: GatewayParts) -> None:
    for number, more in enumerate((TYPES, soap.content_filter("/o:alarm > 1"))):
        created(parts.post(create(f"filtered{number}", "t:a//.", more=more)))
    for number, on in enumerate(("t:a/b", "t:a/*/c")):
        created(parts.post(create(f"copies{number}", on, payload=None)))
    payloads = [(each.trigger.payload, each.trigger.type) for each in parts.table.triggers if each.trigger]
    assert payloads[2:] == [("", "")] * 2, "without a payload the matched one is published"


def test_levels_of_a_payload(parts: GatewayParts) -> None:
    def nested(levels: int) -> HttpAnswer:
        return parts.post(create("deep", payload="<a>" * levels + "</a>" * levels))

    deeper = nested(PAYLOAD_LEVELS + 1)
    assert (deeper.status >= 400, "200 levels" in deeper.reason) == (True, True)
    created(nested(PAYLOAD_LEVELS))


def test_names_number_and_end_of_triggers() -> None:
    parts = with_topic(GatewayParts(GatewaySettings(triggers=2)))
    identifier = created(parts.post(create()))
    assert "there is a trigger hot already" in parts.post(create(on="t:c")).reason
    created(parts.post(create(name="hot.2")))
    assert "gateway.triggers allows no more" in parts.post(create(name="cold")).reason
    assert len(parts.table.triggers) == 2
    parts.post(destroy("hot.2"))
    committed = len(parts.control.records)
    answer = parts.post(destroy())
    assert (answer.status, identifier in answer.body.decode()) == (200, True)
    assert live(parts.control.records) == set()
    assert isinstance(parts.control.records[committed], TriggerEnded)
    assert list(parts.table.match(TopicPath("{urn:t}a/b"))) == []
    assert parts.post(destroy()).fault == "ResourceUnknownFault"
    created(parts.post(create()))


def test_two_gateways_create_a_trigger_concurrently(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, others = parts.control.commit, make_trigger("theirs", "on", "to")
    assert others.trigger is not None
    rival = TriggerRecord(msgspec.structs.replace(others, trigger=msgspec.structs.replace(others.trigger, name="hot")))

    async def late(records: Sequence[ControlRecord]) -> int:
        monkeypatch.setattr(parts.control, "commit", commit)
        await commit([rival])
        return await commit(records)

    monkeypatch.setattr(parts.control, "commit", late)
    assert "there is a trigger hot already" in parts.post(create()).reason
    assert list(parts.table.triggers) == [rival.subscription]
    assert live(parts.control.records) == {"trigger:theirs"}


def test_operations_on_subscriptions_do_not_reach_triggers(parts: GatewayParts) -> None:
    identifier = created(parts.post(create()))
    before = len(parts.control.records)
    for body in ("<wsnt:Unsubscribe/>", "<wsnt:PauseSubscription/>", soap.renew("PT1M")):
        answer = parts.post(soap.envelope(body), f"/wsn/subscriptions/{identifier}")
        assert answer.fault == "ResourceUnknownFault", body
    parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a/b"))))
    assert len(parts.control.records) == before + 1, "a trigger is not equal to a subscription"
    assert parts.table.statistics().subscriptions == 1


def test_message_types_and_required_registration() -> None:
    parts = GatewayParts(topics=TopicSettings(check_types=True))
    parts.have_topics(TO, types=("{urn:o}other",))
    assert "the topic {urn:t}a/alarm takes {urn:o}other" in parts.post(create()).reason
    created(parts.post(create(payload='<o:other xmlns:o="urn:o"/>')))
    parts = with_topic(GatewayParts(GatewaySettings(requires_registration=True)))
    assert "only registered publishers" in parts.post(create()).reason
    assert not parts.control.records


def test_the_owner_of_a_trigger(tmp_path: Path) -> None:
    """The rights to create and destroy triggers are in test_table_of_rights.py."""
    parts = with_topic(guarded(tmp_path, Clock()))
    parts.have_topics("{urn:t}c")
    assert "anna may not publish to {urn:t}c" in parts.post(create(to="t:c"), authorization=ANNA).reason
    assert not parts.control.records
    created(parts.post(create(), authorization=ANNA))
    (made,) = parts.table.triggers
    assert (made.owner, parts.owners.subscriptions("anna")) == ("anna", 0)
    assert "there is a trigger hot already" in parts.post(create(), authorization=BERT).reason
    assert parts.post(destroy(), authorization=ANNA).status == 200
