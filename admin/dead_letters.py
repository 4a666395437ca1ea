"""Dead letters: list, redrive, purge."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from arborcast.admin import control_log
from arborcast.admin.filters import MOST_GROUPS, DeliveryGroup, TopicTest, options_text
from arborcast.admin.operations import recorded
from arborcast.admin.times import moment_ms
from arborcast.core.errors import NotFound
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery
from arborcast.dispatch.operations.dead_letters import DeadLetterAdmin, LetterConditions, letters, settled
from arborcast.dispatch.operations.views import (
    DeliveryViews,
    LettersView,
    ViewEntry,
    ViewFilter,
    ViewPlace,
    letter_of,
    opened,
)
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.operations import Operator, change
from arborcast.topic_model.subscriptions import queue_topic
from arborcast.topic_model.topics import TopicPath

# Of two at the same time, as after a double click on a page, both would redrive each letter: it would be pushed twice.
_CHANGE = threading.Lock()


class LetterFilter(NamedTuple):
    """A selection of letters; an empty field selects all. `since` and `until` are times of giving up, as spans before
    now (2h) or ISO times; for `reason` see `dispatch.operations.dead_letters`. `chosen` are pairs of notification and
    subscription."""

    subscription: str = ""
    endpoint: str = ""
    notification: str = ""
    topic: TopicTest = TopicTest()
    since: str = ""
    until: str = ""
    reason: str = ""
    chosen: frozenset[tuple[str, str]] = frozenset()

    def text(self) -> str:
        """The conditions as text, as the options of a command."""
        return options_text({**self._asdict(), "topic": self.topic.text, "chosen": ""}, self.chosen)

    def conditions(self, kafka: KafkaSettings, control: ControlView | None = None) -> LetterConditions:
        """The same, resolved. Raises ExpressionError, ConfigError, InfrastructureError."""
        return LetterConditions(
            self.subscription,
            self.endpoint,
            self.notification,
            self.topic.test(kafka, control),
            moment_ms("since", self.since) if self.since else None,
            moment_ms("until", self.until) if self.until else None,
            self.reason,
        )

    def in_view(self, selection: LetterConditions) -> ViewFilter:
        """The same for a view of the log."""

        def matches(entry: ViewEntry) -> bool:
            letter = letter_of(entry)
            chosen = not self.chosen or (letter.notification.id, letter.subscription) in self.chosen
            return chosen and selection.includes(letter)

        return ViewFilter(
            group=lambda each: selection.at(each.endpoint) and selection.topic(each.topic),
            subscription=selection.subscription,
            notification=selection.notification,
            since_ms=selection.since_ms,
            until_ms=selection.until_ms,
            test=matches if selection.reason or self.chosen else None,
        )


class Letter(msgspec.Struct, frozen=True):
    """A dead letter without its message. `status` is 0 without an HTTP answer."""

    notification: str
    subscription: str
    endpoint: str
    topic: TopicPath
    accepted_ms: int
    given_up_ms: int
    state: str
    attempts: int
    error: str
    detail: str
    status: int


class WholeLetter(msgspec.Struct, frozen=True):
    """A dead letter with its message, the last push, and the beginning of the endpoint's answer."""

    letter: Letter
    publisher: str
    message_id: str
    producer: str
    push: str
    answer: str
    payload: str


class LetterList(NamedTuple):
    """Letters, the number of the others, and the largest groups of all, by endpoint and reason."""

    letters: tuple[Letter, ...]
    more: int
    groups: tuple[DeliveryGroup, ...] = ()


class RedriveCounts(NamedTuple):
    """Numbers of letters: those that are or can be redriven, those whose subscription has ended, and those that were
    given up less than `dispatch.operations.dead_letters.SETTLED_AFTER_S` ago."""

    redriven: int
    over: int
    too_new: int


def listed(
    kafka: KafkaSettings,
    selection: LetterFilter,
    limit: int,
    control: ControlView | None = None,
    skip: int = 0,
    views: DeliveryViews | None = None,
) -> LetterList:
    """Letters, the newest first, behind the first `skip`. `views` are cached for later queries. Raises ExpressionError,
    ConfigError, InfrastructureError; as all functions here."""
    view_filter = selection.in_view(selection.conditions(kafka, control))
    with opened(LettersView, kafka, views) as view:
        entries, counts = view.page(view_filter, limit, skip, newest_first=True)
    counted = Counter[tuple[str, str]]()
    for group, number in counts.items():
        counted[group.endpoint, group.reason] += number
    newest = tuple(_letter(letter_of(each)) for each in entries)
    groups = tuple(
        DeliveryGroup(endpoint, reason, count) for (endpoint, reason), count in counted.most_common(MOST_GROUPS)
    )
    return LetterList(newest, max(0, counted.total() - skip - len(newest)), groups)


