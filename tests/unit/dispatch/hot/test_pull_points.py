"""Messages of pull points as they are stored."""

from __future__ import annotations

from lxml import etree

from arborcast.client.received import read_push
from arborcast.dispatch.hot.sink_journal import stored_element
from arborcast.topic_model.namespaces import SOAP11
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.oasis import validate_element

WSNT = "{http://docs.oasis-open.org/wsn/b-2}"
WSA = "{http://www.w3.org/2005/08/addressing}"

SUBSCRIPTION = Subscription(
    "s", EndpointReference("http://h/wsn/pullpoints/p"), "http://h/wsn/subscriptions/s?a&b", pull_point="p"
)


def test_what_is_stored_is_a_whole_message() -> None:
    producer_reference = b'<n:ProducerReference xmlns:n="http://docs.oasis-open.org/wsn/b-2"><a:Address \
xmlns:a="http://www.w3.org/2005/08/addressing">http://p/</a:Address></n:ProducerReference>'
    given = Notification("n", TopicPath("{urn:t}a/b"), b'<o:x xmlns:o="urn:o"> 1 </o:x>', 5, producer_reference)
    stored = stored_element(given, SUBSCRIPTION)
    assert given.payload in stored, "as it was sent"
    assert b"Package" not in stored
    message = etree.fromstring(stored)
    assert message.tag == f"{WSNT}NotificationMessage"
    assert message.findtext(f"{WSNT}SubscriptionReference/{WSA}Address") == SUBSCRIPTION.address
    assert message.findtext(f"{WSNT}ProducerReference/{WSA}Address") == "http://p/"
    topic = message.find(f"{WSNT}Topic")
    assert topic is not None
    prefix, _, path = (topic.text or "").partition(":")
    assert (topic.nsmap[prefix], path) == ("urn:t", "a/b")
    notify = f'<w:Notify xmlns:w="{WSNT[1:-1]}">{stored.decode()}</w:Notify>'
    validate_element(etree.fromstring(notify))
    body = f'<e:Envelope xmlns:e="{SOAP11}"><e:Body>{notify}</e:Body></e:Envelope>'.encode()
    (received,) = read_push(body, b"text/xml; charset=utf-8")
    assert received.notification_id == "n"
    assert read_push(body, b"text/xml; charset=utf-8", ids="of the header")[0].notification_id == "of the header"
