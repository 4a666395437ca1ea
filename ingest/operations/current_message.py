"""GetCurrentMessage, and current messages for new subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from arborcast.core.backoff import Backoff, repeated
from arborcast.core.errors import InfrastructureError, TopicNotSupported
from arborcast.core.eventlog.client import RETRY_AFTER_S
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.removal import remove_keys
from arborcast.core.eventlog.scan import LogReader
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool, within
from arborcast.ingest.access.grants import check_read
from arborcast.ingest.addresses import Target
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply, reply_of
from arborcast.topic_model.expressions import XPathPattern, compile_normal
from arborcast.topic_model.namespaces import ACTION_BW, CURRENT_MESSAGE, WSNT, wsnt
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing.history import standing
from arborcast.topic_model.subscriptions import Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire import limits
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest, OperationRefused, TooLarge, UnsupportedPolicy
from arborcast.wire.times import to_ms
from arborcast.wire.topics import read_topic

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# A long log is read in pieces, so that others get their turn.
_PIECE_S = 1.0

_RETRY_S = 0.5

# Topics that are matched before others get their turn: with the most expensive expression 0.1 s.
_MATCHED_AT_ONCE = 1_000

# A record may be compacted between finding and reading it; then a newer one exists.
_ATTEMPTS = 3


# Memory has only the position of each topic's last record, so payloads cost nothing until they are requested. Each
# answer covers the log up to its current end: an acknowledged message of any worker is found.
class RetainedMessages:
    """Current messages, for the event loop; one thread does the reading."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._timeout_s = kafka.request_timeout_s
        self._offsets: dict[TopicPath, int] = {}
        self._follower: LogFollower[tuple[TopicPath, bool]] = LogFollower(
            kafka, "retained", lambda key, value: (TopicPath(key.decode()), value is not None), self._take
        )
        self._reader = LogReader(kafka, "retained")
        self._thread = pool("retained", 1)

    async def warm(self) -> None:
        """Read the log to its end once, so that the first request does not wait for it. Never raises."""
        while True:
            try:
                await self._run(lambda: self._follower.read_to_end(_PIECE_S))
            except InfrastructureError as error:
                logger.debug("the current messages are not complete yet: %s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def topics(
        self, matches: Callable[[TopicPath], bool], among: Sequence[TopicPath] | None = None
    ) -> list[TopicPath]:
        """The topics with a current message that `matches` accepts, `among` these or all; it is called in another
        thread.

        Raises InfrastructureError.
        """
        paths, found = await self._run(lambda: self._topics(among)), list[TopicPath]()
        for begin in range(0, len(paths), _MATCHED_AT_ONCE):
            some = paths[begin : begin + _MATCHED_AT_ONCE]
            found += await self._run(partial(list, filter(matches, some)))
        return found

    async def latest(self, paths: Sequence[TopicPath]) -> list[Notification]:
        """The current messages of these topics, in the order of acceptance; topics without one are omitted.

        All are in memory at once: request few at a time. Raises InfrastructureError.
        """
        return await self._run(lambda: self._latest(paths))

    async def end(self) -> int:
        """The offset behind the last record. Raises InfrastructureError."""
        return await self._run(lambda: self._follower.read_to_end(self._timeout_s))

    async def remove(self, paths: Sequence[TopicPath], end: int) -> None:
        """Remove the messages of these topics, except those that are stored since this end. Raises
        InfrastructureError."""
        await asyncio.to_thread(remove_keys, self._kafka, "retained", [path.encode() for path in paths], {0: end})

    def close(self) -> None:
        self._thread.submit(self._follower.close)
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], _T]) -> _T:
        # There is one thread: while Kafka is away, a request must not wait for the time limits of all earlier ones.
        return await within(self._timeout_s, self._thread, work, "the current messages could not be read in time")

    def _take(self, record: tuple[TopicPath, bool], offset: int) -> None:
        path, present = record
        if present:
            self._offsets[path] = offset
        else:
            self._offsets.pop(path, None)

    def _topics(self, among: Sequence[TopicPath] | None) -> list[TopicPath]:
        self._follower.read_to_end(self._timeout_s)
        return [path for path in (self._offsets if among is None else among) if path in self._offsets]

    def _latest(self, paths: Sequence[TopicPath]) -> list[Notification]:
        for _ in range(_ATTEMPTS):
            self._follower.read_to_end(self._timeout_s)
            offsets = sorted({self._offsets[path] for path in paths if path in self._offsets})
            found = self._reader.read(offsets) if offsets else {}
            if len(found) == len(offsets):
                return [notifications.decode(found[offset]) for offset in offsets]
            self._forget_removed(paths, set(offsets) - found.keys())
        raise InfrastructureError("the current messages change faster than they can be read", RETRY_AFTER_S)

    def _forget_removed(self, paths: Sequence[TopicPath], missing: Collection[int]) -> None:
        """Forget those of these topics whose record is missing, and which have no newer one: after some days without a
        read the null of an erasure is compacted away, too."""
        self._follower.read_to_end(self._timeout_s)
        for path in paths:
            if self._offsets.get(path) in missing:
                del self._offsets[path]


