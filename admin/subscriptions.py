"""Subscriptions: list, recipients of a topic, and changes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from arborcast.admin.filters import subscription_id
from arborcast.admin.operations import commit
from arborcast.core.errors import InfrastructureError, NotFound
from arborcast.core.reasons import reason_of
from arborcast.core.security.uris import to_uri, without_password
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.engine.monitoring import stack_monitor
from arborcast.engine.settings.loading import Settings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.pull_store import PullPointStatus
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, ending
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath

Change = Literal["pause", "resume", "end"]


class SubscriptionFilter(NamedTuple):
    """A selection of subscriptions; an empty field, or None, selects all. `part` is a part of an endpoint in any case
    of letters, `topic` a topic that they get, `endpoints` the addresses of their consumers; with `pull_points` only
    those with a pull point."""

    state: str = ""
    endpoint: str | None = None
    part: str = ""
    topic: TopicPath | None = None
    endpoints: frozenset[str] | None = None
    pull_points: bool = False


class Suspension(msgspec.Struct, frozen=True):
    """The reason why the engine pushes nothing to a subscription."""

    at_ms: int
    failing_since_ms: int
    reason: str


class ListedSubscription(msgspec.Struct, frozen=True):
    """A subscription. `expression` is empty for every topic."""

    subscription: str
    state: State
    suspended: Suspension | None
    paused: bool
    reliability: str
    endpoint: str
    expression: str
    owner: str
    address: str
    created_ms: int
    terminates_ms: int | None


class SubscriptionList(NamedTuple):
    """Subscriptions, the suspended ones first, then by address; and the number of the others."""

    subscriptions: tuple[ListedSubscription, ...]
    more: int


class Recipient(msgspec.Struct, frozen=True):
    """A subscription that gets a topic, through one of its expressions; `only_if` are its other conditions."""

    subscription: str
    state: State
    expression: str
    only_if: str
    consumer: str


def listed(
    control: ControlView,
    selected: SubscriptionFilter,
    limit: int,
    after: str = "",
    failing: frozenset[str] = frozenset(),
) -> SubscriptionList:
    """The first subscriptions of the list, or those behind the subscription `after`. Those of `failing` endpoints
    follow the suspended ones."""
    key, now_ms = _order(control, failing), time_ms()
    last = control.table.get(after) if after else None
    begin = key(last) if last is not None else None
    found = [each for each in _selected(control, selected, now_ms) if begin is None or key(each) > begin]
    first = heapq.nsmallest(limit, found, key=key)
    return SubscriptionList(tuple(_listed(control, each, now_ms) for each in first), len(found) - len(first))


def ordered(control: ControlView, selected: SubscriptionFilter, failing: frozenset[str]) -> list[str]:
    """The ids of all subscriptions of the list, in its order."""
    found = sorted(_selected(control, selected, time_ms()), key=_order(control, failing))
    return [each.id for each in found]


def one(control: ControlView, name: str) -> ListedSubscription | None:
    """The subscription of this id; None without one, or for a trigger."""
    found = control.table.get(name)
    return None if found is None or found.trigger is not None else _listed(control, found, time_ms())


def recipients(control: ControlView, path: TopicPath, limit: int | None = None) -> list[Recipient]:
    """The subscriptions that get the notifications of a topic, up to `limit`, by id and expression."""
    now_ms = time_ms()
    routes = sorted(control.table.routes_to(path, limit), key=lambda route: (route.subscription.id, route.expression))
    return [
        Recipient(
            route.subscription.id,
            control.suspensions.state_of(route.subscription, now_ms),
            route.expression,
            conditions_of(route.subscription),
            route.subscription.consumer.address,
        )
        for route in routes
    ]


def suspended(control: ControlView, names: Iterable[str]) -> list[str]:
    """The ids of suspended subscriptions, for their ids or addresses. Raises NotFound if one is not suspended."""
    return list(dict.fromkeys(_suspended(control, subscription_id(each)) for each in names))


def all_suspended(control: ControlView, endpoint: str | None = None) -> list[str]:
    """The ids of all suspended subscriptions; with an endpoint, of those that push to it."""
    found = (control.table.get(each.id) for each in control.suspensions)
    return [
        each.id
        for each in found
        if each is not None and (endpoint is None or each.consumer.address == to_uri(endpoint))
    ]


def end_suspensions(kafka: KafkaSettings, control: ControlView, names: Iterable[str]) -> None:
    """Resume suspended subscriptions. Their own records stay, since a client may change them at the same time. Raises
    InfrastructureError."""
    records = [record for each in names for record in control.suspensions.resumption(each)]
    commit(kafka, "subscriptions resume", records, control.table.get)


def changes(control: ControlView, change: Change, subscription: Subscription) -> list[ControlRecord]:
    """The records that pause, resume or end a subscription; none if it already has that state. `resume` ends a
    suspension, too."""
    if change == "end":
        return ending(subscription.id, "removed", time_ms())
    paused = change == "pause"
    records: list[ControlRecord] = []
    if subscription.paused != paused:
        records.append(SubscriptionRecord(msgspec.structs.replace(subscription, paused=paused)))
    return records if paused else records + control.suspensions.resumption(subscription.id)


def expression_of(subscription: Subscription) -> str:
    """The topics of a subscription or trigger as text; empty for all."""
    # Prefixes are defined in each subscription: such an expression is shown in its normal form.
    return " and ".join(each.normal if each.namespaces else each.text for each in subscription.topics)


def conditions_of(subscription: Subscription) -> str:
    """Conditions of a subscription beyond its topics, as text; empty for none."""
    return " and ".join(
        [f"payload: {each.text}" for each in subscription.content]
        + [f"producer: {each.text}" for each in subscription.producer]
        + [f"type: {' or '.join(subscription.types)}" for _ in subscription.types[:1]]
        + [f"{interval_ms / 1000:g} s apart" for interval_ms in [subscription.policy.interval_ms] if interval_ms]
    )


def _order(control: ControlView, failing: frozenset[str]) -> Callable[[Subscription], tuple[bool, bool, str, str]]:
    suspended = control.suspensions.ids()
    return lambda each: (each.id not in suspended, each.consumer.address not in failing, each.consumer.address, each.id)


def _selected(control: ControlView, selected: SubscriptionFilter, now_ms: int) -> Iterator[Subscription]:
    everything = control.table.subscriptions()
    if selected.topic is not None:
        routes = control.table.routes_to(selected.topic)
        everything = iter({route.subscription.id: route.subscription for route in routes}.values())
    exact = None if selected.endpoint is None else to_uri(selected.endpoint)
    part, part_uri = selected.part.lower(), to_uri(selected.part)
    for each in everything:
        address = each.consumer.address
        if each.trigger is not None or (exact is not None and address != exact):
            continue
        if selected.endpoints is not None and address not in selected.endpoints:
            continue
        if selected.pull_points and not each.pull_point:
            continue
        # As pages show it: else a password could be found letter by letter.
        if part and part not in (shown := without_password(address)).lower() and shown != part_uri:
            continue
        if not selected.state or control.suspensions.state_of(each, now_ms) == selected.state:
            yield each


def _listed(control: ControlView, each: Subscription, now_ms: int) -> ListedSubscription:
    suspension = control.suspensions.get(each.id)
    return ListedSubscription(
        subscription=each.id,
        state=control.suspensions.state_of(each, now_ms),
        suspended=None if suspension is None else Suspension(suspension.at_ms, suspension.since_ms, suspension.reason),
        paused=each.paused,
        reliability=each.policy.reliability,
        endpoint=each.consumer.address,
        expression=expression_of(each),
        owner=each.owner,
        address=each.address,
        created_ms=each.created_ms,
        terminates_ms=each.terminates_ms,
    )


def _suspended(control: ControlView, name: str) -> str:
    known = control.table.get(name)
    if known is None:
        raise NotFound(f"there is no subscription {name} (any more); nothing was resumed")
    if name in control.suspensions:
        return name
    if known.paused:
        raise NotFound(
            f"{name} is not suspended: its subscriber has paused it, and resumes it, with ResumeSubscription at "
            f"{known.address}; nothing was resumed"
        )
    raise NotFound(f"{name} is not suspended; nothing was resumed")


def pull_point(settings: Settings, pull_point_id: str) -> PullPointStatus:
    """The messages in a pull point, from the gateway. Raises InfrastructureError."""
    page = f"/status.json?pull_point={quote(pull_point_id, safe='')}"
    try:
        return msgspec.json.decode(stack_monitor.gateway_page(settings, page), type=PullPointStatus)
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"the gateway does not answer: {reason_of(error)}") from error
