"""Erasures of payloads: requests, and their progress. The job executes them."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

from arborcast.admin import control_log
from arborcast.admin.filters import TopicTest
from arborcast.admin.operations import recorded, this_user
from arborcast.admin.times import moment, moment_ms
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import Erasure, ErasureScope
from arborcast.topic_model.records.operations import Operator, change


class ErasureRequest(NamedTuple):
    """The notifications of an erasure: those that fulfil each condition that is not empty, and were accepted before
    `before` (a span before now, an ISO time; empty: now). `subject` is the whole text of an element, or the whole value
    of an attribute."""

    subject: str = ""
    topic: TopicTest = TopicTest()
    notification: str = ""
    before: str = ""

    def check(self) -> None:
        """Raises ConfigError for a request without conditions."""
        if not (self.subject.strip() or self.topic.text or self.notification or self.before):
            raise ConfigError(
                "name what to erase: a subject, a topic, a notification, or a time before which everything is erased"
            )


# That of a replay has a suffix.
_ID = re.compile(r"[0-9a-f]{32}(~.*)?")


def check_id(notification: str) -> None:
    """Raises ConfigError for a text that is no id: its erasure would remove nothing, without an error."""
    if notification and not _ID.fullmatch(notification):
        raise ConfigError(f"{notification[:100]!r} is not the id of a notification, which has 32 hexadecimal digits")


class RequestedErasure(NamedTuple):
    """An erasure, and until when copies are in Kafka and in files of the tables, by name: as recorded by the job, or,
    before the erasure is done, at the earliest. 0: its configuration has no limit."""

    erasure: Erasure
    kept_until_ms: dict[str, int]


def erase(
    kafka: KafkaSettings, request: ErasureRequest, by: Operator | None = None, control: ControlView | None = None
) -> RequestedErasure:
    """Request an erasure; `by` is by default the user of this process. Raises ConfigError for a request without
    conditions, ExpressionError, InfrastructureError."""
    request.check()
    now_ms = time_ms()
    before_ms = moment_ms("before", request.before) if request.before else now_ms
    if before_ms > now_ms:
        raise ConfigError(f"before {request.before}: an erasure covers the past; this time is in the future")
    topic = request.topic.normal(kafka, control)
    scope = ErasureScope(secrets.token_hex(6), before_ms, topic, request.notification, request.subject.strip())
    by = by or this_user()
    requested = Erasure(scope, by.actor, now_ms)
    with recorded(kafka, "erase", [change(scope.id, None, _recorded_scope(scope))], by) as results:
        control_log.append(kafka, [requested])
        results.append("requested")
    return RequestedErasure(requested, _kept_until(kafka, now_ms))


def listed(kafka: KafkaSettings, control: ControlView | None = None) -> list[RequestedErasure]:
    """All erasures with possible copies in Kafka, the latest first. Raises InfrastructureError."""
    found = (control_log.read_control(kafka) if control is None else control).erasures.all()
    earliest_ms = _kept_until(kafka, time_ms()) if any(not each.done_ms for each in found) else {}
    return [RequestedErasure(each, each.kept_until_ms if each.done_ms else earliest_ms) for each in found]


def _kept_until(kafka: KafkaSettings, now_ms: int) -> dict[str, int]:
    # Sixty MB of libraries, only for this query.
    from arborcast.dispatch.operations.erasure import kept_until

    return kept_until(kafka, now_ms)


def described(erasure: Erasure) -> str:
    """Its conditions, as text."""
    scope = erasure.scope
    named = (("subject", scope.subject), ("topic", scope.topic), ("notification", scope.notification))
    return ", ".join([*(f"{name} {value}" for name, value in named if value), f"before {moment(scope.before_ms)}"])


def _recorded_scope(scope: ErasureScope) -> dict[str, str]:
    """Its conditions for the record of changes, without the subject's text."""
    subject = hashlib.sha256(scope.subject.encode()).hexdigest() if scope.subject else ""
    named = {"topic": scope.topic, "notification": scope.notification, "subject_sha256": subject}
    return {**{name: value for name, value in named.items() if value}, "before": moment(scope.before_ms)}