# Maximum number of current messages in memory at a time.
_AT_A_TIME = 16

# Between looks for messages of removed topics: a topic that is only moved away and back keeps its message.
_LOOK_S = 3600.0
_REMOVED_AT_ONCE = 10_000

# Topics of a subscription that are checked for a current message instead of all topics with one: some milliseconds.
_FEW = 2_000


async def get_current_message(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """The last notification of a topic that retains it."""
    element = request.operation.find(wsnt("Topic"))
    if element is None:
        raise InvalidRequest("GetCurrentMessage has no wsnt:Topic")
    path = read_topic(element)
    check_read(request.caller, path)
    tree = gateway.table.topics
    if gateway.topics.fixed and path not in tree:
        raise TopicNotSupported(f"the topic {path!r} is not in the fixed topic set")
    if not gateway.retains(path):
        raise _none(f"the topic {path[:200]!r} does not keep its last message")
    found = await gateway.retained.latest([path]) if path in tree else []
    if not found:
        raise _none(f"there was no message on the topic {path[:200]!r} yet")
    if found[0].is_over(to_ms(gateway.now())):
        raise _none(f"the last message on the topic {path[:200]!r} was valid for a time that is over")
    name = "wsnt", WSNT, "GetCurrentMessageResponse"
    return reply_of(name, found[0].payload.decode(), port_type=f"{ACTION_BW}/NotificationProducer")


async def check_few(gateway: Gateway, subscription: Subscription, client: str) -> None:
    """Raises UnsupportedPolicy if too many topics of a subscription have a current message, and TooManyRequests if
    these pushes, counted as the client's own, exceed its rate."""
    paths = await _topics_with_message(gateway, subscription)
    if len(paths) > limits.CURRENT_MESSAGES:
        raise UnsupportedPolicy(
            f"{len(paths)} topics of this subscription have a current message, at most {limits.CURRENT_MESSAGES} can "
            "be sent: subscribe to fewer, or without this policy",
            (CURRENT_MESSAGE,),
        )
    if gateway.gate is not None:
        gateway.gate.rates.deliveries(client, lambda: len(paths))


class StateStart(NamedTuple):
    """The start of a subscription's present state: the offset of its record, and the time just before. `new`: the
    subscription did not exist before."""

    offset: int
    at_ms: int
    new: bool = False

    def is_delivered_by_job(self, subscription: Subscription, notification: Notification) -> bool:
        """Whether a notification was accepted after the start, so that the job delivers it to the subscription.

        After a restore from a backup, earlier stamps are invalid, but earlier times are not.
        """
        if notification.accepted_ms < self.at_ms:
            return False
        before = notification.control <= self.offset
        return standing(subscription, before, notification.accepted_ms) == "belongs" if self.new else not before


async def send_current_messages(gateway: Gateway, subscription: Subscription, since: StateStart) -> None:
    """Queue the current messages of its topics for an active subscription: they are stored when this returns.

    They are earlier notifications with their ids, without those that the job delivers, and without expired ones. Their
    lifespan counts from now: the last value of a topic may be older than any other notification in delivery.
    """
    # Messages accepted before the subscription was active, and still on the way into the log, belong here.
    await gateway.notifications.settled()
    # Again: messages accepted since the subscription was active reach it anyway, earlier ones are here.
    paths = await _topics_with_message(gateway, subscription)
    for start in range(0, len(paths), _AT_A_TIME):
        current = await gateway.retained.latest(paths[start : start + _AT_A_TIME])
        now_ms, position = to_ms(gateway.now()), gateway.table.position
        only = [
            msgspec.structs.replace(
                notification, only=subscription.id, accepted_ms=now_ms, control=position, unchanged=UNSTAMPED
            )
            for notification in current
            if not (since.is_delivered_by_job(subscription, notification) or notification.is_over(now_ms))
        ]
        try:
            if only:
                await gateway.notifications.append(only)
        except TooLarge:  # together
            for each in only:
                await gateway.notifications.append([each])


async def _topics_with_message(gateway: Gateway, subscription: Subscription) -> list[TopicPath]:
    tree = gateway.table.topics
    paths = await gateway.retained.topics(topic_matcher(subscription.topics, tree), _few(subscription.topics, tree))
    return [path for path in paths if path in tree and gateway.retains(path)]


async def remove_orphans_forever(gateway: Gateway) -> None:
    """Remove the current messages of removed topics. Run until cancelled."""
    work = partial(remove_orphans, gateway, set())
    what = "the current messages of removed topics cannot be removed now"
    await repeated(what, work, _LOOK_S, Backoff(_LOOK_S, _LOOK_S), InfrastructureError)


async def remove_orphans(gateway: Gateway, missing: set[TopicPath]) -> None:
    """Remove the current messages of topics that do not exist, and are among these, which are missing since the last
    look; these become those of this look. Raises InfrastructureError."""
    end = await gateway.retained.end()  # first: the message of a new topic is behind the record of the topic
    await gateway.changes.catch_up()
    tree = gateway.table.topics
    found = await gateway.retained.topics(lambda path: path not in tree)
    if gone := [path for path in found if path in missing][:_REMOVED_AT_ONCE]:
        await gateway.retained.remove(gone, end)
        logger.info("removed the current messages of %d removed topics", len(gone))
    missing.clear()
    missing.update(found)


def _few(topics: Iterable[TopicFilter], tree: TopicTree) -> list[TopicPath] | None:
    """The topics that one of these selects, if it selects few and they are found without a search; None otherwise."""
    for each in topics:
        pattern = compile_normal(each.normal)
        if isinstance(pattern, Pattern) and not any(one.rest for one in pattern.alternatives):
            found = [*islice(tree.select(pattern), _FEW + 1)]
            if len(found) <= _FEW:
                return found
    return None


def topic_matcher(topics: Iterable[TopicFilter], tree: TopicTree) -> Callable[[TopicPath], bool]:
    """Whether all of these select a topic; for any thread."""
    checks: list[Callable[[TopicPath], bool]] = []
    for each in topics:
        pattern = compile_normal(each.normal)
        if isinstance(pattern, XPathPattern) and not pattern.path_only:
            checks.append(pattern.select(tree).__contains__)
        else:
            checks.append(pattern.matches)
    return lambda path: all(check(path) for check in checks)


def _none(reason: str) -> OperationRefused:
    return OperationRefused(reason, "NoCurrentMessageOnTopicFault")


OPERATIONS: tuple[Operation, ...] = (Operation(wsnt("GetCurrentMessage"), get_current_message),)
