"""Users of queues who await an answer, told that none will come. Once: that a request has ended is in the logs, too."""

from __future__ import annotations

import logging
from collections import deque

from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult, Transport
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.queues.faults import fault_element, fault_of
from arborcast.dispatch.redelivery.pushes import RedeliveryJournal
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import queue_topic

# Users are told so many at a time; with more than this to be told no more requests are ended.
_AT_A_TIME = 32
_MOST = 1_000

logger = logging.getLogger(__name__)


class QueueUsers:
    """Used by one thread."""

    def __init__(self, transport: Transport, journal: RedeliveryJournal) -> None:
        self._transport = transport
        self._journal = journal
        self._waiting: deque[PushRequest] = deque()
        self._under_way = 0

    @property
    def too_many(self) -> bool:
        """Whether so many are to be told that it is time to wait."""
        return len(self._waiting) > _MOST

    def unanswered(self, notification: Notification, row: Attempt) -> None:
        """Tell the user of a request that it has ended like this. Who is subscribed to its topic as ever owes no
        answer."""
        if notification.reply_to is None or queue_topic(row.subscription) is None:
            return
        if notification.reply_point:
            # No way through the gateway, which would ask who we are.
            element = fault_element(notification, row).encode()
            self._journal.put(notification.reply_point, StoredMessage(element, accepted_ms=row.started_ms))
        else:
            self._waiting.append(fault_of(notification, notification.reply_to, row))
            self._tell()

    def _tell(self) -> None:
        while self._waiting and self._under_way < _AT_A_TIME:
            self._under_way += 1
            self._transport.submit(self._waiting.popleft(), self._told)

    def _told(self, result: PushResult) -> None:
        self._under_way -= 1
        if not 200 <= result.status < 300:
            logger.warning(
                "a user could not be told that its request has ended: %s", result.detail or f"HTTP {result.status}"
            )
        self._tell()
