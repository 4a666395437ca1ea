"""`arborcast dead-letters`, `arborcast replay`: dead letters, and repeated deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.admin.documents import document
from arborcast.admin.times import moment, period_ms
from arborcast.cli.common import (
    FATES,
    MOST,
    AcceptedSinceOption,
    CommandGroup,
    JsonOption,
    LimitOption,
    ListedOption,
    NamespaceOption,
    NotificationOption,
    SubscriptionOption,
    TopicsOption,
    UntilOption,
    YesOption,
    agreed,
    condition,
    kafka_of,
    note_omitted,
    topic_filter,
)
from arborcast.core.printable import one_line
from arborcast.engine.monitoring.figures import many
from arborcast.engine.terminal import ProgressShown, console, print_error, print_json, print_json_line, print_line

if TYPE_CHECKING:
    from arborcast.admin.dead_letters import Letter

letters_app = CommandGroup(help="Failed deliveries, with their messages.", no_args_is_help=True)

EndpointOption = Annotated[str, typer.Option("--endpoint", help="Only to this URL.", metavar="URL", callback=condition)]
SinceOption = Annotated[
    str,
    typer.Option("--since", help="Only failed since: 30m, 2h, 7d, or an ISO time.", metavar="TIME", callback=condition),
]
ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason",
        help="Only for this reason: an error class, dead, expired, an HTTP status, or words of the detail.",
        callback=condition,
    ),
]


def register(app: typer.Typer) -> None:
    app.add_typer(letters_app, name="dead-letters", rich_help_panel=FATES)
    app.command(rich_help_panel=FATES)(replay)


@letters_app.command("list")
def list_letters(
    subscription: SubscriptionOption = "",
    endpoint: EndpointOption = "",
    topic: TopicsOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    reason: ReasonOption = "",
    notification: NotificationOption = "",
    limit: ListedOption = 100,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """List dead letters, the newest first."""
    from arborcast.admin.dead_letters import LetterFilter, listed

    topics = topic_filter(topic, namespace)
    wanted = LetterFilter(subscription, endpoint, notification, topics, since, until, reason)
    found = listed(kafka_of(), wanted, limit)
    if json:
        print_json({"letters": [_facts(each) for each in found.letters], "more": found.more})
        return
    if not found.letters:
        print_error("no dead letters")
        return
    from rich.text import Text

    for each in found.letters:
        # In lines rather than columns: cut off, an id would be of no use.
        console().print(
            Text.assemble(
                (moment(each.given_up_ms), "dim"),
                f"  {each.notification}  ",
                (one_line(each.topic), "cyan"),
                f"  for {each.subscription}, {each.attempts} {'try' if each.attempts == 1 else 'tries'}: ",
                (each.error or each.state, "bold"),
                f", {one_line(each.detail)}",
            ),
            soft_wrap=True,
        )
    note_omitted(found.more)


@letters_app.command()
def show(
    notification: Annotated[str, typer.Argument(help="The notification's id, as `list` prints it.")],
    subscription: SubscriptionOption = "",
    json: JsonOption = False,
) -> None:
    """Print a dead letter: the notification, the reason, and the message. With --json one line per letter."""
    from arborcast.admin.dead_letters import whole

    for each in whole(kafka_of(), notification, subscription):
        facts = _facts(each.letter) | {
            "publisher": each.publisher,
            "message_id": each.message_id,
            "producer": each.producer,
            "push": each.push,
            "answer": each.answer,
        }
        if json:
            print_json_line(facts | {"payload": each.payload})
            continue
        for name, value in facts.items():
            if value != "":
                print_line(one_line(f"{name}: {value}"))
        print_line(f"\n{each.payload}\n")


@letters_app.command()
def redrive(
    subscription: SubscriptionOption = "",
    endpoint: EndpointOption = "",
    topic: TopicsOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    reason: ReasonOption = "",
    notification: NotificationOption = "",
    limit: LimitOption = None,
    namespace: NamespaceOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Re-queue dead letters in original order, with fresh attempts and expiry."""
    from arborcast.admin import dead_letters
    from arborcast.admin.control_log import read_control
    from arborcast.dispatch.operations.dead_letters import SETTLED_AFTER_S

    topics = topic_filter(topic, namespace)
    wanted = dead_letters.LetterFilter(subscription, endpoint, notification, topics, since, until, reason)
    kafka = kafka_of()
    control = read_control(kafka)
    possible, over, too_new = dead_letters.redrivable(kafka, wanted, limit, control)
    redriven = 0
    if possible and (yes or agreed(f"Retry {many(possible, 'dead letter')}?")):
        redriven = dead_letters.redrive(kafka, wanted, possible, control).redriven
    if json:
        print_json({"redriven": redriven, "over": over, "too_new": too_new})
        return
    print_line(f"{many(redriven, 'delivery', 'deliveries')} re-queued")
    if over:
        print_line(f"{over:,} skipped (subscription ended)")
    if too_new:
        print_line(f"{too_new:,} skipped (failed less than {SETTLED_AFTER_S:g} s ago)")


