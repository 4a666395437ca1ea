"""`arborcast subscriptions`: subscriptions, suspensions, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from arborcast.admin.documents import document
from arborcast.admin.times import moment
from arborcast.cli.common import (
    SUBSCRIBING,
    CommandGroup,
    JsonOption,
    ListedOption,
    NamespaceOption,
    kafka_of,
    namespaces_of,
    note_omitted,
    settings_of,
)
from arborcast.core.errors import ConfigError
from arborcast.core.printable import one_line
from arborcast.engine.terminal import console, print_error, print_json, print_line

if TYPE_CHECKING:
    from rich.text import Text

    from arborcast.admin.subscriptions import ListedSubscription

subscriptions_app = CommandGroup(help="Subscriptions and suspensions.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(subscriptions_app, name="subscriptions", rich_help_panel=SUBSCRIBING)


@subscriptions_app.command("list")
def list_subscriptions(
    state: Annotated[
        Literal["active", "paused", "suspended", "expired"] | None,
        typer.Option("--state", help="Only those in this state."),
    ] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Only those of this URL.", metavar="URL")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only those that get this topic.", metavar="TOPIC")
    ] = None,
    limit: ListedOption = 100,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """List subscriptions, the suspended ones first."""
    from arborcast.admin import control_log
    from arborcast.admin import subscriptions as admin
    from arborcast.admin.topics import topic_named

    control = control_log.read_control(kafka_of())
    path = topic_named(topic, control.table.topics, namespaces_of(namespace)) if topic else None
    wanted = admin.SubscriptionFilter(state or "", endpoint, topic=path)
    found = admin.listed(control, wanted, limit)
    if json:
        print_json(document(found))
        return
    if not found.subscriptions:
        others = control.table.statistics().subscriptions > 0
        print_error("no matching subscriptions" if others else "no subscriptions yet")
        return
    for line in _lines(found.subscriptions):
        console().print(line, soft_wrap=True)
    note_omitted(found.more)


# An address has no maximum length; the column after it is expected within a screen's width.
_WIDEST = 48


def _lines(listed: Sequence[ListedSubscription]) -> Iterator[Text]:
    """A heading, and a line for each, with nothing cut off: a part of an id would be of no use."""
    from rich.text import Text

    rows = [(each.subscription, each.state, each.reliability, one_line(each.endpoint)) for each in listed]
    heading = ("subscription", "state", "reliability", "endpoint")
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(heading, *rows, strict=True)]
    first, *others = (word.ljust(width) for word, width in zip(heading, widths, strict=True))
    yield Text("  ".join((first, *others, "topics")), "bold")
    for each, row in zip(listed, rows, strict=True):
        first, state, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield Text.assemble(
            f"{first}  ",
            (state, "" if each.state == "active" else "bold"),
            f"  {'  '.join(others)}  ",
            (one_line(each.expression) or "every topic", "cyan"),
        )
        if each.suspended and each.state == "suspended":
            why = (
                f"suspended since {moment(each.suspended.at_ms)}: {each.suspended.reason}, "
                f"failing since {moment(each.suspended.failing_since_ms)}"
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
    json: JsonOption = False,
) -> None:
    """Resume suspended subscriptions: their waiting deliveries are pushed at once."""
    from arborcast.admin import control_log
    from arborcast.admin import subscriptions as admin

    if bool(subscription) + (endpoint is not None) + everything != 1:
        raise ConfigError("name subscriptions: ids, --endpoint or --all")
    kafka = kafka_of()
    control = control_log.read_control(kafka)
    chosen = admin.suspended(control, subscription) if subscription else admin.all_suspended(control, endpoint)
    admin.end_suspensions(kafka, control, chosen)
    if json:
        print_json({"resumed": chosen})
        return
    for name in chosen:
        print_line(f"resumed {name}")
    if not chosen:
        print_line("none is suspended" + (f" of {endpoint}" if endpoint else ""))


@subscriptions_app.command()
def link(
    subscription: Annotated[str, typer.Argument(help="Its id, as `list` prints it, or its address.")],
    days: Annotated[float, typer.Option("--days", help="How long the link opens the page.")] = 7.0,
    json: JsonOption = False,
) -> None:
    """Print a signed link to the page of one subscription, for its subscriber."""
    from arborcast.admin import control_log, receiver_page

    control = control_log.read_control(kafka_of())
    url = receiver_page.link(settings_of(), control, subscription, days)
    if json:
        print_json({"link": url})
    else:
        print_line(url)
