"""`arborcast waiting`: what waits to be tried again, or for its turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.cli.common import (
    FATES,
    ConfigOption,
    HomeOption,
    JsonOption,
    ListedOption,
    NamespaceOption,
    SubscriptionOption,
    TopicsOption,
    kafka_of,
    moment,
    namespaces_of,
    tell_of_more,
    topic_test,
)
from arborcast.core.printable import one_line
from arborcast.engine.terminal import complain, console, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from arborcast.dispatch.operations.waiting import Wait
    from arborcast.topic_model.projections.suspensions import Suspensions
    from arborcast.topic_model.routing import RoutingTable

waiting_app = typer.Typer(help="Deliveries that wait to be tried, or tried again.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(waiting_app, name="waiting", rich_help_panel=FATES)


@waiting_app.command("list")
def list_waiting(
    subscription: SubscriptionOption = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="Only to subscriptions that push to this URL now.", metavar="URL")
    ] = None,
    topic: TopicsOption = None,
    notification: Annotated[
        str | None, typer.Option("--notification", help="Only of this notification.", metavar="ID")
    ] = None,
    limit: ListedOption = 100,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List deliveries that wait, those that wait longest first, with what became of the last try."""
    from arborcast.admin.control_log import read_control
    from arborcast.core.security.uris import to_uri
    from arborcast.dispatch.operations.waiting import Asked, Waiting

    # The last part of an address is the id.
    name = subscription.rstrip("/").rpartition("/")[2] if subscription else ""
    is_meant = topic_test(topic, namespaces_of(namespace), config, home)
    kafka = kafka_of(config, home)
    control = read_control(kafka)
    table, suspensions = control.table, control.suspensions

    def asked(each: str) -> bool:
        known = table.get(each)
        there = known.consumer.address if known is not None else ""
        return (not name or each == name) and (endpoint is None or to_uri(there) == to_uri(endpoint))

    waiting = Waiting(kafka)
    waits, more = waiting.oldest(Asked(asked, is_meant, notification or ""), limit)
    waits, complete = waiting.with_last(waits)
    now_ms = time.time_ns() // 1_000_000
    facts = [_facts(each, table, suspensions, now_ms) for each in waits]
    if json:
        print_json({"waiting": facts, "more": more})
    else:
        for wait, each in zip(waits, facts, strict=True):
            console().print(_line(wait, each, now_ms), soft_wrap=True)
        if not facts:
            complain("nothing waits")
        tell_of_more(more)
    if not complete:
        complain("not all of the log of attempts was searched for errors: it is long; ask for fewer with --limit")


def _facts(wait: Wait, table: RoutingTable, suspensions: Suspensions, now_ms: int) -> dict[str, Any]:
    name = wait.delivery.subscription
    known = table.get(name)
    last, tries = wait.last, wait.tries
    return {
        "notification": wait.notification,
        "subscription": name,
        "state": suspensions.state_of(known, now_ms) if known is not None else "over",
        "endpoint": known.consumer.address if known is not None else "",
        "topic": wait.topic,
        "priority": wait.priority,
        "accepted": moment(wait.accepted_ms),
        "since": moment(wait.since_ms),
        "attempts": tries.number,
        "next": moment(tries.due_ms) if tries.due_ms else "",
        "error": last.error if last is not None else "",
        "detail": last.detail if last is not None else "",
        "status": (last.status if last is not None else 0) or "",
    }


def _line(wait: Wait, facts: dict[str, Any], now_ms: int) -> Text:
    # In lines rather than columns: cut off, an id would be of no use.
    from rich.text import Text

    number = wait.tries.number
    state = "" if facts["state"] == "active" else f" ({facts['state']})"
    priority = f"priority {wait.priority}, " if wait.priority else ""
    where = f" at {one_line(facts['endpoint'])}" if facts["endpoint"] else ""
    line = Text.assemble(
        (facts["since"], "dim"),
        f"  {wait.notification}  ",
        (one_line(wait.topic), "cyan"),
        f"  for {facts['subscription']}{state}{where}, {priority}{number} {'try' if number == 1 else 'tries'}, ",
    )
    if not number:
        line.append("next in its turn")
    elif wait.tries.is_due(now_ms):
        line.append("due now")
    elif wait.tries.under_way:
        line.append(f"its push has no answer yet; without one next {facts['next']}")
    elif wait.tries.awaits:
        line.append(f"its receiver says how it ended by {facts['next']}")
    else:
        line.append(f"next {facts['next']}")
    if facts["error"]:
        line.append(": ").append(facts["error"], "bold").append(f", {one_line(facts['detail'])}")
    return line