def following(
    kafka: KafkaSettings,
    selection: LetterFilter,
    limit: int,
    after: ViewPlace | None,
    control: ControlView,
    views: DeliveryViews,
) -> tuple[tuple[Letter, ...], ViewPlace | None]:
    """As `listed`, the letters behind a place; and the place of the last, None if these are all the others."""
    view_filter = selection.in_view(selection.conditions(kafka, control))
    with opened(LettersView, kafka, views) as view:
        entries = view.following(view_filter, limit, after, newest_first=True)
    letters = tuple(_letter(letter_of(each)) for each in entries)
    return letters, entries[-1].order if len(entries) == limit else None


def _letters(
    kafka: KafkaSettings, selection: LetterFilter, control: ControlView | None
) -> Iterator[tuple[Delivery, DeadLetter]]:
    for delivery, letter in letters(kafka, selection.conditions(kafka, control).includes):
        if not selection.chosen or (letter.notification.id, letter.subscription) in selection.chosen:
            yield delivery, letter


def whole(kafka: KafkaSettings, notification: str, subscription: str = "") -> Iterator[WholeLetter]:
    """The letters of a notification. Raises NotFound without one."""
    found = False
    for _, letter in letters(kafka, LetterConditions(subscription, notification=notification).includes):
        found = True
        message = letter.notification
        yield WholeLetter(
            letter=_letter(letter),
            publisher=message.publisher,
            message_id=message.message_id,
            producer=message.producer.decode(errors="replace"),
            push=letter.push,
            answer=letter.response.decode(errors="replace"),
            payload=message.payload.decode(errors="replace"),
        )
    if not found:
        raise NotFound(f"there is no dead letter of notification {notification}")


def first_whole(kafka: KafkaSettings, notification: str, subscription: str = "") -> WholeLetter:
    """The first letter of a notification. Raises NotFound without one."""
    return next(whole(kafka, notification, subscription))


def count(
    kafka: KafkaSettings, selection: LetterFilter, limit: int | None = None, control: ControlView | None = None
) -> int:
    """The number of letters, up to `limit`."""
    return sum(1 for _ in islice(_letters(kafka, selection, control), limit))


def redrivable(
    kafka: KafkaSettings, selection: LetterFilter, limit: int | None = None, control: ControlView | None = None
) -> RedriveCounts:
    """The numbers of letters that `redrive` redrives and skips."""
    skipped = Counter[str]()
    possible = sum(1 for _ in islice(_redrivable(kafka, selection, control, skipped), limit))
    return RedriveCounts(possible, skipped["over"], skipped["too_new"])


def redrive(
    kafka: KafkaSettings,
    selection: LetterFilter,
    limit: int | None = None,
    control: ControlView | None = None,
    by: Operator | None = None,
) -> RedriveCounts:
    """Redrive letters, up to `limit`: each at its old place, with all its attempts and its whole lifespan.
    Subscriptions are looked up in `control`, or in the log. `by` is the operator, by default the user of this
    process."""
    skipped = Counter[str]()
    selection.conditions(kafka, control)  # a refused filter is no operation
    with (
        _CHANGE,
        recorded(kafka, "dead-letters redrive", [change(selection.text())], by) as results,
        DeadLetterAdmin(kafka) as letter_admin,
    ):
        redriven = letter_admin.redrive(islice(_redrivable(kafka, selection, control, skipped), limit))
        results.append(f"{redriven} redriven")
    return RedriveCounts(redriven, skipped["over"], skipped["too_new"])


def purge(
    kafka: KafkaSettings,
    selection: LetterFilter,
    limit: int | None = None,
    control: ControlView | None = None,
    by: Operator | None = None,
) -> int:
    """Delete letters with their messages, up to `limit`; returns their number."""
    selection.conditions(kafka, control)  # a refused filter is no operation
    with (
        _CHANGE,
        recorded(kafka, "dead-letters purge", [change(selection.text())], by) as results,
        DeadLetterAdmin(kafka) as letter_admin,
    ):
        purged = letter_admin.purge(islice(_letters(kafka, selection, control), limit))
        results.append(f"{purged} deleted")
    return purged


def _redrivable(
    kafka: KafkaSettings, selection: LetterFilter, control: ControlView | None, skipped: Counter[str]
) -> Iterator[tuple[Delivery, DeadLetter]]:
    known = control_log.read_control(kafka) if control is None else control
    now_s = time.time()
    for delivery, letter in _letters(kafka, selection, known):
        if known.table.get(letter.subscription) is None and queue_topic(letter.subscription) is None:
            skipped["over"] += 1
        elif not settled(letter, now_s):
            skipped["too_new"] += 1
        else:
            yield delivery, letter


def _letter(letter: DeadLetter) -> Letter:
    return Letter(
        notification=letter.notification.id,
        subscription=letter.subscription,
        endpoint=letter.endpoint,
        topic=letter.notification.topic,
        accepted_ms=letter.notification.accepted_ms,
        given_up_ms=letter.at_ms,
        state=letter.state,
        attempts=letter.number,
        error=letter.error,
        detail=letter.detail,
        status=letter.status,
    )
