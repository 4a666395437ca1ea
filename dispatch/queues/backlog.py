"""What waits in queues: which request is next for a server.

Beside what waits for everybody there is what was sent before: to be sent to the same server again, or to anybody who
has not refused it. That is in a table of its own, in the file of what is parked and its transactions. Lost with it, it
costs another question to a server that has refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery

_SENT = (
    """CREATE TABLE IF NOT EXISTS sent (
    lane TEXT NOT NULL, batch INTEGER NOT NULL, part INTEGER NOT NULL, place INTEGER NOT NULL, redrive INTEGER NOT NULL,
    server TEXT NOT NULL, refused TEXT NOT NULL, due_ms INTEGER NOT NULL,
    PRIMARY KEY (lane, batch, part, place, redrive)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS sent_due ON sent (lane, server, due_ms)",
    "CREATE INDEX IF NOT EXISTS sent_next ON sent (lane, due_ms)",
    "CREATE INDEX IF NOT EXISTS sent_refused ON sent (lane) WHERE refused != ''",
    """CREATE TRIGGER IF NOT EXISTS sent_ended AFTER DELETE ON waiting
    WHEN OLD.lane >= 'queue:' AND OLD.lane < 'queue;' BEGIN
    DELETE FROM sent WHERE lane = OLD.lane AND batch = OLD.batch AND part = OLD.part AND place = OLD.place
    AND redrive = OLD.redrive; END""",
    # Who was to go with it goes by itself.
    """CREATE TRIGGER IF NOT EXISTS sent_alone AFTER DELETE ON sent BEGIN
    UPDATE sent SET server = '' WHERE lane = OLD.lane
    AND server = '+' || OLD.batch || '.' || OLD.part || '.' || OLD.place || '.' || OLD.redrive; END""",
)

_OF_QUEUES = "lane >= 'queue:' AND lane < 'queue;'"

_COUNT = (
    "CREATE TEMP TABLE queued (lane TEXT PRIMARY KEY, requests INTEGER NOT NULL) WITHOUT ROWID",
    f"INSERT INTO queued SELECT lane, COUNT(*) FROM waiting WHERE {_OF_QUEUES} GROUP BY lane",  # noqa: S608  # constants
    """CREATE TEMP TRIGGER queued_more AFTER INSERT ON main.waiting
    WHEN NEW.lane >= 'queue:' AND NEW.lane < 'queue;' BEGIN
    INSERT OR IGNORE INTO queued VALUES (NEW.lane, 0);
    UPDATE queued SET requests = requests + 1 WHERE lane = NEW.lane;
    END""",
    """CREATE TEMP TRIGGER queued_less AFTER DELETE ON main.waiting
    WHEN OLD.lane >= 'queue:' AND OLD.lane < 'queue;' BEGIN
    UPDATE queued SET requests = requests - 1 WHERE lane = OLD.lane;
    DELETE FROM queued WHERE lane = OLD.lane AND requests <= 0;
    END""",
)

# What was under way when the last one ended waits again, as it did before.
_RESTART = (
    f"UPDATE waiting SET tried = 0 WHERE {_OF_QUEUES} AND tried = 1 AND number = 0",  # noqa: S608  # constants
    "INSERT OR IGNORE INTO sent SELECT lane, batch, part, place, redrive, '', '', due_ms FROM waiting"  # noqa: S608
    f" WHERE {_OF_QUEUES} AND tried = 1",
    """UPDATE sent SET due_ms = (SELECT due_ms FROM waiting WHERE waiting.lane = sent.lane
    AND waiting.batch = sent.batch AND waiting.part = sent.part AND waiting.place = sent.place
    AND waiting.redrive = sent.redrive)
    WHERE due_ms = ?""",
)

_KEY = "lane = ? AND batch = ? AND part = ? AND place = ? AND redrive = ?"

# It is under way.
_NEVER_MS = 1 << 62

# Of those that a server has refused so many are passed over in a turn: soon another one has them.
_PASSED_OVER = 100


# So many equal requests are done together, and no more than so many bytes: of what names where the answers are awaited,
# which is all in one push, and of payloads, which are in memory.
_TOGETHER = 200
_TOGETHER_ASKED = 256 * 1024
_TOGETHER_BYTES = 16 * 1024 * 1024


class QueueRequest(NamedTuple):
    """A request that waits, with those that are equal, itself first; and who has refused it. `maybe_sent` says that it
    may have been, though nobody knows."""

    together: list[WaitingDelivery]
    refused: frozenset[str] = frozenset()
    maybe_sent: bool = False