@letters_app.command()
def purge(
    subscription: SubscriptionOption = "",
    endpoint: EndpointOption = "",
    topic: TopicsOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    reason: ReasonOption = "",
    notification: NotificationOption = "",
    limit: LimitOption = None,
    namespace: NamespaceOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Permanently delete dead letters, with their messages. The delivery record is kept."""
    from arborcast.admin import dead_letters

    topics = topic_filter(topic, namespace)
    wanted = dead_letters.LetterFilter(subscription, endpoint, notification, topics, since, until, reason)
    kafka = kafka_of()
    found = dead_letters.count(kafka, wanted, limit)
    purged = 0
    if found and (yes or agreed(f"Permanently delete {many(found, 'dead letter')}?")):
        purged = dead_letters.purge(kafka, wanted, found)
    if json:
        print_json({"purged": purged})
    else:
        print_line(f"{many(purged, 'dead letter')} deleted")


def _facts(letter: Letter) -> dict[str, Any]:
    facts: dict[str, Any] = document(letter)
    return facts | {"status": letter.status or ""}


def replay(
    since: AcceptedSinceOption,
    subscription: Annotated[str, typer.Option(help="The subscription that gets it, and no other.", metavar="ID")],
    until: UntilOption = "",
    topic: TopicsOption = "",
    limit: Annotated[int, typer.Option(help="Refuse to replay more than this.", min=1, max=MOST)] = 10_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print their number.")] = False,
    continued: Annotated[
        str,
        typer.Option("--continue", help="Omit what this failed replay has sent.", metavar="REPLAY", callback=condition),
    ] = "",
    yes: YesOption = False,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Deliver notifications again, to one subscription alone, labelled as a replay."""
    from arborcast.admin.replay import plan

    since_ms, until_ms = period_ms(since, until)
    kafka = kafka_of()
    with ProgressShown() as progress:
        topics = topic_filter(topic, namespace)
        planned = plan(kafka, subscription, since_ms, until_ms, topics, limit, progress, continued)
    found = len(planned.places)
    between = f"accepted between {moment(planned.since_ms)} and {moment(planned.until_ms)}"
    sent = 0
    if (
        found
        and not dry_run
        and (yes or agreed(f"Deliver {many(found, 'notification')} {between} to {subscription} again?"))
    ):
        with ProgressShown() as progress:
            sent = planned.send(progress)
    if json:
        print_json({"replay": planned.replay.id if sent else "", "matching": found, "sent": sent})
    elif sent:
        print_line(f"replay {planned.replay.id}: {many(sent, 'notification is', 'notifications are')} queued")
    else:
        print_line(f"{many(found, 'notification matches', 'notifications match')} {between}; nothing was sent")
