"""Work queues, as the gateway takes part in them: who may serve one, and what is a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.topic_model.namespaces import WSRF_RP
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.records.results import ServedRequest, write_answer_mark
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import times
from tests.support import soap_messages as soap
from tests.support.gateway_parts import RESULT_KEYS, GatewayParts, only_subscription, path_of
from tests.support.guarded_gateway import ANNA, BERT, OLGA, Clock, guarded

QUEUE = TopicPath("{urn:t}jobs")


@pytest.fixture
def parts() -> GatewayParts:
    made = GatewayParts()
    made.table.apply(TopicRecord(QUEUE, policy=TopicPolicy(queue=True, retain=True)))
    made.table.apply(TopicRecord(TopicPath("{urn:t}plain")))
    return made


def serving(attributes: str = "", topic: str = "t:jobs", filters: str = "", beside: str = "", url: str = "") -> bytes:
    policy = f'<p:Queue xmlns:p="urn:arborcast:policy" {attributes}/>{beside}'
    return soap.envelope(
        soap.subscribe(
            url or "http://h:1/",
            filters or soap.topic_expression(topic),
            more=f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>",
        )
    )


def test_a_server_has_a_capacity_and_with_another_one_it_is_the_same_server(parts: GatewayParts) -> None:
    found = set()
    for attributes, capacity in (("", 1), ('Capacity="1"', 1), ('Capacity="1000"', 1000), ('Capacity="7"', 7)):
        answer = parts.post(serving(attributes))
        assert only_subscription(parts).queue == capacity
        found.add(only_subscription(parts).id)
    assert len(found) == 1
    body = f'<r:GetResourceProperty xmlns:r="{WSRF_RP}">wsnt:SubscriptionPolicy</r:GetResourceProperty>'
    properties = parts.post(soap.envelope(body), path_of(answer)).body.decode()
    assert '<p:Queue xmlns:p="urn:arborcast:policy" Capacity="7"/>' in properties


@pytest.mark.parametrize("capacity", ["0", "1001", "-1", "", "1.5", "ten", "٣", "000001"])
def test_any_other_capacity_is_refused(parts: GatewayParts, capacity: str) -> None:
    answer = parts.post(serving(f'Capacity="{capacity}"'))
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert "from 1 to 1000" in answer.reason
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"topic": "t:jobs//."}, "one topic"),
        ({"topic": "t:jobs|t:plain"}, "one topic"),
        ({"filters": " "}, "one topic"),
        ({"filters": soap.topic_expression("t:jobs") * 2}, "one topic"),
        (
            {
                "filters": soap.topic_expression("t:jobs")
                + '<wsnt:MessageContent Dialect="http://www.w3.org/TR/1999/REC-xpath-19991116">1=1'
                "</wsnt:MessageContent>"
            },
            "one topic",
        ),
        ({"topic": "t:plain"}, "no queue"),
        ({"topic": "t:unknown"}, "no queue"),
        ({"beside": "<wsnt:UseRaw/>"}, "UseRaw"),
        ({"beside": '<p:CurrentMessage xmlns:p="urn:arborcast:policy"/>'}, "CurrentMessage"),
        ({"beside": '<p:Delivery xmlns:p="urn:arborcast:policy" Order="strict"/>'}, "Delivery"),
    ],
)
def test_what_a_server_cannot_be_is_refused(parts: GatewayParts, more: dict[str, str], words: str) -> None:
    answer = parts.post(serving(**more))
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert words in answer.reason
    assert "<wsnt:UnsupportedPolicy" in answer.body.decode()
    assert not list(parts.table.subscriptions())


def test_a_pull_point_serves_no_queue(parts: GatewayParts) -> None:
    made = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), "/wsn/CreatePullPoint")
    answer = parts.post(serving(url=str(made.text("Address"))))
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert "pull point" in answer.reason


def test_what_is_published_on_a_queue_is_a_request_and_no_current_message(parts: GatewayParts) -> None:
    parts.post(soap.envelope(soap.notify(soap.message("t:jobs"), soap.message("t:plain"))))
    assert [each.queue for each in parts.notifications.accepted] == [True, False]
    assert parts.gateway.retains(QUEUE) is False


def asking(reply_to: str, *messages: str, message_id: str = "urn:uuid:1") -> bytes:
    header = f"<wsa:MessageID>{message_id}</wsa:MessageID>" * bool(message_id)
    header += f"<wsa:ReplyTo>{reply_to}</wsa:ReplyTo>" * bool(reply_to)
    return soap.envelope(soap.notify(*(messages or (soap.message("t:jobs"),))), header=header)


USER = (
    "<wsa:Address>http://user:8080/answers</wsa:Address>"
    '<wsa:ReferenceParameters><u:who xmlns:u="urn:u">me</u:who></wsa:ReferenceParameters>'
)


def test_a_request_has_a_bounded_address_for_its_answer_and_other_messages_have_none(parts: GatewayParts) -> None:
    assert parts.post(asking(USER)).status == 202
    # SOAP stacks write a ReplyTo by themselves.
    assert parts.post(asking("<wsa:Address>ftp://nowhere/</wsa:Address>", soap.message("t:plain"))).status == 202
    assert parts.post(asking(USER.replace("me<", "m" * 16_000 + "<"))).status == 202
    assert "a ReplyTo has" in parts.post(asking(USER.replace("me<", "m" * 16_400 + "<"))).reason
    asked, plain, _ = parts.notifications.accepted
    assert (asked.message_id, plain.reply_to) == ("urn:uuid:1", None)
    assert asked.reply_to == EndpointReference("http://user:8080/answers", ('<u:who xmlns:u="urn:u">me</u:who>',))


RIGHTS = """
[namespaces]
t = "urn:t"
[[allow]]
do = ["publish"]
topics = ["t:jobs"]
users = ["anna", "bert"]
[[allow]]
do = ["subscribe"]
topics = ["t:jobs"]
users = ["bert", "olga"]
[[allow]]
do = ["serve"]
topics = ["t:jobs"]
groups = ["operators"]
"""


def answering(relates_to: str = "urn:uuid:1", topic: str = "t:jobs", mark: str = "") -> bytes:
    related = f"<wsa:RelatesTo>{relates_to}</wsa:RelatesTo>" * bool(relates_to)
    producer = (
        "<wsnt:ProducerReference><wsa:Address>urn:me</wsa:Address>"
        f"<wsa:ReferenceParameters>{related}</wsa:ReferenceParameters></wsnt:ProducerReference>"
    )
    return soap.envelope(
        "<wsnt:Notify><wsnt:NotificationMessage>"
        f"{soap.topic(topic)}{producer}<wsnt:Message><x/></wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>",
        header=f'<q:Answer xmlns:q="urn:arborcast:queue">{mark}</q:Answer>' * bool(mark),
    )


@pytest.mark.parametrize(("right", "may"), [("serve", True), ("manage", True), ("publish", False)])
def test_to_serve_a_queue_is_a_right_of_its_own(tmp_path: Path, right: str, may: bool) -> None:
    parts = guarded(tmp_path, Clock(), RIGHTS.replace('"serve"', f'"{right}"'))
    parts.table.apply(TopicRecord(QUEUE, policy=TopicPolicy(queue=True)))
    answer = parts.post(serving(), authorization=OLGA)
    assert answer.status == 200 if may else "olga may not serve 't:jobs'" in answer.reason
    refused = parts.post(serving(), authorization=BERT)
    assert refused.fault == "SubscribeCreationFailedFault"
    assert "bert may not serve" in refused.reason
    plain = soap.envelope(soap.subscribe(filters=soap.topic_expression("t:jobs")))
    assert parts.post(plain, authorization=BERT).status == 200


def test_a_server_answers_into_the_pull_point_of_another_what_it_was_asked_and_no_more(tmp_path: Path) -> None:
    """The job marks each request for the server that it gives it to; and whoever asks names a pull point of its own."""
    parts = guarded(tmp_path, Clock(), RIGHTS)
    parts.table.apply(TopicRecord(QUEUE, policy=TopicPolicy(queue=True)))
    create = soap.envelope("<wsnt:CreatePullPoint/>")
    made = parts.post(create, "/wsn/CreatePullPoint", authorization=ANNA).text("Address") or ""
    path = made.removeprefix("http://127.0.0.1:8080")
    request = asking(f"<wsa:Address>{made}</wsa:Address>")
    assert "that does not exist" in parts.post(request, authorization=BERT).reason
    assert parts.post(request, authorization=ANNA).status == 202
    assert parts.post(serving(), authorization=OLGA).status == 200

    now_ms = times.to_ms(parts.now)
    asked = ServedRequest(path.rpartition("/")[2], "urn:uuid:1", "olga")

    def marked(until_ms: int = now_ms, **changes: str) -> str:
        return write_answer_mark(asked._replace(**changes), until_ms, RESULT_KEYS)

    good = marked()
    for wrong in (
        answering(),
        soap.envelope(soap.notify()),
        answering(mark="1"),
        answering(mark=f"{now_ms + 1}.{good.partition('.')[2]}"),
        answering(mark=good.replace(".k.", ".j.")),
        answering(relates_to="", mark=good),
        answering(relates_to="urn:uuid:2", mark=good),
        answering(mark=marked(now_ms - 1)),
        answering(mark=marked(server="bert")),
        answering(mark=marked(point="another")),
    ):
        assert parts.post(wrong, path, authorization=OLGA).fault == "ResourceUnknownFault"
    assert parts.post(answering(mark=good), path, authorization=BERT).fault == "ResourceUnknownFault"
    assert parts.pull_log.records == []
    assert parts.post(answering(mark=good), path, authorization=OLGA).status == 202
    taken = parts.post(soap.envelope("<wsnt:GetMessages/>"), path, authorization=ANNA)
    assert taken.text("RelatesTo") == "urn:uuid:1"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (asking("<wsa:Address>ftp://nowhere/</wsa:Address>"), "wsa:ReplyTo"),
        (asking("<wsa:Address>http://169.254.169.254/</wsa:Address>"), "wsa:ReplyTo"),
        (asking(USER, message_id=""), "wsa:MessageID"),
        (asking(USER, soap.message("t:jobs"), soap.message("t:jobs")), "one message"),
    ],
)
def test_where_no_answer_could_go_the_request_is_refused(parts: GatewayParts, body: bytes, words: str) -> None:
    answer = parts.post(body)
    assert answer.status in (400, 500)
    assert words in answer.reason
    assert not parts.notifications.accepted


SAME = (
    '<j:job xmlns:j="urn:j" b="2" a="1"><!-- --></j:job>',
    '<j:job  a="1"   b="2" xmlns:j="urn:j" xmlns:unused="urn:u"></j:job>',
)


def said(key: str) -> str:
    return f'<p:Publication xmlns:p="urn:arborcast:policy" Merge="{key}"/>' if key else ""


def merges(parts: GatewayParts, *requests: tuple[str, str]) -> list[bytes]:
    for payload, key in requests:
        body = f"<wsnt:Notify>{soap.message('t:jobs', payload)}{said(key)}</wsnt:Notify>"
        assert parts.post(soap.envelope(body)).status == 202
    return [each.merge for each in parts.notifications.accepted]


def test_requests_are_equal_by_their_canonical_payload_and_key_and_long_ones_byte_for_byte(parts: GatewayParts) -> None:
    long = SAME[0].replace("<!-- -->", "x" * 20_000)
    requests = [(SAME[0], ""), (SAME[1], ""), ("<job/>", ""), (SAME[0], "k"), (SAME[1], "k")]
    requests += [(long, ""), (long, ""), (long.replace(' a="1"', "  a='1'"), ""), (long, "k")]
    for payload, key in requests:
        body = f"<wsnt:Notify>{soap.message('t:jobs', payload)}{said(key)}</wsnt:Notify>"
        assert parts.post(soap.envelope(body)).status == 202
    found = [each.merge for each in parts.notifications.accepted]
    assert [found.index(each) for each in found] == [0, 0, 2, 3, 3, 5, 5, 7, 8]
