"""Topics added, moved and removed, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.documents import document
from arborcast.cli.common import (
    JsonOption,
    NamespaceOption,
    TopicArgument,
    kafka_of,
    one_topic,
)
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_json, print_line

if TYPE_CHECKING:
    from arborcast.admin.topics import TreeChange


def register(topics_app: typer.Typer) -> None:
    for command in (add, remove, move, rename):
        topics_app.command()(command)


def add(
    topic: TopicArgument,
    code: Annotated[str, typer.Option("--code", help="Short code, unique in the tree.")] = "",
    message_type: Annotated[list[str] | None, typer.Option("--type", help="A message type; may be repeated.")] = None,
    final: Annotated[bool, typer.Option("--final", help="No topics may be added below.")] = False,
    retain: Annotated[
        bool | None,
        typer.Option(
            "--retain/--no-retain",
            help="Keep the last notification for later subscribers, or do not; default: topics.retain_all.",
        ),
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", help="Priority of notifications without their own.", min=-100, max=100)
    ] = 0,
    routing: Annotated[
        str,
        typer.Option(
            "--routing",
            help="Routing policy, words: local, group, everywhere or to:G1,G2; reliable, fast, split.",
        ),
    ] = "",
    publisher: Annotated[
        list[str] | None,
        typer.Option("--publisher", help="Who may publish: a user, or group:NAME; may be repeated; default: anyone."),
    ] = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="A work queue: one worker gets each notification, see docs/queues.md.")
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge/--no-merge", help="Of a queue: equal requests that wait are done once.")
    ] = True,
    update: Annotated[bool, typer.Option("--update", help="Replace the facts of an existing topic.")] = False,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Add a topic, with its facts. Topics above need not be there."""
    from arborcast.admin import topics
    from arborcast.topic_model.records.control import TopicPolicy, TopicRecord

    record = TopicRecord(
        path=one_topic(topic, namespace),
        code=code,
        message_types=tuple(message_type or ()),
        final=final,
        policy=TopicPolicy(retain, priority, routing, tuple(publisher or ()), queue, merge),
    )

    _report(topics.add(kafka_of(), record, update=update), json)


def remove(
    topic: TopicArgument,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="And every topic below.")] = False,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a topic."""
    from arborcast.admin import topics

    path = one_topic(topic, namespace)
    _report(topics.remove(kafka_of(), path, recursive=recursive), json)


def move(
    topic: TopicArgument,
    target: Annotated[str, typer.Argument(help="Its new path, which must be free.")],
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Move a topic with all below it."""
    from arborcast.admin import topics

    old, new = (one_topic(each, namespace) for each in (topic, target))
    _report(topics.move(kafka_of(), old, new), json)


def rename(
    topic: TopicArgument,
    name: Annotated[str, typer.Argument(help="Its new name: b, or {urn:x}b for another namespace.")],
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Give a topic another name, where it is."""
    from arborcast.admin import topics

    path = one_topic(topic, namespace)
    _report(topics.rename(kafka_of(), path, name), json)


def _report(change: TreeChange, json: bool) -> None:
    if json:
        print_json(document(change))
        return
    for word, paths in (("put", change.put), ("removed", change.removed)):
        for path in paths:
            print_line(one_line(f"{word} {path}"))
    if not change.put and not change.removed:
        print_line("nothing to change")
