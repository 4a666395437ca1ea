"""The page of one subscription for its subscriber: its signed link, and the actions of only that page."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from arborcast.admin.filters import subscription_id
from arborcast.admin.operations import recorded
from arborcast.core.errors import ConfigError, NotFound, SecretError
from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.security.keyring import KeyFile, Keys
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.engine.embedded.state import addresses
from arborcast.engine.settings.loading import Settings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.records.operations import Operator, change
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import SYSTEM, TopicPath

MOST_DAYS = 90

TEST_TOPIC = TopicPath(f"{SYSTEM}/test")

_CONTEXT = "receiver page"

_WRITE_S = 30.0


def link(settings: Settings, control: ControlView, name: str, days: float) -> str:
    """The address of the page of a subscription (id or address), valid for a time. Raises NotFound, ConfigError."""
    subscription = control.table.get(subscription_id(name))
    if not _has_page(subscription, time_ms()):
        raise NotFound(f"there is no subscription {name} (any more)")
    if not 0 < days <= MOST_DAYS:
        raise ConfigError(f"a link is valid for up to {MOST_DAYS} days, not for {days:g}")
    until = int(time.time() + timedelta(days=days).total_seconds())
    identifier = subscription_id(name)
    try:
        mac = KeyFile(Path(settings.secrets.key_file)).mac(_signed(identifier, until), _CONTEXT)
    except SecretError as error:
        raise ConfigError(f"a link is signed with the engine's key: {error}") from error
    return f"{_base(settings)}/receiver/{quote(identifier, safe='')}/{until}.{quote(mac, safe='')}"


def linked(keys: Keys, control: ControlView, identifier: str, text: str, now_s: float) -> Subscription:
    """The subscription of a link. Raises NotFound, with the same text for each reason except the link's end."""
    until, _, mac = text.partition(".")
    digits = until.isascii() and until.isdigit() and len(until) <= 12
    try:
        valid = digits and keys.is_valid_mac(mac, _signed(identifier, int(until)), _CONTEXT)
    except SecretError:
        valid = False  # of a removed key
    subscription = control.table.get(identifier)
    if valid and int(until) <= now_s:
        raise NotFound("this link has ended: ask the operator for another one")
    if not valid or subscription is None or not _has_page(subscription, int(now_s * 1000)):
        raise NotFound("this link opens nothing: it is not complete, or the subscription has ended")
    return subscription


def receiver_of(subscription: str) -> Operator:
    """The subscriber, as the operator of recorded changes."""
    return Operator("console", f"receiver of {subscription}")


def send_test(kafka: KafkaSettings, subscription: Subscription, by: Operator | None = None) -> str:
    """Append a notification for this subscription only; returns its id. `by` is by default the subscriber. Raises
    InfrastructureError."""
    now_ms = time_ms()
    made = Notification(
        uuid.uuid4().hex,
        TEST_TOPIC,
        f'<Test xmlns="urn:arborcast" at="{now_ms}"/>'.encode(),
        now_ms,
        publisher="arborcast",
        only=subscription.id,
        selector=subscription.selector(),
        control=UNSTAMPED,
    )
    key, value = notifications.encode(made)
    with (
        recorded(kafka, "subscriptions test", [change(subscription.id)], by or receiver_of(subscription.id)) as results,
        closing(DurableWriter(kafka, "notifications")) as writer,
    ):
        writer.send(partition_of_key(key, writer.partitions), value, key)
        writer.settle(_WRITE_S)
        results.append(f"notification {made.id}")
    return made.id


def _has_page(subscription: Subscription | None, now_ms: int) -> bool:
    """Whether its subscriber may manage it, as over SOAP: it is no trigger and no link of a federation, and has not
    ended."""
    if subscription is None or subscription.trigger is not None or subscription.peer is not None:
        return False
    return not subscription.expired(now_ms)


def _signed(identifier: str, until: int) -> bytes:
    return f"{identifier}\n{until}".encode()


def _base(settings: Settings) -> str:
    known = settings.console.public_url or addresses(settings.home).get("console")
    if not known and not settings.console.port:
        raise ConfigError("the page is part of the console, and the console is off: set console.port")
    return (known or f"http://{settings.console.host}:{settings.console.port}").rstrip("/")
