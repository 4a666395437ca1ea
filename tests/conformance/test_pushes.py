"""Pushes are valid by the OASIS schemas, as all answers are."""

from __future__ import annotations

from typing import Any

import pytest
from lxml import etree
from msgspec import structs

from arborcast.client.queues.worker import reply_to
from arborcast.client.received import read_push_request
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.logs.attempts import Attempt, ErrorClass, State
from arborcast.dispatch.queues.faults import fault_element, fault_of
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, queue_of
from arborcast.topic_model.topics import TopicPath
from tests.support import oasis

CONSUMER = EndpointReference("http://h/?a&b", ('<p:session xmlns:p="urn:p">1</p:session>',), ('<m xmlns="urn:m"/>',))
PRODUCER = (
    b'<n:ProducerReference xmlns:n="http://docs.oasis-open.org/wsn/b-2" xmlns:a="http://www.w3.org/2005/08/addressing">'
    b"<a:Address>urn:oid:1.2</a:Address></n:ProducerReference>"
)


@pytest.mark.parametrize("addressing", [False, True])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_a_notify_is_valid(soap: Any, addressing: bool) -> None:
    subscription = Subscription("s<1>", CONSUMER, "http://b/wsn/subscriptions/s&1", soap=soap, addressing=addressing)
    notifications = [
        Notification("1", TopicPath("{urn:t}a/b"), b'<x xmlns="urn:x"/>', 1, PRODUCER),
        Notification("2", TopicPath("a/{urn:u&v}b/{}c"), b"<plain/>", 2),
    ]
    pushed = Envelope(subscription).request(notifications, 3)
    notify = oasis.validate(pushed.body)
    assert notify.tag == "{http://docs.oasis-open.org/wsn/b-2}Notify"
    assert len(notify) == 2


REQUEST = Notification(
    "r<1>", TopicPath("{urn:t}jobs"), b'<x xmlns="urn:x"/>', 1, message_id="urn:uuid:1&2", queue=True, reply_to=CONSUMER
)


@pytest.mark.parametrize("at", ["http://h/?a&b", "http://h/wsn/pullpoints/p"])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_a_request_and_its_answer_are_valid(soap: Any, at: str) -> None:
    asked = structs.replace(REQUEST, reply_to=EndpointReference(at, CONSUMER.reference_parameters))
    server = Subscription("s", EndpointReference("http://s/"), "http://b/wsn/subscriptions/s", soap=soap, queue=1)
    pushed = Envelope(server).request([asked], 2)
    assert oasis.validate(pushed.body).tag == "{http://docs.oasis-open.org/wsn/b-2}Notify"
    headers = {name.lower(): value for name, value in pushed.headers}
    assert headers["arborcast-sequence"] == "1"
    (received,) = read_push_request(headers, pushed.body)
    (requester,) = received.requesters
    assert (requester.message_id, requester.reply_to.address) == (asked.message_id, at)
    answered = etree.fromstring(reply_to(requester, received, '<done xmlns="urn:x"/>').encode("1.1", "urn:a1")[0])
    assert answered.findtext(".//{*}Header/{*}RelatesTo") == asked.message_id
    assert answered.find(".//{*}Header/{urn:p}session") is not None
    if "pullpoints" in at:
        assert oasis.validate(etree.tostring(answered)).tag == "{http://docs.oasis-open.org/wsn/b-2}Notify"


@pytest.mark.parametrize(
    ("state", "error", "code"),
    [
        ("dead", "invalid", "Invalid"),
        ("dead", "timeout", "Unanswered"),
        ("expired", "timeout", "Expired"),
        ("dropped", "resources", "Dropped"),
    ],
)
def test_the_fault_of_a_given_up_request_is_valid(state: State, error: ErrorClass, code: str) -> None:
    queue = queue_of(REQUEST.topic).id
    row = Attempt(REQUEST.id, queue, REQUEST.topic, "http://s/", 3, "", state, 1, 2, 0.0, error=error)
    said = fault_of(REQUEST, CONSUMER, row)
    assert oasis.validate(said.body).findtext("faultcode") == f"q:{code}"
    assert etree.fromstring(said.body).findtext(".//{*}Header/{*}RelatesTo") == REQUEST.message_id
    element = etree.fromstring(fault_element(REQUEST, row))
    notify = etree.Element("{http://docs.oasis-open.org/wsn/b-2}Notify")
    notify.append(element)
    assert oasis.validate_element(notify) is notify
