"""A change of the group's representative: notifications that its predecessor may not have forwarded are sent again.

Notifications of members for other groups wait for the former representative. The successor gets them from the members
again, and sends its own to the other groups; duplicates are dropped.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import closing

from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.ingest.federation.receiver import REMEMBERED_S
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.notifications import Notification, encode, notification_in, replayed
from arborcast.topic_model.records.peers import is_forwarded
from arborcast.topic_model.subscriptions import Subscription

# Members detect a silent representative with a delay, and accepted notifications may not be forwarded yet.
_BEFORE_S = 15.0

_WRITE_S = 30.0

_AT_ONCE = 500


def span_s(silent_ms: int) -> float:
    """The period to send again, for a predecessor silent for this time; at most the memory of duplicates."""
    return min(silent_ms / 1000 + _BEFORE_S, REMEMBERED_S)


def send_again(kafka: KafkaSettings, links: Sequence[Subscription], since_s: float, position: int) -> int:
    """Append again, for these links only, the notifications that this engine accepted since then, at this position of
    the control log; returns their number. Notifications of other engines are left to their senders. Raises
    InfrastructureError."""
    since_ms, replay, sent = int(since_s * 1000), f"takeover-{secrets.token_hex(4)}", 0
    with LogScan(kafka, "notifications") as log, closing(DurableWriter(kafka, "notifications")) as writer:
        for record in log.read_from(log.at(since_ms - CLOCKS_APART_MS), log.ends()):
            each = notification_in(record)
            if each is None or each.path or each.only or each.accepted_ms < since_ms:
                continue
            for number, link in enumerate(links):
                if _is_for(each, link):
                    again = replayed(each, f"{replay}-{number}", link.id, int(time.time() * 1000), position)
                    key, value = encode(again)
                    writer.send(partition_of_key(key, writer.partitions), value, key)
                    sent += 1
                    if sent % _AT_ONCE == 0:
                        writer.settle(_WRITE_S)
        writer.settle(_WRITE_S)
    return sent


def _is_for(notification: Notification, link: Subscription) -> bool:
    if link.peer is None or not is_forwarded(notification, link.peer):
        return False
    return all(parse_normal(each.normal).matches(notification.topic) for each in link.topics)
