"""What is pushed, held against the schemas like every answer."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.delivery.envelope import Envelope
from tests.support import oasis
from topic_model.records.notifications import Notification
from topic_model.subscriptions import EndpointReference, Subscription
from topic_model.topics import TopicPath

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