class Backlog:
    """Used by one thread. The store's errors are raised."""

    def __init__(self, store: ParkedStore) -> None:
        self._store = store
        for statement in (*_SENT, *_COUNT):
            store.ask(statement)
        # By queue, up to which turn requests may have been sent before the last crash.
        self._maybe_sent: dict[str, int] = {}

    def restart(self) -> None:
        """All is known that was parked until now: what an earlier life had under way waits again, and is marked."""
        tried, missing, due = _RESTART
        self._store.ask(tried)
        self._store.ask(missing)
        self._store.ask(due, _NEVER_MS)
        found = self._store.ask(
            f"SELECT lane, MAX(turn) FROM waiting WHERE {_OF_QUEUES} AND tried = 0 GROUP BY lane"  # noqa: S608
        )
        self._maybe_sent = {str(lane): int(turn) for lane, turn in found}

    def next(self, lane: str, server: str, now_ms: int) -> QueueRequest | None:
        """What this server is to have: what it was sent before, then what others were, then the head of the queue."""
        for sent_to in (server, ""):
            for *place, refused in self._store.ask(
                "SELECT batch, part, place, redrive, refused FROM sent WHERE lane = ? AND server = ? AND due_ms <= ?"
                " ORDER BY due_ms LIMIT ?",
                *(lane, sent_to, now_ms, _PASSED_OVER),
            ):
                refusing = frozenset(str(refused).split())
                waiting = None if server in refusing else self._store.get(Delivery(lane, Place(*place)))
                if waiting is not None:
                    return QueueRequest([waiting, *self._sent_with(waiting.delivery)], refusing)
        heads = self._store.untried(lane, 1)
        if heads and heads[0].notification.merge:
            # The first of its equals is the head.
            heads = _few(self._store.equal(lane, heads[0].notification.merge, _TOGETHER))
        return QueueRequest(heads, maybe_sent=any(map(self._is_maybe_sent, heads))) if heads else None

    def _sent_with(self, delivery: Delivery) -> Iterator[WaitingDelivery]:
        for place in self._store.ask(
            "SELECT batch, part, place, redrive FROM sent WHERE lane = ? AND server = ?",
            *(delivery.subscription, _with(delivery)),
        ):
            waiting = self._store.get(Delivery(delivery.subscription, Place(*place)))
            if waiting is not None:
                yield waiting

    def anything(self, lane: str, now_ms: int) -> bool:
        """Whether something is to be sent now."""
        due = "SELECT 1 FROM sent WHERE lane = ? AND due_ms <= ? LIMIT 1"
        return self._store.has_untried(lane) or bool(self._store.ask(due, lane, now_ms))

    def begun(self, request: QueueRequest) -> None:
        """It is under way."""
        for delivery, tries, _ in request.together:
            self._store.begun(delivery)
            if tries.number:
                self._store.ask(f"UPDATE sent SET due_ms = ? WHERE {_KEY}", _NEVER_MS, *_row(delivery))  # noqa: S608

    def again(self, together: list[Delivery], server: str, refused: Collection[str], due_ms: int) -> None:
        """These wait again, for this server, empty for any that has not refused them; the others go with the first."""
        for number, delivery in enumerate(together):
            whose = _with(together[0]) if number else server
            self._store.ask(
                "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *(*_row(delivery), whose, " ".join(sorted(refused)), due_ms),
            )

    def release(self, lane: str, server: str, now_ms: int) -> None:
        """This server is sick, or gone: what was to be sent to it again anybody may have."""
        self._store.ask(
            "UPDATE sent SET server = '', due_ms = MIN(due_ms, ?) WHERE lane = ? AND server = ? AND due_ms < ?",
            *(now_ms, lane, server, _NEVER_MS),
        )

    def refused_by_all(self, lane: str, servers: Collection[str]) -> Iterator[WaitingDelivery]:
        """What waits, and every one of these has refused."""
        for *place, refused in self._store.ask(
            "SELECT batch, part, place, redrive, refused FROM sent WHERE lane = ? AND refused != '' AND due_ms < ?",
            *(lane, _NEVER_MS),
        ):
            if servers and set(str(refused).split()).issuperset(servers):
                waiting = self._store.get(Delivery(lane, Place(*place)))
                if waiting is not None:
                    yield waiting

    def next_due_ms(self, lane: str) -> int | None:
        """When the next of what was sent is to be sent again."""
        ((due_ms,),) = self._store.ask("SELECT MIN(due_ms) FROM sent WHERE lane = ? AND due_ms < ?", lane, _NEVER_MS)
        return None if due_ms is None else int(due_ms)

    def count(self, lane: str) -> int:
        """How many requests there are, those under way among them."""
        return sum(int(count) for (count,) in self._store.ask("SELECT requests FROM queued WHERE lane = ?", lane))

    def oldest_ms(self, lane: str, besides: Collection[Delivery]) -> int:
        """When the oldest was accepted, those `besides` not counted; 0 without any."""
        return self._store.expires_ms(lane, 0, besides) or 0

    def clock_put_back(self, now_ms: int) -> None:
        """What is due later than now is due now."""
        self._store.ask("UPDATE sent SET due_ms = ? WHERE due_ms > ? AND due_ms < ?", now_ms, now_ms, _NEVER_MS)

    def _is_maybe_sent(self, waiting: WaitingDelivery) -> bool:
        last = self._maybe_sent.get(waiting.delivery.subscription)
        if last is None:
            return False
        asked = self._store.ask(f"SELECT turn FROM waiting WHERE {_KEY}", *_row(waiting.delivery))  # noqa: S608
        return any(turn <= last for (turn,) in asked)


def _few(equal: Iterator[WaitingDelivery]) -> list[WaitingDelivery]:
    """The first of these, and as many others as fit beside it."""
    found: list[WaitingDelivery] = []
    asked, size = _TOGETHER_ASKED, _TOGETHER_BYTES
    for each in equal:
        reply_to = each.notification.reply_to
        if reply_to is not None:
            asked -= len(reply_to.address) + sum(map(len, reply_to.reference_parameters))
            asked -= len(each.notification.message_id)
        size -= len(each.notification.payload)
        if found and min(asked, size) < 0:
            break
        found.append(each)
    return found


def _with(delivery: Delivery) -> str:
    """In the place of a server: it goes with this one."""
    return "+" + ".".join(map(str, delivery.place))


def _row(delivery: Delivery) -> tuple[str | int, ...]:
    return (delivery.subscription, *delivery.place)
