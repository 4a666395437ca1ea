"""Requests of other engines: pushes and interest.

A push is answered when all its accepted notifications are in the log. Dropped ones are counted: those that this engine
published or received within the last ten minutes, on refused topics, or unreadable.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from arborcast.core.errors import InfrastructureError, PeerError, RecordVersionError, TopicError, TopicNotSupported
from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import SingleFlight, shared
from arborcast.core.telemetry.tracing import read_traceparent
from arborcast.core.wall_clock import is_ahead
from arborcast.ingest.elements.publication import Publication
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.operations import publishing
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import Checked, PublishRequest
from arborcast.ingest.state.repeats import RepeatMemory, accepted_lately, steady_now
from arborcast.topic_model.message_types import MAX_LENGTH as MOST_TYPE
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records import peers
from arborcast.topic_model.records.control import PeerInterest
from arborcast.topic_model.records.notifications import MAX_PRIORITY, MAX_TRIGGERED, Notification
from arborcast.topic_model.records.packages import read_package
from arborcast.topic_model.records.peers import INTEREST_PATH, MAX_PER_PUSH, Forwarded, drop_reason, group_of, is_engine
from arborcast.topic_model.routing.interest import MAX_CHARACTERS, MAX_NODES, is_summary
from arborcast.topic_model.topics import TopicPath, parse_path
from arborcast.topic_model.tree.distribution import distribution_of
from arborcast.wire import times
from arborcast.wire.errors import Forbidden, InvalidRequest, MalformedMessage, PeerRefused
from arborcast.wire.xml_reading import read_payload

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

REMEMBERED_S = 600.0
"""Time in which duplicates are recognised."""

# The delay before a push of a newer version is repeated: this engine will be upgraded.
_UPGRADE_S = 30.0

_MOST_TEXT = 200

# Bytes of the topics whose drops were logged in the last hour or two, twice.
_LOGGED = 64 * 1024


class PeerReceiver:
    """Used on the event loop. `own` is this engine, GROUP/NAME. Workers share `memory`."""

    def __init__(
        self,
        gateway: Gateway,
        own: str,
        keys: SharedKeys,
        interests: PeerInterests,
        memory: RepeatMemory,
        clock: Callable[[], float] = steady_now,
    ) -> None:
        self._gateway = gateway
        self._own = own
        self._keys = keys
        self._interests = interests
        self._memory = memory
        self._clock = clock
        self._under_way: SingleFlight[bytes, None] = SingleFlight()
        self._logged_topics: Recent[TopicPath, bool] = Recent(_LOGGED, age_s=3_600.0)
        self.taken: Counter[str] = Counter()
        """Stored notifications by sender."""
        self.dropped: Counter[str] = Counter()
        """Those that were not, by why."""

    async def take(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """A request; names of headers are in lower case. Raises SignatureError, MalformedMessage, PeerRefused, or
        InfrastructureError, after which the sender repeats all of it."""
        self._gateway.check_started()
        interest = path == INTEREST_PATH
        check = partial(self._keys.check_request, "POST", path) if interest else self._keys.check_push
        if len(body) > SMALL:
            await asyncio.to_thread(check, headers, body)
        else:
            check(headers, body)
        if interest:
            await self._take_interest(_read(peers.decode_interest, body))
        else:
            await self.take_push(_read(peers.decode_push, body))

    def read_datagram(self, data: bytes) -> peers.PeerPush:
        """The push in a datagram. Raises SignatureError, MalformedMessage, or PeerRefused if the sender is not a member
        of this group."""
        try:
            headers, body = peers.decode_datagram(data)
        except ValueError as error:
            raise MalformedMessage(str(error)) from error
        self._keys.check_push(headers, body)
        push = _read(peers.decode_push, body)
        self._check_way(push.sender, push.to)
        if group_of(push.sender) != group_of(self._own):
            raise PeerRefused("other groups send no datagrams")
        return push

    async def take_push(self, push: peers.PeerPush) -> None:
        """A push with a checked signature. Raises as `take`."""
        self._gateway.check_started()
        self._check_way(push.sender, push.to)
        if len(push.notifications) > MAX_PER_PUSH:
            raise MalformedMessage(f"a push has at most {MAX_PER_PUSH} notifications, not {len(push.notifications)}")
        fresh: dict[bytes, Checked] = {}
        others: list[asyncio.Future[None]] = []
        for each in push.notifications:
            if not each.path or each.path[-1] != push.sender:
                raise MalformedMessage(f"the path of {each.id[:_MOST_TEXT]!r} does not end with its sender")
            known = _fingerprint(each.id)
            if why := drop_reason(each, self._own):
                self.dropped[why] += 1
            elif known in fresh or self._memory.has(known, self._clock()):
                self.dropped["repeat"] += 1
            elif (other := self._under_way.get(known)) is not None:
                self.dropped["repeat"] += 1
                others.append(other)
            else:
                checked = await self._read(each)
                if checked is not None:
                    fresh[known] = checked
        if fresh:
            with self._under_way.lead(fresh):
                await self._accept(list(fresh.values()))
                now_s = self._clock()
                for known in fresh:
                    self._memory.add(known, now_s)
            self.taken[push.sender] += len(fresh)
        for other in others:
            await shared(other)

    async def _accept(self, requests: Sequence[Checked]) -> None:
        try:
            await publishing.store(self._gateway, publishing.joined(requests))
        except TopicNotSupported as error:
            if len(requests) == 1:
                self._drop("topic", requests[0].notifications[0].topic, error)
                return
            # More new topics than the limit of a minute; one by one they are admitted up to the limit.
            for each in requests:
                await self._accept([each])
                self._memory.add(_fingerprint(each.notifications[0].id), self._clock())

    async def _read(self, forwarded: Forwarded) -> Checked | None:
        """The acceptable part; None for a dropped and counted notification."""
        try:
            notification = read_forwarded(forwarded, times.to_ms(self._gateway.now()))
        except MalformedMessage as error:
            self._drop("unreadable", forwarded.topic, error)
            return None
        priority = max(-MAX_PRIORITY, min(forwarded.priority, MAX_PRIORITY))
        record = {notification.id: Publication(max(0, forwarded.valid_until_ms), priority=priority)}
        try:
            return await publishing.check(self._gateway, PublishRequest([notification], None, record))
        except (TopicNotSupported, InvalidRequest, Forbidden) as error:
            self._drop("topic", notification.topic, error)
            return None

    def _drop(self, why: str, topic: TopicPath, error: Exception) -> None:
        self.dropped[why] += 1
        if not self._logged_topics.get(topic):
            self._logged_topics.put(topic, True, len(topic))
            logger.warning("notifications of other engines on the topic %.200s are dropped: %s", topic, error)

    async def _take_interest(self, interest: peers.Interest) -> None:
        self._check_way(interest.sender, interest.to)
        for topics in (interest.topics, interest.others):
            if len(topics) > MAX_NODES or sum(map(len, topics)) > MAX_CHARACTERS or not is_summary(topics):
                raise MalformedMessage(
                    f"an interest has up to {MAX_NODES} topics and subtrees, and no other expressions"
                )
            if topics:
                try:
                    parse_normal("|".join(topics))
                except PeerError as error:
                    raise MalformedMessage(str(error)) from error
        group = group_of(interest.sender)
        peer = interest.sender if group == group_of(self._own) else f"{group}/"
        before = self._interests.get(peer)
        # A version is a time of the sender: one of the future was made before its clock was put back.
        if (
            before is not None
            and before.sender == interest.sender
            and before.version >= interest.version
            and not is_ahead(before.version, times.to_ms(self._gateway.now()))
        ):
            return
        if before is None or (before.topics, before.others) != (interest.topics, interest.others):
            record = PeerInterest(peer, interest.sender, interest.version, interest.topics, interest.others)
            await self._gateway.changes.commit([record])

    def _check_way(self, sender: str, to: str) -> None:
        if not is_engine(sender):
            raise MalformedMessage(f"{sender[:_MOST_TEXT]!r} is not an engine: GROUP/NAME is expected")
        if sender == self._own:
            raise PeerRefused(f"{self._own} is this engine: two of one name?")
        if to not in (self._own, f"{group_of(self._own)}/"):
            raise PeerRefused(f"this is {self._own}, and not {to[:_MOST_TEXT]!r}")


def read_forwarded(forwarded: Forwarded, now_ms: int) -> Notification:
    """The notification as accepted now. Raises MalformedMessage."""
    if not 0 < len(forwarded.id) <= _MOST_TEXT or not forwarded.id.isascii() or not forwarded.id.isprintable():
        raise MalformedMessage(f"{forwarded.id[:60]!r} is not the id of a notification")
    if not all(map(is_engine, forwarded.path)):
        raise MalformedMessage("its path names no engine")
    try:
        topic = parse_path(forwarded.topic)
    except TopicError as error:
        raise MalformedMessage(str(error)) from error
    for part in (forwarded.payload, *filter(None, (forwarded.producer, forwarded.subject))):
        _check_xml(part)
    if not 0 <= forwarded.hops <= 1_000 or max(len(forwarded.cause), len(forwarded.publisher)) > MOST_TYPE:
        raise MalformedMessage("its cause or publisher is inconsistent")
    if forwarded.package:
        try:
            read_package(forwarded.package)
        except ValueError as error:
            raise MalformedMessage(str(error)) from error
    return Notification(
        forwarded.id,
        topic,
        forwarded.payload,
        now_ms,
        producer=forwarded.producer,
        publisher=forwarded.publisher,
        traceparent=read_traceparent(forwarded.traceparent),
        prefixes=forwarded.prefixes[:MOST_TYPE],
        subject=forwarded.subject,
        type=forwarded.type if len(forwarded.type) <= MOST_TYPE else "",
        reliable=forwarded.reliable,
        cause=forwarded.cause,
        hops=forwarded.hops,
        package=forwarded.package,
        path=forwarded.path,
        distribution=distribution_of([forwarded.distribution]),
        triggers_left=max(0, min(forwarded.triggers_left, MAX_TRIGGERED)),
    )


def remember_taken(kafka: KafkaSettings, memory: RepeatMemory) -> int:
    """Add the notifications of other engines in the log that are within the window of `memory`; returns their number.
    Raises InfrastructureError."""
    count = 0
    for each, then_s in accepted_lately(kafka, memory.window_s):
        if each.path:
            memory.add(_fingerprint(each.id), then_s)
            count += 1
    return count


def _fingerprint(notification_id: str) -> bytes:
    return hashlib.blake2b(b"peer\n" + notification_id.encode(errors="replace"), digest_size=16).digest()


def _check_xml(data: bytes) -> None:
    """Raises MalformedMessage unless it is an element that can be part of another document."""
    document = read_payload(data, what="what another engine sends").document
    if document != data or data.lstrip().startswith(b"<?xml "):
        raise MalformedMessage("what another engine sends is an element in UTF-8, without an XML declaration")


def _read(decode: Callable[[bytes], _T], body: bytes) -> _T:
    try:
        return decode(body)
    except RecordVersionError as error:
        raise InfrastructureError(str(error), _UPGRADE_S) from error
    except InfrastructureError as error:
        raise MalformedMessage(str(error)) from error
