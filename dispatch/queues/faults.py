"""SOAP faults for the users of queues whose request no worker has completed.

A pull point takes only notifications: there the fault is the message of one.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from xml.sax.saxutils import escape

from arborcast.core.recent import Recent
from arborcast.dispatch.delivery.envelope import NOTIFY_ACTION, topic_element
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult, Transport
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.redelivery.pushes import RedeliveryJournal
from arborcast.topic_model.namespaces import ARBORCAST_QUEUE, SOAP11, WSA, WSA_FAULT_ACTION, WSNT
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import EndpointReference, parameter_blocks, queue_topic

logger = logging.getLogger(__name__)

_PULL_POINT = "/wsn/pullpoints/"


def fault_of(notification: Notification, reply_to: EndpointReference, row: Attempt) -> PushRequest:
    fault, related, action = _fault(row), _related(notification), WSA_FAULT_ACTION
    if _PULL_POINT in reply_to.address:
        action = NOTIFY_ACTION
        fault = f'<wsnt:Notify xmlns:wsnt="{WSNT}">{fault_element(notification, row)}</wsnt:Notify>'
    body = (
        f'<soap:Envelope xmlns:soap="{SOAP11}" xmlns:wsa="{WSA}"><soap:Header>'
        f"<wsa:To>{escape(reply_to.address)}</wsa:To><wsa:Action>{action}</wsa:Action>{related}"
        f"{parameter_blocks(reply_to.reference_parameters)}</soap:Header><soap:Body>{fault}</soap:Body></soap:Envelope>"
    )
    headers = (("Content-Type", "text/xml; charset=utf-8"), ("SOAPAction", f'"{action}"'))
    return PushRequest(reply_to.address, headers, body.encode())


def fault_element(notification: Notification, row: Attempt) -> str:
    """The fault as a self-contained wsnt:NotificationMessage."""
    topic = topic_element(notification.topic, notification.prefixes).decode()
    return (
        f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">{topic}<wsnt:ProducerReference>'
        f"<wsa:Address>{WSA}/anonymous</wsa:Address>"
        f"<wsa:ReferenceParameters>{_related(notification)}</wsa:ReferenceParameters></wsnt:ProducerReference>"
        f"<wsnt:Message>{_fault(row)}</wsnt:Message></wsnt:NotificationMessage>"
    )


def _fault(row: Attempt) -> str:
    code, text = _why(row)
    return (
        f'<soap:Fault xmlns:soap="{SOAP11}" xmlns:q="{ARBORCAST_QUEUE}"><faultcode>q:{code}</faultcode>'
        f"<faultstring>{escape(text)}</faultstring></soap:Fault>"
    )


def _related(notification: Notification) -> str:
    return f"<wsa:RelatesTo>{escape(notification.message_id)}</wsa:RelatesTo>"


def _why(row: Attempt) -> tuple[str, str]:
    """The subcode and its text, without information about workers, which users do not have."""
    if row.error == "invalid":
        return "Invalid", "every worker of the queue refused this"
    if row.state == "expired":
        return "Expired", f"no server completed this in time ({row.number} tries)"
    if row.state == "dropped":
        return "Dropped", "this queue is full"
    return "Unanswered", f"no worker has acknowledged this ({row.number} tries)"


# Parallel fault messages; above `_MOST` waiting ones no requests are ended.
_MOST_PARALLEL = 32
_MOST = 1_000

# Bytes of addresses, twice: the failure of each is logged once an hour.
_LOGGED = 1024 * 1024


class QueueUsers:
    """Sends each fault once: the logs have the end of a request, too. Used by one thread."""

    def __init__(self, transport: Transport, journal: RedeliveryJournal) -> None:
        self._transport = transport
        self._journal = journal
        self._waiting: deque[PushRequest] = deque()
        self._in_flight = 0
        self._logged: Recent[str, bool] = Recent(_LOGGED, age_s=3_600.0)

    @property
    def too_many(self) -> bool:
        """Whether too many fault messages wait to end more requests."""
        return len(self._waiting) > _MOST

    def unanswered(self, notification: Notification, row: Attempt) -> None:
        """Send the fault of an ended request, if it is one of a queue: other subscriptions have no answers."""
        if notification.reply_to is None or queue_topic(row.subscription) is None:
            return
        if notification.reply_point:
            # Not through the gateway, which would require credentials.
            element = fault_element(notification, row).encode()
            self._journal.put(notification.reply_point, StoredMessage(element, accepted_ms=row.started_ms))
        else:
            self._waiting.append(fault_of(notification, notification.reply_to, row))
            self._send()

    def _send(self) -> None:
        while self._waiting and self._in_flight < _MOST_PARALLEL:
            self._in_flight += 1
            request = self._waiting.popleft()
            self._transport.submit(request, partial(self._sent, request.url))

    def _sent(self, url: str, result: PushResult) -> None:
        self._in_flight -= 1
        if not (200 <= result.status < 300 or self._logged.get(url)):
            self._logged.put(url, True, len(url))
            why = result.detail or f"HTTP {result.status}"
            logger.warning("a user did not get the fault of an ended request: %s", why, extra={"endpoint": url})
        self._send()
