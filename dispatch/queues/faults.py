"""What a user hears of a request that nobody has done: a SOAP fault, sent to where its answer is awaited. Pure.

A pull point takes only notifications, so there the fault is the message of one.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from arborcast.dispatch.delivery.envelope import topic_element
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.topic_model.namespaces import ARBORCAST_QUEUE, SOAP11, WSA, WSA_FAULT_ACTION, WSNT
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, parameter_blocks

_PULL_POINT = "/wsn/pullpoints/"

_NOTIFY_ACTION = "http://docs.oasis-open.org/wsn/bw-2/NotificationConsumer/Notify"


def fault_of(notification: Notification, reply_to: EndpointReference, row: Attempt) -> PushRequest:
    """The message that says to a user that its request has ended like this."""
    fault, related, action = _fault(row), _related(notification), WSA_FAULT_ACTION
    if _PULL_POINT in reply_to.address:
        action = _NOTIFY_ACTION
        fault = f'<wsnt:Notify xmlns:wsnt="{WSNT}">{fault_element(notification, row)}</wsnt:Notify>'
    body = (
        f'<soap:Envelope xmlns:soap="{SOAP11}" xmlns:wsa="{WSA}"><soap:Header>'
        f"<wsa:To>{escape(reply_to.address)}</wsa:To><wsa:Action>{action}</wsa:Action>{related}"
        f"{parameter_blocks(reply_to.reference_parameters)}</soap:Header><soap:Body>{fault}</soap:Body></soap:Envelope>"
    )
    headers = (("Content-Type", "text/xml; charset=utf-8"), ("SOAPAction", f'"{action}"'))
    return PushRequest(reply_to.address, headers, body.encode())


def fault_element(notification: Notification, row: Attempt) -> str:
    """The same as a self-contained wsnt:NotificationMessage."""
    topic = topic_element(notification.topic, notification.prefixes).decode()
    return (
        f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">{topic}<wsnt:ProducerReference>'
        f"<wsa:Address>{WSA}/anonymous</wsa:Address>"
        f"<wsa:ReferenceParameters>{_related(notification)}</wsa:ReferenceParameters></wsnt:ProducerReference>"
        f"<wsnt:Message>{_fault(row)}</wsnt:Message></wsnt:NotificationMessage>"
    )


def _fault(row: Attempt) -> str:
    code, words = _why(row)
    return (
        f'<soap:Fault xmlns:soap="{SOAP11}" xmlns:q="{ARBORCAST_QUEUE}"><faultcode>q:{code}</faultcode>'
        f"<faultstring>{escape(words)}</faultstring></soap:Fault>"
    )


def _related(notification: Notification) -> str:
    return f"<wsa:RelatesTo>{escape(notification.message_id)}</wsa:RelatesTo>"


def _why(row: Attempt) -> tuple[str, str]:
    """The subcode, and the same in words; nothing of servers, whom their users do not know."""
    if row.error == "invalid":
        return "Invalid", "every server of the queue says that this cannot be done"
    if row.state == "expired":
        return "Expired", f"no server has done this in time ({row.number} tries)"
    if row.state == "dropped":
        return "Dropped", "too much waits in this queue"
    return "Unanswered", f"no server has acknowledged this ({row.number} tries)"
