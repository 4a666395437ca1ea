"""`arborcast waiting`: deliveries that wait for a retry, or for their turn; retries and probes on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.admin.documents import document
from arborcast.admin.times import moment
from arborcast.cli.common import (
    FATES,
    CommandGroup,
    JsonOption,
    LimitOption,
    ListedOption,
    NamespaceOption,
    NotificationOption,
    SubscriptionOption,
    TopicsOption,
    YesOption,
    agreed,
    condition,
    kafka_of,
    note_omitted,
    topic_filter,
)
from arborcast.core.printable import one_line
from arborcast.engine.monitoring.figures import many
from arborcast.engine.terminal import console, print_error, print_json, print_line

if TYPE_CHECKING:
    from rich.text import Text

    from arborcast.admin.waiting import WaitingEntry

_STAGES = {
    "queued": "after earlier messages",
    "due": "due now",
    "in flight": "in flight; without an answer next attempt {}",
    "awaited": "awaits a result by {}",
    "scheduled": "next attempt {}",
    "held": "held until resumed",
}

EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint", help="Only to subscriptions that push to this URL now.", metavar="URL", callback=condition
    ),
]

waiting_app = CommandGroup(help="Pending deliveries: queued, or waiting for a retry.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(waiting_app, name="waiting", rich_help_panel=FATES)


@waiting_app.command("list")
def list_waiting(
    subscription: SubscriptionOption = "",
    endpoint: EndpointOption = "",
    topic: TopicsOption = "",
    notification: NotificationOption = "",
    limit: ListedOption = 100,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """List pending deliveries, the oldest first, with the last result."""
    from arborcast.admin.waiting import WaitingFilter, oldest

    wanted = WaitingFilter(subscription, endpoint, topic_filter(topic, namespace), notification)
    found = oldest(kafka_of(), wanted, limit)
    if json:
        print_json({"waiting": [_facts(each) for each in found.waiting], "more": found.more})
    else:
        for each in found.waiting:
            console().print(_line(each), soft_wrap=True)
        if not found.waiting:
            print_error("no pending deliveries")
        note_omitted(found.more)
    if not found.complete:
        print_error("not all of the log of attempts was searched for errors: it is long; ask for fewer with --limit")


@waiting_app.command()
def retry(
    subscription: SubscriptionOption = "",
    endpoint: EndpointOption = "",
    topic: TopicsOption = "",
    notification: NotificationOption = "",
    limit: LimitOption = None,
    yes: YesOption = False,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Attempt pending deliveries now."""
    from arborcast.admin import waiting
    from arborcast.admin.waiting import WaitingFilter

    wanted = WaitingFilter(subscription, endpoint, topic_filter(topic, namespace), notification)
    kafka = kafka_of()
    # Without a condition it is for the whole engine.
    requested = 0
    if yes or wanted.text() != "all" or agreed("Retry all pending deliveries?"):
        requested = waiting.retry(kafka, wanted, limit)
    if json:
        print_json({"requested": requested})
    else:
        print_line(f"attempts of {many(requested, 'delivery', 'deliveries')} requested")


@waiting_app.command()
def probe(
    endpoint: Annotated[str, typer.Argument(help="The URL, as `waiting list` prints it.", metavar="URL")],
) -> None:
    """Probe an endpoint now, with the delivery that waits longest for it."""
    from arborcast.admin import waiting

    waiting.probe(kafka_of(), endpoint)
    print_line(f"probe of {one_line(endpoint)} requested")


def _facts(each: WaitingEntry) -> dict[str, Any]:
    facts: dict[str, Any] = document(each)
    del facts["stage"]
    return facts | {"status": each.status or ""}


def _line(each: WaitingEntry) -> Text:
    # In lines rather than columns: cut off, an id would be of no use.
    from rich.text import Text

    state = "" if each.state == "active" else f" ({each.state})"
    priority = f"priority {each.priority}, " if each.priority else ""
    where = f" at {one_line(each.endpoint)}" if each.endpoint else ""
    tries = f"{each.attempts} {'try' if each.attempts == 1 else 'tries'}"
    stage = _STAGES[each.stage].format(moment(each.next_ms) if each.next_ms else "")
    line = Text.assemble(
        (moment(each.since_ms), "dim"),
        f"  {each.notification}  ",
        (one_line(each.topic), "cyan"),
        f"  for {each.subscription}{state}{where}, {priority}{tries}, {stage}",
    )
    if each.error:
        line.append(": ").append(each.error, "bold").append(f", {one_line(each.detail)}")
    return line
