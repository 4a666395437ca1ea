"""The promises that a history must keep, checked with the requests to the engine, the arrivals at receivers, and the
rows of `attempts`; no other state of the engine counts."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.delivery.envelope import PUSH_HEADER
from arborcast.dispatch.hot.triggers import derived_id
from arborcast.dispatch.logs.attempts import FINAL, Attempt
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.control import ErasureScope
from arborcast.topic_model.records.notifications import Notification, made_at
from arborcast.topic_model.records.results import Result
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from tests.world.brokers import Record
from tests.world.kernel import EPOCH_S, Kernel, Process
from tests.world.receivers import Push

# The prefixes of findings. For each of them `known_faults` has a fault.
RULES = (
    "lost",
    "twice",
    "overtaken",
    "audited",
    "stranger",
    "interval",
    "dropped",
    "late",
    "silence",
    "gone",
    "start",
    "size",
    "bytes",
)

# Normal forms that select all topics of the scenario: by the name, and by the topics that exist.
ALL_TOPICS = ("{}*", 'xpath:{"namespaces":{},"text":"//*"}')

# In the payloads that a content filter selects.
MARK = b"<marked/>"

# At the end of its validity a message may be in flight, or next in its lane.
LATE_S = 60.0

# A subscription whose receiver answers 410 ends within this time.
ENDS_S = 120.0

_KIND = re.compile(rb'kind="deadline-(missed|met)"')
_SINCE = re.compile(rb'since="(\d+)"')

# A message that is older than the last passed one by more than this passes its interval, too.
_CLOCKS_MS = 60_000

# Rows are written within a tenth of a second, and Kafka has them some milliseconds later.
UNWRITTEN_S = 0.15

# The longest time between a claim and the receipt of its messages, and between the receipt and the record that settles
# the claim.
RECEIPT_S, SETTLES_S = 101.0, 0.5

# The longest time in which the worker of a task that was cut off begins pushes.
UNNOTICED_S = 0.5

# Results are in time until then: ten seconds before push.callback_s.
RESULT_S = PushSettings().callback_s - 10.0

# The time limit of a push, push.total_timeout_s.
PUSH_TIMEOUT_S = PushSettings().total_timeout_s


@dataclass(eq=False)
class Accepted:
    """A notification with the times of its Notify and acknowledgement, and its place in the log."""

    id: str
    topic: str
    began: float
    acknowledged: float = 0.0
    refused: bool = False
    place: tuple[int, int] | None = None
    accepted_ms: int = 0
    priority: int = 0
    valid_until_ms: int = 0
    reliable: bool = False
    marked: bool = False
    stored_at: float = 0.0
    last: int = 0  # the offset of its last record
    only: str = ""  # the only subscription of a replay
    republished_at: float = 0.0  # by its trigger, also again after a crash: for the subscriptions of that time


@dataclass(eq=False)
class Change:
    """A requested state of a subscription: in force, paused, or ended (None). Possible from `began` on, certain from
    `answered` on."""

    began: float
    receives: bool | None
    answered: float | None = None
    failed: bool = False
    terminates_ms: int | None = None


@dataclass(eq=False)
class Member:
    """A subscription, with the requests of its owner."""

    subscription: Subscription
    changes: list[Change] = field(default_factory=list)
    gone: bool = False  # its receiver answers 410

    @property
    def name(self) -> str:
        return self.subscription.id

    @property
    def topic(self) -> str:
        return self.subscription.topics[0].normal

    @property
    def lane(self) -> str:
        """The name in its rows: that of the queue for a server."""
        return f"queue:{self.topic}" if self.subscription.queue else self.name

    def selects(self, topic: str) -> bool:
        return self.topic in ALL_TOPICS or topic in self.topic.split("|")

    def matches(self, accepted: Accepted) -> bool:
        return self.selects(accepted.topic) and (accepted.marked or not self.subscription.content)

    def change(self, at: float, receives: bool | None) -> Change:
        self.changes.append(Change(at, receives, terminates_ms=self.subscription.terminates_ms))
        return self.changes[-1]

    def answered(self, change: Change, at: float, result: Any) -> None:
        if isinstance(result, InfrastructureError):
            change.failed = True  # it may be in the log
        else:
            change.answered = at

    def in_force(self, since: float, until: float, accepted_ms: int) -> bool | None:
        """Whether it was in force during all of this time, for a message with this timestamp; None if that is
        uncertain."""
        sure: bool | None = False
        possible: set[bool] = {False}
        for each in self.changes:
            if each.began > until:
                break
            # While it is paused, messages are parked.
            has_expired = each.terminates_ms is not None and each.terminates_ms <= accepted_ms
            receives = each.receives is not None and not has_expired
            if each.answered is not None and each.answered < since:
                possible = {receives}
            else:
                possible.add(receives)
        if len(possible) == 1:
            (sure,) = possible
            return sure
        return None

    @property
    def is_trigger(self) -> bool:
        return self.subscription.trigger is not None

    def has_paused(self, accepted: Accepted) -> bool:
        """Whether a message was accepted during a pause that lasts."""
        last = self.changes[-1]
        return last.receives is False and last.answered is not None and accepted.began > last.answered

    def drops(self, accepted: Accepted) -> bool:
        return self.subscription.policy.drops(accepted.reliable)

    @property
    def is_paused(self) -> bool:
        return bool(self.changes) and self.changes[-1].receives is False

    @property
    def is_over(self) -> bool:
        return any(each.receives is None for each in self.changes)


class Receipt(NamedTuple):
    """An answer with messages of a pull point that a client has received. `cut`: its connection was cut before the
    gateway knew."""

    process: Process
    at: float
    cut: bool


class Violated(AssertionError):
    """A promise was broken."""


@dataclass(eq=False)
class Kill:
    """The kill of a process, which loses all unwritten state."""

    process: Process
    at: float


class Oracle:
    """Collects events during the history; `judge` checks them at its end."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.notifications: dict[str, Accepted] = {}
        self.members: dict[str, Member] = {}
        self.pushes: dict[tuple[str, str], list[Push]] = defaultdict(list)
        self.states: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.row_at: dict[tuple[str, str], float] = {}
        # By subscription and topic, then priority: offset and id of the last first attempt.
        self.first_attempts: dict[tuple[str, str], dict[int, tuple[int, str]]] = defaultdict(dict)
        self.unsettled: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.open: list[tuple[Member, Accepted]] = []  # due deliveries that were not made at the last check
        self.newest: dict[str, Accepted] = {}  # by topic, the last notification of its log
        self.current: set[tuple[str, str]] = set()  # current messages, by subscription
        self.for_one: Counter[tuple[str, str]] = Counter()  # records of replays and current messages
        self.last_parts: dict[tuple[str, str], Push] = {}  # by subscription and message
        self.deferred: dict[str, Push] = {}  # by its id, pushes with a later result
        self.in_pull_points: dict[int, tuple[str, str]] = {}  # by offset
        self.pulled: dict[int, list[Receipt]] = defaultdict(list)  # by offset
        self.fetched: set[tuple[str, str]] = set()
        self.gone_at: dict[str, float] = {}  # when a process received the answer 410 for it
        self.missed: dict[str, list[tuple[float, int]]] = defaultdict(list)  # times of notices, and their `since`
        self.last_notices: dict[str, str] = {}  # the kind of the last notice of each subscription with a deadline
        self.erasures: list[ErasureScope] = []
        self.erased_at: dict[str, float] = {}  # by its id, when an erasure was done
        self.kafka_was_slow: list[tuple[float, float]] = []
        # Records of a notification in the log: triggers and notices are repeated after a crash or a timeout.
        self.copies: Counter[str] = Counter()
        self.parked_again: set[tuple[str, str]] = set()  # deliveries with two parked records, after a timeout
        self.excused = 0
        self.faults: list[str] = []

    # Events

    def accepted(self, number: str, topic: str, at: float) -> Accepted:
        made = self.notifications[number] = Accepted(number, topic, at)
        return made

    def member(self, subscription: Subscription) -> Member:
        made = self.members[subscription.id] = Member(subscription)
        return made

    def stored(self, notification: Notification, record: Record) -> None:
        known = self.notifications.get(notification.id)
        if notification.only in self.members and not notification.topic.startswith("{"):
            self._stored_for_one(notification, record, known)
            return
        self.copies[notification.id] += 1
        if known is None and notification.cause in self.notifications:
            # It is for subscriptions in force between the times of its cause and of itself.
            known = self.accepted(notification.id, notification.topic, self.notifications[notification.cause].began)
        if notification.only:
            self._noticed(notification)
        if known is None:
            return
        known.last = record.offset
        self.newest[known.topic] = known
        known.republished_at = self._kernel.now if notification.cause else 0.0
        if known.place is None:
            self._place(known, notification, record)
            if notification.cause:
                self.acknowledged(known)

    def _place(self, known: Accepted, notification: Notification, record: Record) -> None:
        known.place = record.partition, record.offset
        known.accepted_ms = notification.accepted_ms
        known.priority = notification.priority
        known.valid_until_ms = notification.valid_until_ms
        known.reliable = notification.reliable
        known.marked = MARK in notification.payload
        known.stored_at = self._kernel.now

    def _stored_for_one(self, notification: Notification, record: Record, known: Accepted | None) -> None:
        """A replay, or a current message."""
        member = self.members[notification.only]
        if known is None:
            known = self.accepted(notification.id, notification.topic, self._kernel.now)
            known.only = member.name
            self._place(known, notification, record)
        elif not known.only:
            self.current.add((member.name, known.id))
        known.last = record.offset if known.only else known.last
        self.for_one[member.name, known.id] += 1
        if member.in_force(self._kernel.now, self._kernel.now, notification.accepted_ms):
            self.open.append((member, known))

    def subscribed_with_current(self, member: Member) -> None:
        """Checks that the last message before the Subscribe was sent again."""
        newest, change = self.newest.get(member.topic), member.changes[0]
        if newest is None or change.answered is None or self._clock_was_set(math.inf) or newest.valid_until_ms:
            return
        if self._is_erased(newest):
            return
        is_earlier = newest.acknowledged and newest.acknowledged < change.began
        if is_earlier and (member.name, newest.id) not in self.current:
            self.faults.append(f"lost: {newest.id[-6:]} is the current message for {member.name}, and was not sent")

    def result_stored(self, result: Result) -> None:
        """A later result is in its log. The first one counts."""
        push = self.deferred.get(result.promise.push)
        if push is not None and not push.reported:
            push.reported = self._kernel.now
            push.accepted = result.state == "delivered"
            for each in push.ids if result.state == "refused" else ():
                self.row_at.setdefault((result.promise.subscription, each), self._kernel.now)  # its row follows

    def defers(self, push: Push) -> None:
        """The receiver of a push has announced a later result."""
        self.deferred[dict(push.request.headers)[PUSH_HEADER]] = push

    def _noticed(self, notification: Notification) -> None:
        kind, since = _KIND.search(notification.payload), _SINCE.search(notification.payload)
        if kind is None or since is None:
            return
        self.last_notices[notification.only] = kind[1].decode()
        if kind[1] == b"missed":
            self.missed[notification.only].append((self._kernel.now, int(since[1])))

    def put_into_pull_point(self, offset: int, subscription: str, notification: str) -> None:
        self.in_pull_points[offset] = subscription, notification

    def received(self, offsets: list[int], receipt: Receipt) -> None:
        """A client of a pull point has the messages at these offsets of its log."""
        if offsets != sorted(offsets):
            self.faults.append(f"overtaken: a client of a pull point got {offsets}")
        for offset in offsets:
            subscription, number = self.in_pull_points[offset]
            self.fetched.add((subscription, number))
            if self._is_erased(self.notifications[number], receipt.at - RECEIPT_S):
                self.faults.append(f"stranger: {subscription} got {number[-6:]} after its erasure")
            for before in self.pulled[offset]:
                if not self._may_be_fetched_again(before, receipt):
                    self.faults.append(
                        f"twice: {subscription} got {number[-6:]} at {before.at:.3f} of {before.process.name} "
                        f"{before.process.pid} and again at {receipt.at:.3f} of {receipt.process.name}"
                    )
            self.pulled[offset].append(receipt)

    def _may_be_fetched_again(self, before: Receipt, again: Receipt) -> bool:
        """Whether the client was cut off, or its claim was not settled before a crash or an outage of Kafka."""
        died_at = before.process.state.get(("died", "at"), math.inf)
        slow = any(begin <= again.at and before.at - RECEIPT_S <= end for begin, end in self.kafka_was_slow)
        return before.cut or slow or died_at - before.at <= SETTLES_S

    def ended(self, subscription: str) -> None:
        """The end of a subscription is in the control log."""
        member = self.members.get(subscription)
        if member is not None and member.gone and member.changes[-1].answered is None:
            member.changes[-1].answered = self._kernel.now

    def rows(self, rows: Iterable[Attempt]) -> None:
        for row in rows:
            key = row.subscription, row.notification
            self.states[key].add(row.state)
            if row.state == "dropped":
                self._dropped(row)
            if row.state in FINAL:
                self.row_at.setdefault(key, self._kernel.now)

    def _dropped(self, row: Attempt) -> None:
        accepted, member = self.notifications.get(row.notification), self.members.get(row.subscription)
        if accepted is not None and member is not None and not member.drops(accepted):
            self.faults.append(f"dropped: {row.notification[-6:]} for {row.subscription}, against its policy")

    def answered(self, push: Push) -> None:
        """A process received the answer of a push."""
        if push.status == 410:
            self.gone_at.setdefault(push.subscription, self._kernel.now)

    def pushed(self, push: Push) -> None:
        for each in push.ids:
            accepted = self.notifications.get(each)
            if accepted is not None and accepted.valid_until_ms and not self._clock_was_set(self._kernel.now):
                late_s = self._kernel.wall_s(push.process.host) - accepted.valid_until_ms / 1000
                if late_s > LATE_S:
                    self.faults.append(f"late: {each[-6:]} left for {push.subscription} {late_s:.1f} s too late")
            member = self.members.get(push.subscription)
            if accepted is not None and self._is_erased(accepted, push.began):
                self.faults.append(f"stranger: {push.subscription} got {each[-6:]} after its erasure")
            if accepted is not None and member is not None and member.has_paused(accepted):
                self.faults.append(f"stranger: {push.subscription} got {each[-6:]} while it was paused")
            lane = member.lane if member is not None else push.subscription
            known = self.pushes[lane, each]
            if not known and (push.subscription, each) not in self.last_parts:
                self._first(push, each)
            if not push.part.part or self._is_last_part(push, each):
                known.append(push)

    def _is_last_part(self, push: Push, number: str) -> bool:
        """Checks that the receiver has accepted the part before it."""
        before, self.last_parts[push.subscription, number] = self.last_parts.get((push.subscription, number)), push
        wanted = push.part.number - 1
        if wanted >= 0 and (before is None or before.part.number != wanted or not before.accepted):
            self.faults.append(f"overtaken: {push.subscription} got part {wanted + 1} of {number[-6:]} too early")
        self._kernel.count("parts pushed")
        return not push.part.more

    def _first(self, push: Push, number: str) -> None:
        accepted, member = self.notifications.get(number), self.members.get(push.subscription)
        if accepted is None or accepted.place is None or member is None or member.subscription.queue:
            return
        if (push.subscription, number) in self.current:
            if -accepted.priority in self.first_attempts[push.subscription, accepted.topic]:
                self.faults.append(f"overtaken: {push.subscription} got {number[-6:]}, the current message, later")
            return
        answered = member.changes[0].answered
        if answered is None or accepted.began <= answered:
            # A message accepted during the Subscribe may match or not, and a repetition after a crash may differ.
            return
        if "expired" in self.states[push.subscription, number]:
            return  # its letter was redriven
        if self.depends_on_clock(accepted):
            # After a crash another host may push a message whose row "expired" was lost.
            return
        lane = push.subscription, accepted.topic
        before = self.first_attempts[lane]
        # Accepted earlier, it may be pushed by an earlier policy.
        is_strict = member.subscription.policy.strict and accepted.began > (member.changes[-1].answered or math.inf)
        key = (-accepted.priority if not is_strict else 0, accepted.place[1], number)
        last = before.get(key[0])
        if last is not None and last[0] > accepted.last:
            self.faults.append(
                f"overtaken: {push.subscription} got {number[-6:]} of {accepted.topic} for the first time behind "
                f"{last[1][-6:]}, which was accepted later"
            )
        before[key[0]] = key[1:]
        if is_strict:
            unsettled = self.unsettled[lane]
            unsettled[:] = [each for each in unsettled if not self._is_settled(push.subscription, each)]
            if unsettled:
                self.faults.append(
                    f"overtaken: {push.subscription} (strict) got {number[-6:]} before {unsettled[0][-6:]} was settled"
                )
            unsettled.append(number)

    def _is_settled(self, subscription: str, number: str) -> bool:
        if (subscription, number) in self.row_at or self._is_void(self.notifications[number]):
            return True
        return any(
            each.received and (each.accepted or each.status == 400) for each in self.pushes[subscription, number]
        )

    # Checks

    def acknowledged(self, accepted: Accepted) -> None:
        """An acknowledged message is due for all subscriptions that were in force during its Notify."""
        accepted.acknowledged = self._kernel.now
        for member in self.members.values():
            if not member.matches(accepted) or member.subscription.policy.interval_ms:
                continue
            if member.subscription.queue:
                continue  # its queue is a member, too
            if member.in_force(accepted.began, accepted.acknowledged, accepted.accepted_ms):
                self.open.append((member, accepted))

    def left(self) -> int:
        """The number of due deliveries that are not made."""
        self.open = [
            (member, accepted)
            for member, accepted in self.open
            if not (member.is_over or member.is_paused or self._is_through(member, accepted))
        ]
        return len(self.open)

    def _is_through(self, member: Member, accepted: Accepted) -> bool:
        """Whether a delivery is complete."""
        delivery = member.name, accepted.id
        if self._has_expired(member, accepted) or self._is_erased(accepted):
            return True
        if member.subscription.pull_point:
            return delivery in self.fetched or self._is_void(accepted)
        if member.is_trigger:
            cause = Notification(accepted.id, TopicPath(accepted.topic), b"", accepted.accepted_ms)
            return derived_id(member.name, cause) in self.notifications
        if any(each.accepted for each in self.pushes.get(delivery, ())):
            return True
        return "dropped" in self.states.get(delivery, ()) and member.drops(accepted)

    def _has_expired(self, member: Member, accepted: Accepted) -> bool:
        """Whether a message is past its validity, and has a row with that state."""
        return "expired" in self.states.get((member.name, accepted.id), ()) and self._is_void(accepted)

    def _is_void(self, accepted: Accepted) -> bool:
        """Whether a message is past its validity."""
        is_late = accepted.valid_until_ms <= self._kernel.wall_s() * 1000 or self._clock_was_set(math.inf)
        return accepted.valid_until_ms > 0 and is_late

    def _is_erased(self, accepted: Accepted, at: float = math.inf) -> bool:
        """Whether an erasure covers a message; with a time, whether it was done before, and after the message was
        stored. The message of a trigger is as old as its cause."""
        accepted_ms = min(accepted.accepted_ms, made_at(accepted.id) or accepted.accepted_ms)
        return any(
            each.topic in ("", accepted.topic)
            and accepted.id.startswith(each.notification)
            and accepted_ms < each.before_ms
            and (at == math.inf or accepted.stored_at < self.erased_at.get(each.id, math.inf) < at)
            for each in self.erasures
        )

    def depends_on_clock(self, accepted: Accepted) -> bool:
        """Whether the end of a message's validity differs between hosts."""
        return accepted.valid_until_ms > 0 and self._clock_was_set(self._kernel.now)

    def judge(self) -> None:
        """Raises Violated with all broken promises."""
        faults = [*self.faults, *self._intervals(), *self._deadlines(), *self._not_ended()]
        self.left()
        for member, accepted in self.open:
            states = sorted(self.states.get((member.name, accepted.id), ()))
            faults.append(f"lost: {accepted.id[-6:]} of {accepted.topic} for {member.name} (rows: {states})")
        for (name, number), pushes in self.pushes.items():
            faults += self._strangers(name, number)
            faults += self._twice(name, number, pushes)
        if faults:
            found = Counter(each.split(":")[0] for each in faults)
            raise Violated("\n".join([*faults[:20], str(dict(found))]))

    def _intervals(self) -> Iterable[str]:
        """The first message of a topic passes, then the next one with a timestamp at least an interval later."""
        stored = sorted((each for each in self.notifications.values() if each.place), key=lambda each: each.place or ())
        for member in self.members.values():
            interval_ms = member.subscription.policy.interval_ms
            next_ms = 0
            passed: list[int] = []
            for each in stored if interval_ms else ():
                # During the Subscribe both are right.
                answered = member.changes[0].answered
                if each.topic != member.topic or answered is None or each.only:
                    continue
                # Expired messages count as passed.
                pushed = bool(self.pushes.get((member.name, each.id))) or self._has_expired(member, each)
                passes = each.accepted_ms >= next_ms
                if self._clock_was_set(each.stored_at):
                    # After a crash the interval begins at the latest timestamp of a passed message.
                    kept_back = any(-_CLOCKS_MS <= each.accepted_ms - earlier < interval_ms for earlier in passed)
                    passes = pushed or not kept_back
                passed += [each.accepted_ms] if pushed else []
                if passes and each.began > answered:
                    next_ms = each.accepted_ms + interval_ms
                if each.began > answered and pushed != passes:
                    what = "passed too early" if pushed else "did not pass"
                    yield f"interval: {each.id[-6:]}, accepted at {each.began:.3f}, {what} for {member.name}"

    def _deadlines(self) -> Iterable[str]:
        """A notice of a missed deadline is right: no message was accepted and stored during the deadline."""
        for name, notices in self.missed.items():
            member = self.members[name]
            deadline_ms = member.subscription.policy.deadline_ms or 0
            for at, since_ms in notices:
                if self._clock_was_set(at):
                    break
                came = [
                    each.id[-6:]
                    for each in self.notifications.values()
                    if each.topic == member.topic
                    and not each.only
                    and since_ms < each.accepted_ms < since_ms + deadline_ms
                    and (each.stored_at + EPOCH_S) * 1000 < since_ms + deadline_ms
                ]
                if came:
                    yield f"silence: {name} got a notice at {at:.3f} of one since {since_ms}, in spite of {came[0]}"

    def check_silences(self) -> None:
        """After hours without a message, the last notice of each subscription with a deadline is "missed"."""
        for name, member in self.members.items():
            if member.subscription.policy.deadline_ms and self.last_notices.get(name) != "missed":
                self.faults.append(f"silence: {name} has no notice of the current one at {self._kernel.now:.3f}")

    def _not_ended(self) -> Iterable[str]:
        for name, at in self.gone_at.items():
            member = self.members[name]
            if member.gone and member.changes[-1].answered is None and at < self._kernel.now - ENDS_S:
                yield f"gone: {name} answered 410 at {at:.3f}, and is still subscribed"

    def _clock_was_set(self, until: float) -> bool:
        """Whether a clock was set: intervals use the timestamps of gateways."""
        return any(each <= until for each in self._kernel.notes.get("clock set", ()))

    def _strangers(self, name: str, number: str) -> list[str]:
        accepted, member = self.notifications.get(number), self.members.get(name)
        if accepted is None or member is None:
            return []
        until = max(accepted.acknowledged or accepted.stored_at or self._kernel.now, accepted.republished_at)
        # By its gateway's clock, which was put back, it was created before: `topic_model.routing.history.standing`.
        created_before = member.subscription.created_ms <= accepted.accepted_ms and member.changes[0].began > until
        is_for_one = accepted.only == name or (name, number) in self.current
        if not member.matches(accepted):
            return [f"stranger: {name} got {number[-6:]} of {accepted.topic}"]
        if member.in_force(accepted.began, until, accepted.accepted_ms) is False and not (created_before or is_for_one):
            return [f"stranger: {name} got {number[-6:]}, accepted at {accepted.began:.3f} when it was not in force"]
        return []

    def _twice(self, name: str, number: str, pushes: list[Push]) -> list[str]:
        taken = [each for each in pushes if each.accepted]
        copied = self.copies[number] > 1 or self.for_one[name, number] > 1
        if len(taken) < 2 or copied or (name, number) in self.parked_again:
            return []
        # Refused within a tenth of a second before a crash of the driver, it was repeated, and its letter was redriven.
        if any(
            each.status == 400
            and each.process.name == "driver"
            and each.process.state.get(("died", "at"), math.inf) - each.received <= UNWRITTEN_S
            for each in pushes
        ):
            return []
        for before, again in itertools.pairwise(taken):
            if not self._may_come_again(name, number, before, again):
                died_at = before.process.state.get(("died", "at"), 0.0)
                return [
                    f"twice: {name} got {number[-6:]} at {before.answered:.3f} and again, from {again.began:.3f} on by "
                    f"{again.process.name} {again.process.pid}; {before.process.name} {before.process.pid} had the "
                    f"first answer at {before.received:.3f} and ended at {died_at:.3f}"
                ]
            self.excused += 1
        return []

    def _may_come_again(self, name: str, number: str, before: Push, again: Push) -> bool:
        """Whether a repetition is excused: the push was in flight at a crash or timeout, or had ended within a tenth of
        a second before it, or before an outage of Kafka that outlasted the process."""
        if not before.received or before.timed_out or before.cut or before.request is again.request:
            return True
        clock_was_set = any(before.began <= each <= again.began for each in self._kernel.notes.get("clock set", ()))
        if before.reported and (before.reported > before.began + RESULT_S or clock_was_set):
            return True  # its result was late, by this clock
        if again.began < before.received:
            if clock_was_set:
                return True  # so was its answer
            # Its process waited for Kafka, and read the answer after the time limit of a push.
            return again.began - before.began >= PUSH_TIMEOUT_S and self.kafka_was_slow_at(before.answered or 0.0)
        # A task that Spark has cut off writes nothing more, even if its worker still runs, and pushes for a moment.
        ends = (before.process.state.get((what, "at"), -math.inf) for what in ("cut off", "died"))
        died_at = min((at for at in ends if at >= before.began - UNNOTICED_S), default=math.inf)
        if died_at > again.began:
            # It waited for Kafka, and reported the answer after the time limit of a push.
            is_late = before.received - before.began >= PUSH_TIMEOUT_S
            return is_late and self.kafka_was_slow_at(before.received)
        unwritten_s = UNWRITTEN_S * self._kernel.stretch_at(before.received + UNWRITTEN_S)
        return bool(died_at - before.received <= unwritten_s or self.kafka_was_slow_at(before.received))

    def kafka_was_slow_at(self, at: float) -> bool:
        """Whether there was an outage of Kafka or of a partition at this time, shortly before it, or before a due row
        could be written."""
        return any(begin - UNWRITTEN_S <= at <= end for begin, end in self.kafka_was_slow)
