"""The growth of open topic sets is bounded; each topic gets a code."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError, TopicNotSupported
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.operations import topic_codes
from arborcast.ingest.operations.admission import TopicAdmission
from arborcast.ingest.operations.topic_codes import TopicCodes
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.control import TopicPlaces, TopicRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import TooManyTopics
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.waiting import wait_until_async


def table(*records: TopicRecord) -> RoutingTable:
    made = RoutingTable()
    for record in records:
        made.apply(record)
    return made


def topic(path: str, *, final: bool = False) -> TopicRecord:
    return TopicRecord(TopicPath(path), final=final)


def wait_s(admission: TopicAdmission, names: str, now_s: float) -> float:
    """The seconds until these topics can be admitted, 0 if they are."""
    try:
        admission.admit(table(), map(TopicPath, names), now_s)
    except TooManyTopics as error:
        return error.retry_after or -1
    return 0


@pytest.mark.parametrize(
    ("settings", "paths", "why"),
    [
        (TopicSettings(fixed=True), ["b"], "the topic set is fixed"),
        (TopicSettings(fixed=True), ["n"], "the topic set is fixed"),
        (TopicSettings(), ["f/x/y"], "the topic f is final"),
        (TopicSettings(maximum=2), ["b"], "topics.maximum is 2"),
        (TopicSettings(maximum=3), ["a", "b"], "topics.maximum is 3"),
        (TopicSettings(new_per_minute=0), ["b"], "topics.new_per_minute is 0"),
        (TopicSettings(new_per_minute=1), ["a", "b"], "number 2 of one Notify, and topics.new_per_minute is 1"),
    ],
)
def test_final_refusals_name_the_setting(settings: TopicSettings, paths: list[str], why: str) -> None:
    there = table(topic("f", final=True), topic("n/below"))
    with pytest.raises(TopicNotSupported, match=why) as caught:
        TopicAdmission(settings).admit(there, map(TopicPath, paths), 0.0)
    assert paths[-1] in str(caught.value)
    assert caught.value.fault == "TopicNotSupportedFault"
    full = TopicSettings(fixed=True, maximum=1, new_per_minute=0)
    assert TopicAdmission(full).admit(table(topic("a")), [TopicPath("a")], 0.0).records == [], "an existing topic"


def test_the_window_slides() -> None:
    admission = TopicAdmission(TopicSettings(new_per_minute=3))
    admitted = admission.admit(table(), [TopicPath("{urn:t}a/b")], 10.0)
    assert admitted.records == [topic("{urn:t}a/b")], "no parent topics"
    for names, now_s, expected in (
        ("b", 10.9, 0),
        ("c", 40.0, 0),
        ("d", 40.5, 30),  # 29.5 s, rounded up
        ("d", 69.9, 1),
        # The two of second 10 are outside the window of sixty seconds, the one of second 40 is inside.
        *(("d", 70.0, 0), ("e", 70.0, 0), ("f", 70.0, 30)),
        ("f", 99.9, 1),
        *(("f", 100.0, 0), ("g", 100.0, 30)),
    ):
        assert wait_s(admission, names, now_s) == expected, (names, now_s)
    admission = TopicAdmission(TopicSettings(new_per_minute=4))
    assert [wait_s(admission, "ab", 10.0), wait_s(admission, "cd", 30.0)] == [0, 0]
    assert [wait_s(admission, names, 60.0) for names in ("e", "ef", "efg")] == [10, 10, 30], (
        "for all topics of the request"
    )


def notify(parts: GatewayParts, *topics: str) -> HttpAnswer:
    return parts.post(soap.envelope(soap.notify(*map(soap.message, topics))))


def subscribe(parts: GatewayParts, *expressions: str) -> None:
    filters = "".join(map(soap.topic_expression, expressions))
    assert parts.post(soap.envelope(soap.subscribe(filters=filters))).status == 200


def test_refused_notifies_use_no_budget() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=3))
    assert notify(parts, "t:a", "t:b").status == 202
    refused = notify(parts, "t:c", "t:d")
    assert (refused.status, "topics.new_per_minute is 3" in refused.reason) == (503, True)
    assert 1 <= int(refused.headers[b"retry-after"]) <= 60
    parts.control.error = InfrastructureError("no broker", retry_after=3)
    for _ in range(3):
        answer = notify(parts, "t:c")
        assert (answer.status, answer.reason) == (503, "no broker")
    parts.control.error = None
    assert [notify(parts, "t:c").status, notify(parts, "t:d").status] == [202, 503]
    assert {record.path for record in parts.table.topics.records()} == {"{urn:t}a", "{urn:t}b", "{urn:t}c"}


@pytest.mark.parametrize("older", [False, True])
def test_a_notify_refused_for_its_topics_has_no_deliveries(older: bool) -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=2))
    parts.gateway.gate = Gate(Rates(LimitSettings(deliveries_per_minute=1)))
    subscribe(parts, "known")

    def send(*topics: str) -> HttpAnswer:
        if not older:
            return notify(parts, *topics)
        text = "".join(legacy.notify(each, "x") for each in topics)
        whole = f'<wsnt:Notify xmlns:wsnt="{legacy.WSNT}">{text}</wsnt:Notify>'
        return parts.post(legacy.wsn_process(whole), "/wsnprocess", Content_Type="text/xml")

    assert send("a", "b").status in (200, 202)
    refused = send("known", "c")
    assert (refused.status, b"retry-after" in refused.headers) == (503, True)
    assert send("known").status in (200, 202)
    assert send("known").status == 429, "above the rate"


def test_topics_in_subscriptions_by_name_and_by_wildcard() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=2))
    subscribe(parts, "t:plant/line1|t:plant/line2|t:plant//x")
    assert [notify(parts, "t:a", "t:b").status, notify(parts, "t:c").status] == [202, 503]
    assert [notify(parts, f"t:plant/line{number}").status for number in (1, 2, 3)] == [202, 202, 503]
    # Topics under a wildcard have their own budget: otherwise one subscription to all topics would let a publisher
    # with a counter fill the tree.
    subscribe(parts, "t:plant//.")
    assert [notify(parts, "t:plant/x1", "t:plant/x2").status, notify(parts, "t:plant/x3").status] == [202, 503]


async def test_a_cancelled_request_keeps_the_budget_of_added_topics() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=1))
    adding = asyncio.create_task(parts.gateway.admit({TopicPath("a"): ""}))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    await parts.gateway.admit({TopicPath("a"): ""})
    with pytest.raises(TooManyTopics):
        await parts.gateway.admit({TopicPath("b"): ""})
    assert len(parts.control.records) == 1


async def test_every_topic_gets_a_code(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(topic_codes, "_RETRY_S", 0.0)
    parts, codes = GatewayParts(), TopicCodes()
    parts.control.also.append(codes)

    async def until(**expected: str) -> None:
        def known() -> dict[str, str]:
            return {each.path.replace("/", "_"): each.code for each in parts.table.topics.records()}

        await wait_until_async(lambda: known() == expected, known)

    await parts.control.commit([topic("a"), topic("a/b")])
    giving = asyncio.create_task(codes.assign_forever(parts.gateway))
    await until(a="1", a_b="1.1")
    await parts.gateway.admit({TopicPath("c"): "", TopicPath("a/d"): ""})
    await until(a="1", a_b="1.1", c="2", a_d="1.2")
    added = topic("e")
    parts.table.apply(added)
    codes.apply(added)
    parts.control.error = InfrastructureError("away")
    await wait_until_async(lambda: "cannot be given codes now: away" in caplog.text)
    parts.control.error = None
    await until(a="1", a_b="1.1", c="2", a_d="1.2", e="3")
    giving.cancel()
    assert parts.control.records[-2:] == [
        TopicPlaces(TopicPath(""), last=3),
        TopicRecord(TopicPath("e"), "3", placed=True),
    ]
