"""Open topic sets grow within bounds; time is passed in."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError, TopicNotSupported
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.operations.admission import TopicAdmission
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import TooManyTopics
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer


def _path(text: str) -> TopicPath:
    return TopicPath(text)


def _table(*records: TopicRecord) -> RoutingTable:
    table = RoutingTable()
    for record in records:
        table.apply(record)
    return table


def test_an_open_set_takes_an_unknown_topic_and_that_topic_only() -> None:
    admission = TopicAdmission(TopicSettings())
    assert admission.admit(_table(), [_path("{urn:t}a/b")], 0.0).records == [TopicRecord(_path("{urn:t}a/b"))]


def test_a_known_topic_needs_nothing_even_in_a_fixed_and_full_set() -> None:
    admission = TopicAdmission(TopicSettings(fixed=True, maximum=1, new_per_minute=0))
    assert admission.admit(_table(TopicRecord(_path("a"))), [_path("a")], 0.0).records == []


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
def test_refusals_for_good_say_which_setting(settings: TopicSettings, paths: list[str], why: str) -> None:
    table = _table(TopicRecord(_path("f"), final=True), TopicRecord(_path("n/below")))
    with pytest.raises(TopicNotSupported, match=why) as caught:
        TopicAdmission(settings).admit(table, map(_path, paths), 0.0)
    assert paths[-1] in str(caught.value)
    assert caught.value.fault == "TopicNotSupportedFault"


def test_the_window_slides() -> None:
    admission = TopicAdmission(TopicSettings(new_per_minute=3))

    def wait_s(name: str, now_s: float) -> float:
        try:
            admission.admit(_table(), [_path(name)], now_s)
        except TooManyTopics as error:
            return error.retry_after or -1
        return 0

    assert [wait_s("a", 10.0), wait_s("b", 10.9), wait_s("c", 40.0)] == [0, 0, 0]
    assert wait_s("d", 40.5) == 30, "29.5 s, and nobody comes again too early"
    assert wait_s("d", 69.9) == 1
    # The two of second 10 have left the window of sixty seconds, the one of second 40 has not.
    assert [wait_s("d", 70.0), wait_s("e", 70.0), wait_s("f", 70.0)] == [0, 0, 30]
    assert wait_s("f", 99.9) == 1
    assert [wait_s("f", 100.0), wait_s("g", 100.0)] == [0, 30]


def test_who_brings_several_is_told_when_there_is_room_for_all() -> None:
    admission = TopicAdmission(TopicSettings(new_per_minute=4))
    admission.admit(_table(), [_path("a"), _path("b")], 10.0)
    admission.admit(_table(), [_path("c"), _path("d")], 30.0)
    for names, wait_s in (("e", 10), ("ef", 10), ("efg", 30)):
        with pytest.raises(TooManyTopics) as caught:
            admission.admit(_table(), map(_path, names), 60.0)
        assert caught.value.retry_after == wait_s


def _notify(parts: GatewayParts, *topics: str) -> HttpAnswer:
    return parts.post(soap.envelope(soap.notify(*map(soap.message, topics))))


def _subscribe(parts: GatewayParts, *expressions: str) -> None:
    filters = "".join(map(soap.topic_expression, expressions))
    assert parts.post(soap.envelope(soap.subscribe(filters=filters))).status == 200


def test_a_refused_notify_leaves_the_minute_to_others() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=3))
    assert _notify(parts, "t:a", "t:b").status == 202
    refused = _notify(parts, "t:c", "t:d")
    assert refused.status == 503
    assert 1 <= int(refused.headers[b"retry-after"]) <= 60
    assert "topics.new_per_minute is 3" in refused.reason
    assert _notify(parts, "t:c").status == 202, "the refused one has cost nothing"
    assert _notify(parts, "t:d").status == 503
    assert {record.path for record in parts.table.topics.records()} == {"{urn:t}a", "{urn:t}b", "{urn:t}c"}


def test_what_kafka_did_not_take_is_given_back() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=1))
    for _ in range(3):
        parts.control.error = InfrastructureError("no broker", retry_after=3)
        answer = _notify(parts, "t:a")
        assert (answer.status, answer.reason) == (503, "no broker")
    parts.control.error = None
    assert _notify(parts, "t:a").status == 202


@pytest.mark.parametrize("older", [False, True])
def test_a_notify_refused_for_its_topics_counts_for_no_deliveries(older: bool) -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=2))
    parts.gateway.gate = Gate(Rates(LimitSettings(deliveries_per_minute=1)))
    _subscribe(parts, "known")

    def send(*topics: str) -> HttpAnswer:
        if not older:
            return _notify(parts, *topics)
        text = "".join(legacy.notify(each, "x") for each in topics)
        whole = f'<wsnt:Notify xmlns:wsnt="{legacy.WSNT}">{text}</wsnt:Notify>'
        return parts.post(legacy.wsn_process(whole), "/wsnprocess", Content_Type="text/xml")

    assert send("a", "b").status in (200, 202)
    refused = send("known", "c")
    assert (refused.status, b"retry-after" in refused.headers) == (503, True)
    assert send("known").status in (200, 202)
    assert send("known").status == 429, "now it is"


def test_topics_that_a_subscription_names_are_not_counted() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=1))
    _subscribe(parts, "t:plant/line1|t:plant/line2|t:plant//x")
    assert _notify(parts, "t:a").status == 202
    assert _notify(parts, "t:b").status == 503
    assert _notify(parts, "t:plant/line1").status == 202
    assert _notify(parts, "t:plant/line2").status == 202
    assert _notify(parts, "t:plant/line3").status == 503


def test_topics_reached_by_a_wildcard_have_a_number_of_their_own() -> None:
    """Else one subscriber to everything would let a publisher with a counter fill the tree."""
    parts = GatewayParts(topics=TopicSettings(new_per_minute=2))
    _subscribe(parts, "t:plant//.")
    assert _notify(parts, "t:a", "t:b").status == 202
    assert _notify(parts, "t:c").status == 503
    assert _notify(parts, "t:plant/x1", "t:plant/x2").status == 202
    assert _notify(parts, "t:plant/x3").status == 503


async def test_a_publisher_that_hangs_up_gives_nothing_back_that_is_added() -> None:
    parts = GatewayParts(topics=TopicSettings(new_per_minute=1))
    adding = asyncio.create_task(parts.gateway.admit({_path("a"): ""}))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    await parts.gateway.admit({_path("a"): ""})
    with pytest.raises(TooManyTopics):
        await parts.gateway.admit({_path("b"): ""})
    assert len(parts.control.records) == 1
