"""`arborcast subscriptions`: who is subscribed, who is suspended, and how a suspension is ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.admin.moments import moment
from arborcast.cli.common import (
    SUBSCRIBING,
    ConfigOption,
    HomeOption,
    JsonOption,
    ListedOption,
    NamespaceOption,
    kafka_of,
    namespaces_of,
    tell_of_more,
)
from arborcast.core.errors import ConfigError
from arborcast.core.printable import one_line
from arborcast.core.security.uris import to_uri
from arborcast.engine.terminal import complain, console, print_json, say

if TYPE_CHECKING:
    from rich.text import Text

    from arborcast.topic_model.projections.suspensions import Suspensions
    from arborcast.topic_model.records.control import SubscriptionSuspended
    from arborcast.topic_model.routing import RoutingTable
    from arborcast.topic_model.subscriptions import Subscription

subscriptions_app = typer.Typer(help="Who is subscribed, and who is suspended.", no_args_is_help=True)


class _Activity(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


def register(app: typer.Typer) -> None:
    app.add_typer(subscriptions_app, name="subscriptions", rich_help_panel=SUBSCRIBING)


@subscriptions_app.command("list")
def list_subscriptions(
    state: Annotated[_Activity | None, typer.Option("--state", help="Only those in this state.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Only those of this URL.", metavar="URL")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only those that get this topic.", metavar="TOPIC")
    ] = None,
    limit: ListedOption = 100,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List subscriptions, the suspended ones first, then by address."""
    from arborcast.admin import control_log, topics
    from arborcast.topic_model.expressions import with_codes

    control = control_log.read_control(kafka_of(config, home))
    table, suspensions = control.table, control.suspensions
    wanted: set[str] | None = None
    if topic:
        namespaces = namespaces_of(namespace)
        path = topics.one_topic(with_codes(topic, namespaces, table.topics.paths_with_code), namespaces)
        wanted = {route.subscription_id for route in table.who(path)}
    now_ms = time.time_ns() // 1_000_000
    found = [
        each
        for each in table.subscriptions()
        if each.trigger is None
        and (state is None or suspensions.state_of(each, now_ms) == state)
        and (endpoint is None or to_uri(each.consumer.address) == to_uri(endpoint))
        and (wanted is None or each.id in wanted)
    ]
    found.sort(key=lambda each: (each.id not in suspensions, each.consumer.address, each.id))
    facts = [_facts(each, suspensions, now_ms) for each in found[:limit]]
    if json:
        print_json({"subscriptions": facts, "more": len(found) - len(facts)})
        return
    if not facts:
        others = table.statistics().subscriptions > 0
        complain("no subscription is as asked for" if others else "nobody is subscribed")
        return
    for line in _lines(facts):
        console().print(line, soft_wrap=True)
    tell_of_more(len(found) - len(facts))


# An address may be as long as it likes; what stands behind it is looked for within a screen's width.
_WIDEST = 48


def _lines(facts: list[dict[str, Any]]) -> Iterator[Text]:
    """A heading, and a line for each, with nothing cut off: a part of an id would be of no use."""
    from rich.text import Text

    rows = [(each["subscription"], each["state"], each["reliability"], one_line(each["endpoint"])) for each in facts]
    heading = ("subscription", "state", "reliability", "endpoint")
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(heading, *rows, strict=True)]
    first, *others = (word.ljust(width) for word, width in zip(heading, widths, strict=True))
    yield Text("  ".join((first, *others, "topics")), "bold")
    for each, row in zip(facts, rows, strict=True):
        first, state, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield Text.assemble(
            f"{first}  ",
            (state, "" if each["state"] == _Activity.ACTIVE else "bold"),
            f"  {'  '.join(others)}  ",
            (one_line(each["expression"]) or "every topic", "cyan"),
        )
        suspended = each["suspended"]
        if suspended and each["state"] == _Activity.SUSPENDED:
            why = (
                f"suspended since {suspended['at']}: {suspended['reason']}, failing since {suspended['failing_since']}"
            )
            yield Text(one_line(f"  {why}"), "dim")


@subscriptions_app.command()
def resume(
    subscription: Annotated[
        list[str] | None, typer.Argument(help="Their ids, as `list` prints them, or their addresses.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="All that are suspended of this URL.", metavar="URL")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are suspended.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Let suspended subscriptions go on: what waits for them is pushed at once."""
    from arborcast.admin.control_log import read_control
    from arborcast.topic_model.records.control_log import ControlLog

    if bool(subscription) + (endpoint is not None) + everything != 1:
        raise ConfigError("say which: ids of subscriptions, or --endpoint, or --all")
    kafka = kafka_of(config, home)
    control = read_control(kafka)
    table, suspensions = control.table, control.suspensions
    if subscription:
        chosen = [_suspended(name.rstrip("/").rpartition("/")[2], table, suspensions) for name in subscription]
    else:
        chosen = [
            each.id
            for each in _all_suspended(table, suspensions)
            if endpoint is None or to_uri(each.consumer.address) == to_uri(endpoint)
        ]
    # Their own records are not written, since a client may be changing them at this moment.
    records = [record for name in dict.fromkeys(chosen) for record in suspensions.taking_back(name)]
    if records:
        with closing(ControlLog(kafka)) as log:
            log.append(records)
    if json:
        print_json({"resumed": list(dict.fromkeys(chosen))})
        return
    for name in dict.fromkeys(chosen):
        say(f"resumed {name}")
    if not chosen:
        say("none is suspended" + (f" of {endpoint}" if endpoint else ""))


def _all_suspended(table: RoutingTable, suspensions: Suspensions) -> Iterator[Subscription]:
    found = (table.get(each.id) for each in suspensions)
    return (each for each in found if each is not None)


def _suspended(name: str, table: RoutingTable, suspensions: Suspensions) -> str:
    """The id, if that is one of a suspended subscription. Raises ConfigError."""
    known = table.get(name)
    if known is None:
        raise ConfigError(f"there is no subscription {name} (any more); nothing was resumed")
    if name in suspensions:
        return name
    if known.paused:
        raise ConfigError(
            f"{name} is not suspended: its subscriber has paused it, and resumes it, with ResumeSubscription at "
            f"{known.address}; nothing was resumed"
        )
    raise ConfigError(f"{name} is not suspended; nothing was resumed")


def _facts(subscription: Subscription, suspensions: Suspensions, now_ms: int) -> dict[str, Any]:
    suspension = suspensions.get(subscription.id)
    return {
        "subscription": subscription.id,
        "state": suspensions.state_of(subscription, now_ms),
        "suspended": None if suspension is None else _suspension(suspension),
        "paused": subscription.paused,
        "reliability": subscription.policy.reliability,
        "endpoint": subscription.consumer.address,
        "expression": " and ".join(each.text for each in subscription.topics),
        "owner": subscription.owner,
        "address": subscription.address,
        "created": moment(subscription.created_ms),
        "terminates": None if subscription.terminates_ms is None else moment(subscription.terminates_ms),
    }


def _suspension(suspension: SubscriptionSuspended) -> dict[str, str]:
    return {
        "at": moment(suspension.at_ms),
        "failing_since": moment(suspension.since_ms),
        "reason": suspension.reason,
    }
