"""`arborcast subscriptions`: who is subscribed, who is suspended, and how a suspension is ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.errors import ConfigError
from core.printable import one_line
from core.security.uris import to_uri
from jobs.cli.common import (
    ConfigOption,
    HomeOption,
    JsonOption,
    ListedOption,
    NamespaceOption,
    kafka_of,
    moment,
    namespaces_of,
    tell_of_more,
)
from jobs.terminal import console, print_json

if TYPE_CHECKING:
    from topic_model.projections.suspensions import Suspensions
    from topic_model.records.control import SubscriptionSuspended
    from topic_model.routing import RoutingTable
    from topic_model.subscriptions import Subscription

subscriptions_app = typer.Typer(help="Who is subscribed, and who is suspended.", no_args_is_help=True)


class _Activity(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(subscriptions_app, name="subscriptions")


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
    from jobs.cli import topics_work as commands

    table, suspensions = commands.read_subscriptions(kafka_of(config, home))
    wanted = (
        {route.subscription_id for route in table.who(commands.one_topic(topic, namespaces_of(namespace)))}
        if topic
        else None
    )
    now_ms = time.time_ns() // 1_000_000
    found = [
        each
        for each in table.subscriptions()
        if (state is None or suspensions.state_of(each, now_ms) == state)
        and (endpoint is None or to_uri(each.consumer.address) == to_uri(endpoint))
        and (wanted is None or each.id in wanted)
    ]
    found.sort(key=lambda each: (each.id not in suspensions, each.consumer.address, each.id))
    facts = [_facts(each, suspensions, now_ms) for each in found[:limit]]
    if json:
        print_json({"subscriptions": facts, "more": len(found) - len(facts)})
        return
    from rich.text import Text

    for each in facts:
        # In lines rather than columns: cut off, an id would be of no use.
        suspended = each["suspended"] if each["state"] == _Activity.SUSPENDED else None
        why = (
            f" since {suspended['at']}: {suspended['reason']}, failing since {suspended['failing_since']}"
            if suspended
            else ""
        )
        console().print(
            Text.assemble(
                f"{each['subscription']}  ",
                (one_line(each["state"] + why), "" if each["state"] == _Activity.ACTIVE else "bold"),
                f"  {one_line(each['endpoint'])}  ",
                (one_line(each["expression"]) or "every topic", "cyan"),
            ),
            soft_wrap=True,
        )
    tell_of_more(len(found) - len(facts))


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
    from jobs.cli.topics_work import read_subscriptions
    from topic_model.records.control_log import ControlLog

    if bool(subscription) + (endpoint is not None) + everything != 1:
        raise ConfigError("say which: ids of subscriptions, or --endpoint, or --all")
    kafka = kafka_of(config, home)
    table, suspensions = read_subscriptions(kafka)
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
        console().print(f"resumed {name}", markup=False, highlight=False, soft_wrap=True)
    if not chosen:
        console().print("none is suspended" + (f" of {endpoint}" if endpoint else ""), markup=False, highlight=False)


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
