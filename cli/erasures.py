"""`arborcast erase`, `arborcast erasures`: remove payloads from the logs and the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.admin.times import iso, moment
from arborcast.cli.common import (
    OPERATING,
    JsonOption,
    NamespaceOption,
    TopicsOption,
    YesOption,
    agreed,
    condition,
    kafka_of,
    note_no_job,
    topic_filter,
)
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_error, print_json, print_line

if TYPE_CHECKING:
    from arborcast.topic_model.records.control import Erasure


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATING)(erase)
    app.command(rich_help_panel=OPERATING)(erasures)


def erase(
    subject: Annotated[
        str,
        typer.Option(
            "--subject",
            help="Only payloads with this text, as the whole text of an element or value of an attribute.",
            metavar="TEXT",
            callback=condition,
        ),
    ] = "",
    topic: TopicsOption = "",
    notification: Annotated[
        str,
        typer.Option(
            "--notification", help="Only this notification, and its replays.", metavar="ID", callback=condition
        ),
    ] = "",
    before: Annotated[
        str,
        typer.Option(
            "--before",
            help="Only accepted before: 30m, 90d, or 2026-01-31T12:00.",
            show_default="now",
            callback=condition,
        ),
    ] = "",
    namespace: NamespaceOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove payloads of accepted notifications from logs, tables, waiting deliveries, dead letters and pull points."""
    from arborcast.admin import erasures as admin

    request = admin.ErasureRequest(subject, topic_filter(topic, namespace), notification, before)
    request.check()
    admin.check_id(notification)
    kafka = kafka_of()
    question = "Remove these payloads for good? Waiting deliveries of them end, and none can be sent again."
    if not (yes or agreed(question)):
        print_error("nothing was erased")
        return
    requested, kept_ms = admin.erase(kafka, request)
    if json:
        print_json(_facts(requested, kept_ms))
        return
    print_line(f"erasure {requested.scope.id} was requested: `arborcast erasures` shows when it is done")
    _print_kept(kept_ms, "at the earliest ")
    note_no_job()


def erasures(json: JsonOption = False) -> None:
    """List erasures, the latest first, with the removed copies."""
    from arborcast.admin import erasures as admin

    found = admin.listed(kafka_of())
    if json:
        print_json([_facts(*each) for each in found])
        return
    if not found:
        print_error("no erasures")
    for each, kept_ms in found:
        state = f"done {moment(each.done_ms)}" if each.done_ms else "not done"
        print_line(f"{each.scope.id}  {moment(each.at_ms)} by {one_line(each.by)}, {state}")
        print_line(f"  {one_line(admin.described(each))}")
        removed = ", ".join(f"{place.replace('_', ' ')} {count:,}" for place, count in sorted(each.erased.items()))
        print_line(f"  removed: {removed or 'nothing'}")
        _print_kept(kept_ms, "" if each.done_ms else "at the earliest ")


def _print_kept(kept_ms: dict[str, int], earliest: str) -> None:
    for name, at_ms in kept_ms.items():
        until = f"{earliest}{moment(at_ms)}" if at_ms else "no limit: set max.compaction.lag.ms of this Kafka topic"
        print_line(f"  {name} keeps copies until {until}")


def _facts(erasure: Erasure, kept_ms: dict[str, int]) -> dict[str, Any]:
    scope = erasure.scope
    return {
        "erasure": scope.id,
        "by": erasure.by,
        "requested": iso(erasure.at_ms),
        "before": iso(scope.before_ms),
        "subject": scope.subject,
        "topic": scope.topic,
        "notification": scope.notification,
        "removed": erasure.erased,
        "done": iso(erasure.done_ms) if erasure.done_ms else "",
        "kept_until": {name: iso(at_ms) if at_ms else "" for name, at_ms in kept_ms.items()},
    }
