"""`arborcast dead-letters`, `arborcast replay`: what was given up, and what is delivered once more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.cli.common import (
    FATES,
    AcceptedSinceOption,
    ConfigOption,
    HomeOption,
    JsonOption,
    ListedOption,
    NamespaceOption,
    SubscriptionOption,
    TopicsOption,
    UntilOption,
    YesOption,
    agreed,
    kafka_of,
    moment,
    moment_ms,
    namespaces_of,
    tell_of_more,
    topic_test,
)
from arborcast.core.errors import ConfigError
from arborcast.core.printable import one_line
from arborcast.engine.terminal import ProgressShown, complain, console, print_json, say

if TYPE_CHECKING:
    from pathlib import Path

    from arborcast.dispatch.logs.dead_letters import DeadLetter
    from arborcast.dispatch.logs.parked import Delivery
    from arborcast.dispatch.operations.dead_letters import Wanted

    Found = tuple[Delivery, DeadLetter]

letters_app = typer.Typer(help="Deliveries that were given up, with their messages.", no_args_is_help=True)

EndpointOption = Annotated[str | None, typer.Option("--endpoint", help="Only to this URL.", metavar="URL")]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Only given up from then on: 30m, 2h, 7d, or an ISO time.", metavar="TIME")
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason", help="Only for this reason: an error class, dead, expired, an HTTP status, or words of the detail."
    ),
]
NotificationOption = Annotated[str | None, typer.Option("--notification", help="Only this notification.", metavar="ID")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="At most so many.", min=1)]


def register(app: typer.Typer) -> None:
    app.add_typer(letters_app, name="dead-letters", rich_help_panel=FATES)
    app.add_typer(letters_app, name="dead", hidden=True, callback=_say_new_word)
    app.command(rich_help_panel=FATES)(replay)


def _say_new_word() -> None:
    complain("`arborcast dead` is called `arborcast dead-letters` now; the old word still works")


@letters_app.command("list")
def list_letters(
    subscription: SubscriptionOption = None,
    endpoint: EndpointOption = None,
    topic: TopicsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: ReasonOption = None,
    notification: NotificationOption = None,
    limit: ListedOption = 100,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List dead letters, the newest of each partition of the log last."""
    from arborcast.dispatch.operations.dead_letters import letters

    wanted = _wanted(subscription, endpoint, topic, since, until, reason, notification, namespace, config, home)
    found = letters(kafka_of(config, home), wanted)
    listed = list(islice(found, limit))
    more = sum(1 for _ in found)
    if json:
        print_json({"letters": [_facts(letter) for _, letter in listed], "more": more})
        return
    from rich.text import Text

    for _, letter in listed:
        # In lines rather than columns: cut off, an id would be of no use.
        console().print(
            Text.assemble(
                (moment(letter.at_ms), "dim"),
                f"  {letter.notification.id}  ",
                (one_line(letter.notification.topic), "cyan"),
                f"  for {letter.subscription}, {letter.number} {'try' if letter.number == 1 else 'tries'}: ",
                (letter.error or letter.state, "bold"),
                f", {one_line(letter.detail)}",
            ),
            soft_wrap=True,
        )
    tell_of_more(more)


