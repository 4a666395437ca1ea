"""Work queues at the gateway: servers and requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.topic_model.records.results import ServedRequest, write_answer_token
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import times
from tests.support import soap_messages as soap
from tests.support.gateway_parts import RESULT_KEYS, GatewayParts, only_subscription, path_of
from tests.support.guarded_gateway import ANNA, BERT, OLGA, Clock, guarded

QUEUE = TopicPath("{urn:t}jobs")
JOBS = soap.topic_expression("t:jobs")


@pytest.fixture
def parts() -> GatewayParts:
    made = GatewayParts()
    made.have_topics(QUEUE, queue=True, retain=True)
    made.have_topics("{urn:t}plain")
    return made


def serving(attributes: str = "", filters: str = "", beside: str = "", url: str = "http://h:1/") -> bytes:
    return soap.envelope(soap.subscribe(url, filters or JOBS, policy=f"<p:Queue {attributes}/>{beside}"))


def refused(parts: GatewayParts, body: bytes, words: str) -> None:
    answer = parts.post(body)
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert words in answer.reason
    assert not list(parts.table.subscriptions())


def test_a_server_may_change_its_capacity(parts: GatewayParts) -> None:
    found = set()
    for attributes, capacity in (("", 1), ('Capacity="1"', 1), ('Capacity="1000"', 1000), ('Capacity="7"', 7)):
        answer = parts.post(serving(attributes))
        assert only_subscription(parts).queue == capacity
        found.add(only_subscription(parts).id)
    assert len(found) == 1
    body = soap.envelope(soap.get_property("wsnt:SubscriptionPolicy"))
    properties = parts.post(body, path_of(answer)).body.decode()
    assert '<p:Queue xmlns:p="urn:arborcast:policy" Capacity="7"/>' in properties


@pytest.mark.parametrize("capacity", ["0", "1001", "-1", "", "1.5", "ten", "٣", "0000000001"])
def test_wrong_capacities(parts: GatewayParts, capacity: str) -> None:
    refused(parts, serving(f'Capacity="{capacity}"'), "from 1 to 1000")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"filters": soap.topic_expression("t:jobs//.")}, "one topic"),
        ({"filters": soap.topic_expression("t:jobs|t:plain")}, "one topic"),
        ({"filters": " "}, "one topic"),
        ({"filters": JOBS * 2}, "one topic"),
        ({"filters": JOBS + soap.content_filter("1=1")}, "one topic"),
        ({"filters": soap.topic_expression("t:plain")}, "no queue"),
        ({"filters": soap.topic_expression("t:unknown")}, "no queue"),
        ({"beside": "<wsnt:UseRaw/>"}, "UseRaw"),
        ({"beside": "<p:CurrentMessage/>"}, "CurrentMessage"),
        ({"beside": '<p:Delivery Order="strict"/>'}, "Delivery"),
    ],
)
def test_subscriptions_that_cannot_serve_a_queue(parts: GatewayParts, more: dict[str, str], words: str) -> None:
    refused(parts, serving(**more), words)


def test_a_pull_point_serves_no_queue(parts: GatewayParts) -> None:
    made = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), "/wsn/CreatePullPoint")
    refused(parts, serving(url=str(made.text("Address"))), "pull point")


def test_messages_on_a_queue_are_requests(parts: GatewayParts) -> None:
    parts.post(soap.envelope(soap.notify(soap.message("t:jobs"), soap.message("t:plain"))))
    assert [each.queue for each in parts.notifications.accepted] == [True, False]
    assert parts.gateway.retains(QUEUE) is False


def request_with(reply_to: str, *messages: str, message_id: str = "urn:uuid:1") -> bytes:
    header = f"<wsa:MessageID>{message_id}</wsa:MessageID>" * bool(message_id)
    header += f"<wsa:ReplyTo>{reply_to}</wsa:ReplyTo>" * bool(reply_to)
    return soap.envelope(soap.notify(*(messages or (soap.message("t:jobs"),))), header=header)


USER = (
    "<wsa:Address>http://user:8080/answers</wsa:Address>"
    '<wsa:ReferenceParameters><u:who xmlns:u="urn:u">me</u:who></wsa:ReferenceParameters>'
)


def test_requests_have_a_bounded_reply_to(parts: GatewayParts) -> None:
    assert parts.post(request_with(USER)).status == 202
    # SOAP stacks add a ReplyTo by default.
    assert parts.post(request_with("<wsa:Address>ftp://nowhere/</wsa:Address>", soap.message("t:plain"))).status == 202
    assert parts.post(request_with(USER.replace("me<", "m" * 16_000 + "<"))).status == 202
    assert "a ReplyTo has" in parts.post(request_with(USER.replace("me<", "m" * 16_400 + "<"))).reason
    stored, plain, _ = parts.notifications.accepted
    assert (stored.message_id, plain.reply_to) == ("urn:uuid:1", None)
    assert stored.reply_to == EndpointReference("http://user:8080/answers", ('<u:who xmlns:u="urn:u">me</u:who>',))


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


def answer_with(relates_to: str = "urn:uuid:1", topic: str = "t:jobs", mark: str = "") -> bytes:
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


def test_servers_may_answer_to_pull_points_of_their_requests(tmp_path: Path) -> None:
    """The job sends a permission with each request to a server; users may only name their own pull points."""
    parts = guarded(tmp_path, Clock(), RIGHTS)
    parts.have_topics(QUEUE, queue=True)
    create = soap.envelope("<wsnt:CreatePullPoint/>")
    made = parts.post(create, "/wsn/CreatePullPoint", authorization=ANNA).text("Address") or ""
    path = made.removeprefix("http://127.0.0.1:8080")
    request = request_with(f"<wsa:Address>{made}</wsa:Address>")
    assert "that does not exist" in parts.post(request, authorization=BERT).reason
    assert parts.post(request, authorization=ANNA).status == 202
    assert parts.post(serving(), authorization=OLGA).status == 200

    now_ms = times.to_ms(parts.now)
    stored = ServedRequest(path.rpartition("/")[2], "urn:uuid:1", "olga")

    def marked(until_ms: int = now_ms, **changes: str) -> str:
        return write_answer_token(stored._replace(**changes), until_ms, RESULT_KEYS)

    good = marked()
    for wrong in (
        answer_with(),
        soap.envelope(soap.notify()),
        answer_with(mark="1"),
        answer_with(mark=f"{now_ms + 1}.{good.partition('.')[2]}"),
        answer_with(mark=good.replace(".k.", ".j.")),
        answer_with(relates_to="", mark=good),
        answer_with(relates_to="urn:uuid:2", mark=good),
        answer_with(mark=marked(now_ms - 1)),
        answer_with(mark=marked(server="bert")),
        answer_with(mark=marked(point="another")),
    ):
        assert parts.post(wrong, path, authorization=OLGA).fault == "ResourceUnknownFault"
    assert parts.post(answer_with(mark=good), path, authorization=BERT).fault == "ResourceUnknownFault"
    assert parts.pull_log.records == []
    assert parts.post(answer_with(mark=good), path, authorization=OLGA).status == 202
    taken = parts.post(soap.envelope("<wsnt:GetMessages/>"), path, authorization=ANNA)
    assert taken.text("RelatesTo") == "urn:uuid:1"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (request_with("<wsa:Address>ftp://nowhere/</wsa:Address>"), "wsa:ReplyTo"),
        (request_with("<wsa:Address>http://169.254.169.254/</wsa:Address>"), "wsa:ReplyTo"),
        (request_with(USER, message_id=""), "wsa:MessageID"),
        (request_with(USER, soap.message("t:jobs"), soap.message("t:jobs")), "one message"),
    ],
)
def test_requests_without_a_reply_address_are_refused(parts: GatewayParts, body: bytes, words: str) -> None:
    answer = parts.post(body)
    assert answer.status in (400, 500)
    assert words in answer.reason
    assert not parts.notifications.accepted


SAME = (
    '<j:job xmlns:j="urn:j" b="2" a="1"><!-- --></j:job>',
    '<j:job  a="1"   b="2" xmlns:j="urn:j" xmlns:unused="urn:u"></j:job>',
)


def test_equal_requests(parts: GatewayParts) -> None:
    """Equal by canonical payload and key, long payloads by their bytes."""
    long = SAME[0].replace("<!-- -->", "x" * 20_000)
    requests = [(SAME[0], ""), (SAME[1], ""), ("<job/>", ""), (SAME[0], "k"), (SAME[1], "k")]
    requests += [(long, ""), (long, ""), (long.replace(' a="1"', "  a='1'"), ""), (long, "k")]
    for payload, key in requests:
        merge = f'<p:Publication xmlns:p="urn:arborcast:policy" Merge="{key}"/>' if key else ""
        assert parts.post(soap.envelope(soap.notify(soap.message("t:jobs", payload), merge))).status == 202
    found = [each.merge for each in parts.notifications.accepted]
    assert [found.index(each) for each in found] == [0, 0, 2, 3, 3, 5, 5, 7, 8]
