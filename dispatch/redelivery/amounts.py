"""The amount waiting in each lane, and its limit.

Triggers of the database maintain it in the same transactions: for queues, and with a limit for all lanes.
"""

from __future__ import annotations

from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.settings import RetrySettings

OF_QUEUES = "lane >= 'queue:' AND lane < 'queue;'"


class Amounts:
    """Used by one thread. The store's errors are raised."""

    def __init__(self, store: ParkedStore, settings: RetrySettings) -> None:
        self._store = store
        self._messages, self._bytes = settings.parked_messages, settings.parked_bytes
        counted = "1" if self._messages or self._bytes else OF_QUEUES
        for statement in (
            "CREATE TEMP TABLE amount (lane TEXT PRIMARY KEY, messages INTEGER NOT NULL, bytes INTEGER NOT NULL)"
            " WITHOUT ROWID",
            f"INSERT INTO amount SELECT lane, COUNT(*), SUM(LENGTH(notification)) FROM waiting WHERE {counted}"  # noqa: S608 - constants
            " GROUP BY lane",
            f"""CREATE TEMP TRIGGER amount_more AFTER INSERT ON main.waiting WHEN {counted.replace("lane", "NEW.lane")}
            BEGIN INSERT OR IGNORE INTO amount VALUES (NEW.lane, 0, 0);
            UPDATE amount SET messages = messages + 1, bytes = bytes + LENGTH(NEW.notification) WHERE lane = NEW.lane;
            END""",  # noqa: S608 - constants
            f"""CREATE TEMP TRIGGER amount_less AFTER DELETE ON main.waiting WHEN {counted.replace("lane", "OLD.lane")}
            BEGIN UPDATE amount SET messages = messages - 1, bytes = bytes - LENGTH(OLD.notification)
            WHERE lane = OLD.lane; DELETE FROM amount WHERE lane = OLD.lane AND messages <= 0; END""",  # noqa: S608 - constants
        ):
            store.query(statement)

    def count(self, lane: str) -> int:
        """The number of messages in a queue, with those in flight."""
        return sum(int(count) for (count,) in self._store.query("SELECT messages FROM amount WHERE lane = ?", lane))

    def too_much(self, lane: str) -> str:
        """The exceeded limit of a lane, as text; empty without one."""
        if not (self._messages or self._bytes):
            return ""
        for messages, size in self._store.query("SELECT messages, bytes FROM amount WHERE lane = ?", lane):
            if self._messages and messages > self._messages:
                return f"{messages} messages waited for its subscription, retry.parked_messages is {self._messages}"
            if self._bytes and size > self._bytes:
                return f"{size} bytes waited for its subscription, retry.parked_bytes is {self._bytes}"
        return ""