@letters_app.command()
def show(
    notification: Annotated[str, typer.Argument(help="The notification's id, as `list` prints it.")],
    subscription: SubscriptionOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Print everything that is stored of a dead letter: what it was, why it was given up, and the message."""
    from arborcast.dispatch.operations.dead_letters import Wanted, letters

    shown = 0
    for _, letter in letters(kafka_of(config, home), Wanted(subscription or "", notification=notification)):
        shown += 1
        facts = _facts(letter) | {
            "publisher": letter.notification.publisher,
            "message_id": letter.notification.message_id,
            "producer": letter.notification.producer.decode(errors="replace"),
            "push": letter.push,
            "answer": letter.response.decode(errors="replace"),
            "payload": letter.notification.payload.decode(errors="replace"),
        }
        if json:
            print_json(facts)
            continue
        payload = facts.pop("payload")
        for name, value in facts.items():
            if value != "":
                say(one_line(f"{name}: {value}"))
        say(f"\n{payload}\n")
    if not shown:
        raise ConfigError(f"there is no dead letter of notification {notification}")


@letters_app.command()
def redrive(
    subscription: SubscriptionOption = None,
    endpoint: EndpointOption = None,
    topic: TopicsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: ReasonOption = None,
    notification: NotificationOption = None,
    limit: LimitOption = None,
    namespace: NamespaceOption = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Try dead letters again: each waits in its old place, with all its attempts and its whole lifespan before it."""
    from arborcast.admin.control_log import read_table
    from arborcast.dispatch.operations.dead_letters import SETTLED_AFTER_S, DeadLetterAdmin, letters, settled

    wanted = _wanted(subscription, endpoint, topic, since, until, reason, notification, namespace, config, home)
    kafka = kafka_of(config, home)
    table = read_table(kafka)
    now_s = time.time()
    left_alone = Counter[str]()

    def possible() -> Iterator[Found]:
        for delivery, letter in letters(kafka, wanted):
            if table.get(letter.subscription) is None:
                left_alone["over"] += 1
            elif not settled(letter, now_s):
                left_alone["too_new"] += 1
            else:
                yield delivery, letter

    asked = sum(1 for _ in islice(possible(), limit))
    counts = {"redriven": 0, "over": left_alone["over"], "too_new": left_alone["too_new"]}
    if asked and (yes or agreed(f"Try {asked:,} deliveries again?")):
        with DeadLetterAdmin(kafka) as desk:
            counts["redriven"] = desk.redrive(islice(possible(), asked))
    if json:
        print_json(counts)
        return
    say(f"{counts['redriven']:,} deliveries are tried again")
    if counts["over"]:
        say(f"{counts['over']:,} are not: their subscription is over")
    if counts["too_new"]:
        say(f"{counts['too_new']:,} are not: they were given up less than {SETTLED_AFTER_S:g} s ago")


@letters_app.command()
def purge(
    subscription: SubscriptionOption = None,
    endpoint: EndpointOption = None,
    topic: TopicsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: ReasonOption = None,
    notification: NotificationOption = None,
    limit: LimitOption = None,
    namespace: NamespaceOption = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Delete dead letters, with their messages. That there were such stays on record."""
    from arborcast.dispatch.operations.dead_letters import DeadLetterAdmin, letters

    wanted = _wanted(subscription, endpoint, topic, since, until, reason, notification, namespace, config, home)
    kafka = kafka_of(config, home)
    asked = sum(1 for _ in islice(letters(kafka, wanted), limit))
    purged = 0
    if asked and (yes or agreed(f"Delete {asked:,} dead letters for good?")):
        with DeadLetterAdmin(kafka) as desk:
            purged = desk.purge(islice(letters(kafka, wanted), asked))
    if json:
        print_json({"purged": purged})
    else:
        say(f"{purged:,} dead letters were deleted")


def _wanted(
    subscription: str | None,
    endpoint: str | None,
    topic: str | None,
    since: str | None,
    until: str | None,
    reason: str | None,
    notification: str | None,
    namespace: list[str] | None,
    config: Path | None,
    home: Path | None,
) -> Wanted:
    from arborcast.dispatch.operations.dead_letters import Wanted

    return Wanted(
        subscription or "",
        endpoint or "",
        notification or "",
        topic_test(topic, namespaces_of(namespace), config, home),
        moment_ms("--since", since) if since else None,
        moment_ms("--until", until) if until else None,
        reason or "",
    )


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "notification": letter.notification.id,
        "subscription": letter.subscription,
        "endpoint": letter.endpoint,
        "topic": letter.notification.topic,
        "accepted": moment(letter.notification.accepted_ms),
        "given_up": moment(letter.at_ms),
        "state": letter.state,
        "attempts": letter.number,
        "error": letter.error,
        "detail": letter.detail,
        "status": letter.status or "",
    }


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
    wanted = topic_test(topic, namespaces_of(namespace), config, home)
    kafka = kafka_of(config, home)
    from arborcast.admin.control_log import read_table
    from arborcast.dispatch.operations.replay import Replay, ReplayRefused, ReplaySpan

    made = Replay(kafka, read_table(kafka), subscription, ReplaySpan(since_ms, until_ms, wanted))
    with ProgressShown() as made.progress:
        places = made.find(limit)
    if len(places) > limit:
        raise ReplayRefused(
            f"more than {limit:,} notifications match: choose a shorter time or fewer topics, or a higher --limit"
        )
    between = f"accepted between {moment(since_ms)} and {moment(until_ms)}"
    if places and not dry_run and not yes:
        question = f"Deliver {len(places):,} notifications {between} to {subscription} again?"
        dry_run = not agreed(question)
    with ProgressShown() as made.progress:
        sent = made.send(places) if places and not dry_run else 0
    if json:
        print_json({"replay": made.id if sent else "", "matching": len(places), "sent": sent})
    elif sent:
        say(f"replay {made.id}: {sent:,} notifications are on their way")
    else:
        say(f"{len(places):,} notifications {between} match; nothing was sent")
