"""The history of a notification: each step, each delivery, and why a subscription got it or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arborcast.admin.connection import kafka_of
from arborcast.admin.filters import subscription_id
from arborcast.core.errors import InfrastructureError, NotFound
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.trace.evidence import Explanation, utc
from arborcast.engine.settings.loading import Settings
from arborcast.topic_model.records.notifications import made_at


class UnknownNotification(NotFound):
    """The notification is in neither the tables nor the logs. `notes` name unavailable sources."""

    def __init__(self, message: str, notes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.notes = notes


def trace(
    settings: Settings,
    notification: str,
    subscription: str = "",
    connect: Callable[[Settings], KafkaSettings] = kafka_of,
) -> Explanation:
    """The history of a notification; with a subscription (id or address), of that delivery only. Read from the tables
    and the newer records of the logs; without Kafka only from the tables. Raises UnknownNotification."""
    # They load the libraries of the tables and of content filters.
    from arborcast.dispatch.operations.trace.explain import explain
    from arborcast.dispatch.operations.trace.gathering import Gatherer

    kafka, unavailable = settings.kafka, ""
    try:
        kafka = connect(settings)
    except InfrastructureError as error:
        unavailable = str(error)
    only = subscription_id(subscription) or None
    gatherer = Gatherer(kafka, settings.tables, settings.home, unavailable)
    explanation = explain(gatherer.gather(notification, only), only)
    if not explanation.found:
        searched = (
            f"the tables do not have it, and {unavailable}"
            if unavailable
            else "neither the tables nor the logs have it"
        )
        hint = _hint(notification, settings.tables.notifications_days)
        message = f"there is no record of a notification {notification}: {searched}; {hint}"
        raise UnknownNotification(message, () if unavailable else explanation.notes)
    return explanation


def _hint(notification: str, kept_days: int) -> str:
    made_ms = made_at(notification)
    if not made_ms:
        return "an id is the value of arborcast-notification-id in pushes, 32 hexadecimal digits"
    return (
        f"the id was made at {utc(made_ms):%Y-%m-%d %H:%M:%S} UTC, and tables.notifications_days = {kept_days}; "
        "a Notify that was not answered with 202 was not accepted"
    )
