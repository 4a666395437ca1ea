"""When the representative of our group is another one: what its predecessor may not have passed on is sent again.

What members accept for other groups waits for the one that is gone. Its successor gets it from them once more, and has
its own go to the other groups; who has it already knows it again.
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
from arborcast.ingest.federation.receiver import REMEMBERED_S
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.notifications import Notification, encode, notification_in, replayed
from arborcast.topic_model.records.peers import goes_over
from arborcast.topic_model.subscriptions import Subscription

# A member takes a moment to see that its representative does not answer, and what that had taken may not have gone on.
_BEFORE_S = 15.0

_WRITE_S = 30.0

_AT_ONCE = 500


def span_s(silent_ms: int) -> float:
    """How far back to look when the predecessor had been silent for so long; not further than is known again."""
    return min(silent_ms / 1000 + _BEFORE_S, REMEMBERED_S)


def send_again(kafka: KafkaSettings, links: Sequence[Subscription], since_s: float, position: int) -> int:
    """Append once more, for these links alone, what this engine has accepted since then, with the control log at this
    position; how many. What came from others is left to who has sent it. Raises InfrastructureError."""
    since_ms, replay, sent = int(since_s * 1000), f"takeover-{secrets.token_hex(4)}", 0
    with LogScan(kafka, "notifications") as log, closing(DurableWriter(kafka, "notifications")) as writer:
        for record in log.read_from(log.at(since_ms), log.ends()):
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
    if link.peer is None or not goes_over(notification, link.peer):
        return False
    return all(parse_normal(each.normal).matches(notification.topic) for each in link.topics)
