"""The waiting requests of queues: the next one for a server.

Beside the untried requests are those that wait again: for the same server, or for any server that has not refused
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.redelivery.amounts import OF_QUEUES
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery

_KEY = "lane = ? AND batch = ? AND part = ? AND place = ? AND redrive = ?"
_PLACES = "SELECT batch, part, place, redrive, refused FROM waiting WHERE lane = ?"

# Requests refused by a server that are skipped per turn: another server will get them soon.
_MOST_SKIPPED = 100

# Maximum number of merged requests in a push, with their reply addresses, and bytes of their payloads in memory.
_TOGETHER = 200
_REPLY_BYTES = 256 * 1024
_TOGETHER_BYTES = 16 * 1024 * 1024


class QueueRequest(NamedTuple):
    """A waiting request with its equal ones, itself first; the servers that have refused it; and whether it may have
    been pushed before a crash."""

    together: list[WaitingDelivery]
    refused: frozenset[str] = frozenset()
    maybe_sent: bool = False


class Backlog:
    """Used by one thread. The store's errors are raised."""

    def __init__(self, store: ParkedStore) -> None:
        self._store = store
        # By queue, the highest turn of requests that may have been pushed before the last crash.
        self._maybe_sent: dict[str, int] = {}

    def restart(self) -> None:
        """The log is read to its end: requests in flight in an earlier process wait again."""
        self._store.query(f"UPDATE waiting SET tried = 0 WHERE {OF_QUEUES} AND tried = 1 AND number = 0")  # noqa: S608  # its text is made of constants, values are bound
        # Also those with an awaited result: their server may have ended. They are due at the deadline of the result.
        waiting_again = (
            f"UPDATE waiting SET server = '' WHERE {OF_QUEUES} AND tried = 1 AND (server IS NULL OR awaits != '')"  # noqa: S608  # its text is made of constants, values are bound
        )
        self._store.query(waiting_again)
        newest = f"SELECT lane, MAX(turn) FROM waiting WHERE {OF_QUEUES} AND tried = 0 GROUP BY lane"  # noqa: S608  # its text is made of constants, values are bound
        self._maybe_sent = {str(lane): int(turn) for lane, turn in self._store.query(newest)}

    def next(self, lane: str, server: str, now_ms: int) -> QueueRequest | None:
        """The next request for a server: first one that it got before, then one that others got, then the head of the
        queue."""
        for waits_for in (server, ""):
            due = f"{_PLACES} AND server = ? AND due_ms <= ? ORDER BY due_ms LIMIT ?"
            for *place, refused in self._store.query(due, lane, waits_for, now_ms, _MOST_SKIPPED):
                refusing = frozenset(str(refused).split())
                head = None if server in refusing else self._store.get(Delivery(lane, Place(*place)))
                if head is not None:
                    return QueueRequest(self._with_equals(head, waits_for), refusing)
        heads = self._store.untried(lane, 1)
        if not heads:
            return None
        together = self._with_equals(heads[0], None)
        return QueueRequest(together, maybe_sent=any(map(self._is_maybe_sent, together)))

    def _with_equals(self, head: WaitingDelivery, server: str | None) -> list[WaitingDelivery]:
        if not head.notification.merge:
            return [head]
        # The first equal one is the head.
        return _few(self._store.equal(head, server, _TOGETHER))

    def anything(self, lane: str, now_ms: int) -> bool:
        due = "SELECT 1 FROM waiting WHERE lane = ? AND server IS NOT NULL AND due_ms <= ? LIMIT 1"
        return self._store.has_untried(lane) or bool(self._store.query(due, lane, now_ms))

    def served(self, lane: str, servers: Iterable[str], now_ms: int) -> list[str]:
        """The servers among these that may have a due request."""
        due = "SELECT 1 FROM waiting WHERE lane = ? AND server = ? AND due_ms <= ? LIMIT 1"
        if self._store.has_untried(lane) or self._store.query(due, lane, "", now_ms):
            return list(servers)
        waited_for, last = set(), ""
        while True:
            # From server to server in the index, independent of the number of requests.
            hop = "SELECT MIN(server) FROM waiting WHERE lane = ? AND server > ?"
            ((server,),) = self._store.query(hop, lane, last)
            if server is None:
                return [each for each in servers if each in waited_for]
            if self._store.query(due, lane, server, now_ms):
                waited_for.add(server)
            last = server

    def begun(self, request: QueueRequest) -> None:
        for each in request.together:
            self._store.begun(each.delivery)

    def requeue(self, together: Iterable[Delivery], server: str, refused: Collection[str], due_ms: int) -> None:
        """Let these wait again, for this server; empty for any server that has not refused them."""
        waits = f"UPDATE waiting SET server = ?, refused = ?, due_ms = ? WHERE {_KEY}"  # noqa: S608  # its text is made of constants, values are bound
        for delivery in together:
            self._store.query(waits, server, " ".join(sorted(refused)), due_ms, delivery.subscription, *delivery.place)

    def release(self, lane: str, server: str, now_ms: int) -> None:
        """The server failed or left: another may get its requests, except those that it accepted."""
        free = "UPDATE waiting SET server = '', due_ms = MIN(due_ms, ?) WHERE lane = ? AND server = ? AND awaits = ''"
        self._store.query(free, now_ms, lane, server)

    def refused(self, delivery: Delivery) -> frozenset[str]:
        found = self._store.query(f"SELECT refused FROM waiting WHERE {_KEY}", delivery.subscription, *delivery.place)  # noqa: S608  # its text is made of constants, values are bound
        return frozenset(str(found[0][0]).split()) if found else frozenset()

    def refused_by_all(self, lane: str, servers: Collection[str]) -> Iterator[WaitingDelivery]:
        # The plus keeps SQLite from the index of all waiting requests.
        for *place, refused in self._store.query(f"{_PLACES} AND refused != '' AND +server IS NOT NULL", lane):
            if servers and set(str(refused).split()).issuperset(servers):
                waiting = self._store.get(Delivery(lane, Place(*place)))
                if waiting is not None:
                    yield waiting

    def next_due_ms(self, lane: str) -> int | None:
        next_due = "SELECT MIN(due_ms) FROM waiting WHERE lane = ? AND server IS NOT NULL"
        ((due_ms,),) = self._store.query(next_due, lane)
        return None if due_ms is None else int(due_ms)

    def clock_put_back(self, now_ms: int) -> None:
        """Requests that are due in the future, and await no result, are due now."""
        due = f"""UPDATE waiting SET due_ms = ?
        WHERE {OF_QUEUES} AND server IS NOT NULL AND awaits = '' AND due_ms > ?"""  # noqa: S608  # its text is made of constants, values are bound
        self._store.query(due, now_ms, now_ms)

    def _is_maybe_sent(self, waiting: WaitingDelivery) -> bool:
        delivery = waiting.delivery
        last = self._maybe_sent.get(delivery.subscription)
        if last is None:
            return False
        rows = self._store.query(f"SELECT turn FROM waiting WHERE {_KEY}", delivery.subscription, *delivery.place)  # noqa: S608  # its text is made of constants, values are bound
        return any(turn <= last for (turn,) in rows)


def _few(equal: Iterator[WaitingDelivery]) -> list[WaitingDelivery]:
    """The first of these, and as many others as fit with it."""
    found: list[WaitingDelivery] = []
    room, size = _REPLY_BYTES, _TOGETHER_BYTES
    for each in equal:
        reply_to = each.notification.reply_to
        if reply_to is not None:
            room -= len(reply_to.address) + sum(map(len, reply_to.reference_parameters))
            room -= len(each.notification.message_id)
        size -= len(each.notification.payload)
        if found and min(room, size) < 0:
            break
        found.append(each)
    return found
