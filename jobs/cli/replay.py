"""`arborcast replay`: what a subscription would have had, once more."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from jobs.cli.common import (
    AcceptedSinceOption,
    ConfigOption,
    HomeOption,
    JsonOption,
    NamespaceOption,
    TopicsOption,
    UntilOption,
    YesOption,
    agreed,
    kafka_of,
    moment,
    moment_ms,
    namespaces_of,
    topic_test,
)
from jobs.terminal import console, print_json


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(replay)


def replay(
    since: AcceptedSinceOption,
    subscription: Annotated[str, typer.Option(help="The subscription that gets it, and no other.", metavar="ID")],
    until: UntilOption = None,
    topic: TopicsOption = None,
    limit: Annotated[int, typer.Option(help="Refuse to replay more than so many.", min=1)] = 10_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")] = False,
    yes: YesOption = False,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Deliver what matches a subscription's filters again, to it alone, labelled as a replay."""
    since_ms = moment_ms("--since", since)
    until_ms = moment_ms("--until", until) if until else int(time.time() * 1000)
    wanted = topic_test(topic, namespaces_of(namespace))
    kafka = kafka_of(config, home)
    from dispatch.operations.replay import Replay, ReplayRefused, ReplaySpan
    from jobs.cli.topics_work import read_table

    made = Replay(kafka, read_table(kafka), subscription, ReplaySpan(since_ms, until_ms, wanted))
    places = made.find(limit)
    if len(places) > limit:
        raise ReplayRefused(
            f"more than {limit:,} notifications match: choose a shorter time or fewer topics, or a higher --limit"
        )
    between = f"accepted between {moment(since_ms)} and {moment(until_ms)}"
    if places and not dry_run and not yes:
        question = f"Deliver {len(places):,} notifications {between} to {subscription} again?"
        dry_run = not agreed(question)
    sent = made.send(places) if places and not dry_run else 0
    if json:
        print_json({"replay": made.id if sent else "", "matching": len(places), "sent": sent})
    elif sent:
        console().print(f"replay {made.id}: {sent:,} notifications are on their way", highlight=False)
    else:
        console().print(f"{len(places):,} notifications {between} match; nothing was sent", highlight=False)
