"""`arborcast topics`: look at the topic tree of the running engine and change it."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from core.errors import ConfigError
from core.printable import one_line
from core.reasons import reason_of
from jobs.cli.common import (
    SUBSCRIBING,
    ConfigOption,
    HomeOption,
    JsonOption,
    NamespaceOption,
    kafka_of,
    namespaces_of,
    settings_of,
)
from jobs.progress import ProgressShown
from jobs.terminal import console, error_console, print_document, print_json

if TYPE_CHECKING:
    from jobs.settings.loading import Settings
    from topic_model.records.control import ControlRecord, TopicRecord
    from topic_model.topics import TopicPath
    from topic_model.tree.tree import TopicTree

topics_app = typer.Typer(help="Look at the topic tree and change it.", no_args_is_help=True)

Form = Literal["ldif", "topicset", "json"]
TopicArgument = Annotated[str, typer.Argument(help="For instance a/b, a:b, {urn:x}a/b, or p:a/b with -n p=urn:x.")]
FormatOption = Annotated[
    Form | None, typer.Option("--format", "-f", help="Of the document; default: by the file's name or content.")
]
BaseOption = Annotated[
    str | None, typer.Option("--base-dn", help="With LDIF: the virtual root (default: directory.base_dn).")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(topics_app, name="topics", rich_help_panel=SUBSCRIBING)


def _settings(config: Path | None, home: Path | None) -> Settings:
    """The settings, with the broker of the engine that runs in this data directory, if one does; see `kafka_of`."""
    return dataclasses.replace(settings_of(config, home), kafka=kafka_of(config, home))


@topics_app.command("list")
def list_topics(
    expression: Annotated[str, typer.Argument(help="Only those it selects, for instance 'a//.'.")] = "//.",
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List topics with their facts."""
    from jobs.cli import topics_work as commands

    tree = commands.read_tree(_settings(config, home).kafka)
    records = _records(tree, commands.matching(tree, expression, namespaces_of(namespace)))
    if json:
        print_json([_record_document(record) for record in records])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("topic", "code", "facts", box=None, pad_edge=False)
    for record in records:
        table.add_row(*(escape(one_line(each)) for each in (record.path, record.code, _facts_of(record))))
    console().print(table)


@topics_app.command("tree")
def show_tree(
    depth: Annotated[int | None, typer.Option("--depth", help="Show so many levels.", min=1)] = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Draw the topic tree. Nodes that are no topics themselves are dim."""
    from jobs.cli import topics_work as commands

    tree = commands.read_tree(_settings(config, home).kafka)
    if json:
        print_json([_node_document(tree, path, depth) for path in sorted(tree.roots())])
        return
    from rich.tree import Tree

    drawing = Tree(f"[bold]{len(tree)} topics[/]")
    # A stack and not recursion: (where to draw, what is below, how many levels are left).
    waiting = [(drawing, sorted(tree.roots()), depth)]
    while waiting:
        branch, paths, levels = waiting.pop()
        for path in paths:
            node = branch.add(_label_of(tree, path))
            if levels is None or levels > 1:
                waiting.append((node, sorted(tree.children(path)), levels and levels - 1))
    console().print(drawing)


@topics_app.command()
def add(
    topic: TopicArgument,
    code: Annotated[str, typer.Option("--code", help="Short code, unique in the tree.")] = "",
    message_type: Annotated[list[str] | None, typer.Option("--type", help="A message type; may be repeated.")] = None,
    final: Annotated[bool, typer.Option("--final", help="No topics may be added below.")] = False,
    retain: Annotated[
        bool | None,
        typer.Option(
            "--retain/--no-retain",
            help="Keep the last notification for later subscribers, or do not; default: as topics.retain_all says.",
        ),
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="Default priority of notifications.")] = 0,
    routing: Annotated[str, typer.Option("--routing", help="Routing policy.")] = "",
    publisher: Annotated[
        list[str] | None,
        typer.Option("--publisher", help="Who may publish: a user, or group:NAME; may be repeated; default: anyone."),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Replace the facts of a topic that is there.")] = False,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Add a topic, with its facts. Topics above need not be there."""
    from jobs.cli import topics_work as commands
    from topic_model.records.control import TopicPolicy, TopicRecord
    from topic_model.tree.plans import plan_create, plan_update

    record = TopicRecord(
        path=commands.one_topic(topic, namespaces_of(namespace)),
        code=code,
        message_types=tuple(message_type or ()),
        final=final,
        policy=TopicPolicy(retain=retain, priority=priority, routing=routing, publishers=tuple(publisher or ())),
    )

    def plan(tree: TopicTree) -> list[ControlRecord]:
        return plan_update(tree, record) if update and record.path in tree else plan_create(tree, record)

    _report(commands.change_tree(_settings(config, home).kafka, plan), json)


@topics_app.command()
def remove(
    topic: TopicArgument,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="And every topic below.")] = False,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a topic."""
    from jobs.cli import topics_work as commands
    from topic_model.tree.plans import plan_remove

    path = commands.one_topic(topic, namespaces_of(namespace))
    kafka = _settings(config, home).kafka
    _report(commands.change_tree(kafka, lambda tree: plan_remove(tree, path, recursive=recursive)), json)


@topics_app.command()
def move(
    topic: TopicArgument,
    target: Annotated[str, typer.Argument(help="Its new path, which must be free.")],
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Move a topic with all below it."""
    from jobs.cli import topics_work as commands
    from topic_model.tree.plans import plan_move

    namespaces = namespaces_of(namespace)
    old, new = commands.one_topic(topic, namespaces), commands.one_topic(target, namespaces)
    _report(commands.change_tree(_settings(config, home).kafka, lambda tree: plan_move(tree, old, new)), json)


@topics_app.command()
def rename(
    topic: TopicArgument,
    name: Annotated[str, typer.Argument(help="Its new name: b, or {urn:x}b for another namespace.")],
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Give a topic another name, where it is."""
    from jobs.cli import topics_work as commands
    from topic_model.tree.plans import plan_rename

    path = commands.one_topic(topic, namespaces_of(namespace))
    _report(commands.change_tree(_settings(config, home).kafka, lambda tree: plan_rename(tree, path, name)), json)


@topics_app.command("import")
def import_topics(
    file: Annotated[Path, typer.Argument(help="LDIF, TopicSet or TopicNamespace (XML), or JSON; - is standard input.")],
    form: FormatOption = None,
    base_dn: BaseOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Remove the topics that the document lacks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the topics of a document in, all or none."""
    from jobs.cli import topics_work as commands

    settings = _settings(config, home)
    standard_input = str(file) == "-"
    try:
        data = sys.stdin.buffer.read() if standard_input else file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {reason_of(error)}") from error
    form = commands.format_of(None if standard_input else file, form, data)
    records, skipped = commands.read_document(data, form, base_dn or settings.directory.base_dn)
    for line in skipped:
        error_console().print(f"skipped {line}", markup=False, highlight=False)
    with ProgressShown() as progress:
        tree = commands.read_tree(settings.kafka)
        result = commands.plan_import(tree, records, replace=replace, progress=progress)
        if not dry_run:
            commands.write_import(settings.kafka, result.records, progress)
    counts = {"added": result.added, "changed": result.changed, "removed": result.removed, "skipped": len(skipped)}
    if json:
        print_json(counts)
    else:
        console().print(", ".join(f"{number} {word}" for word, number in counts.items()), highlight=False)


@topics_app.command("export")
def export_topics(
    file: Annotated[Path | None, typer.Argument(help="Where to write; default: standard output.")] = None,
    form: FormatOption = None,
    base_dn: BaseOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Write all topics as a document. The LDIF is what ldapadd takes."""
    from jobs.cli import topics_work as commands

    form = commands.format_of(file, form)
    settings = _settings(config, home)
    tree = commands.read_tree(settings.kafka)
    data = commands.write_document(tree.records(), form, base_dn or settings.directory.base_dn)
    if file is None:
        print_document(data)
        return
    try:
        file.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {reason_of(error)}") from error
    error_console().print(f"{len(tree)} topics written to {file}", highlight=False)


@topics_app.command()
def match(
    expression: Annotated[str, typer.Argument(help="For instance 'a//.', 'a/*|b', a:b, {urn:x}a//b.")],
    xpath: Annotated[bool, typer.Option("--xpath", help="The expression is an XPath over the topic set.")] = False,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show which topics a subscription with this expression would get."""
    from jobs.cli import topics_work as commands

    tree = commands.read_tree(_settings(config, home).kafka)
    paths = commands.matching(tree, expression, namespaces_of(namespace), xpath=xpath)
    if json:
        print_json(paths)
        return
    for path in paths:
        console().print(one_line(path), markup=False, highlight=False, soft_wrap=True)
    if not paths:
        error_console().print("no topic of the tree is selected", highlight=False)


@topics_app.command()
def who(
    topic: TopicArgument,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show which subscriptions get the notifications of a topic, through which expression, and on what condition."""
    from jobs.cli import topics_work as commands

    path = commands.one_topic(topic, namespaces_of(namespace))
    table, suspensions = commands.read_subscriptions(_settings(config, home).kafka)
    routes = sorted(table.who(path), key=lambda route: (route.subscription_id, route.expression))
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            route.subscription_id,
            suspensions.state_of(route.subscription, now_ms),
            route.expression,
            commands.conditions_of(route.subscription),
            route.subscription.consumer.address,
        )
        for route in routes
    ]
    names = ("subscription", "state", "expression", "only if", "consumer")
    if json:
        print_json([dict(zip((name.replace(" ", "_") for name in names), row, strict=True)) for row in rows])
        return
    if path not in table.topics:
        error_console().print(f"there is no topic {path} (yet); its notifications would go to:", markup=False)
    if not rows:
        console().print("nobody")
        return
    from rich.markup import escape
    from rich.table import Table

    shown = Table(*names, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*(escape(one_line(each)) for each in row))
    console().print(shown)


def _records(tree: TopicTree, paths: Iterable[TopicPath]) -> list[TopicRecord]:
    return [record for path in paths if (record := tree.get(path)) is not None]


def _facts_of(record: TopicRecord) -> str:
    """What a topic has to say beside its code, in words."""
    policy = record.policy
    words = [*record.message_types]
    words += ["final"] * record.final
    words += {True: ["retain"], False: ["no retain"], None: []}[policy.retain]
    words += [f"priority {policy.priority}"] * bool(policy.priority)
    words += [f"routing {policy.routing}"] * bool(policy.routing)
    words += [f"publishers {', '.join(policy.publishers)}"] * bool(policy.publishers)
    return ", ".join(words)


def _record_document(record: TopicRecord) -> dict[str, Any]:
    """A topic's facts, every one of them."""
    import msgspec

    policy = msgspec.structs.asdict(record.policy)
    return {**msgspec.structs.asdict(record), "policy": policy}


def _node_document(tree: TopicTree, path: TopicPath, depth: int | None) -> dict[str, Any]:
    """A node with what is below it; a topic path is at most 64 levels deep, so recursion is safe."""
    below = [] if depth == 1 else sorted(tree.children(path))
    children = [_node_document(tree, child, depth and depth - 1) for child in below]
    return {"path": path, "topic": path in tree, "children": children}


def _label_of(tree: TopicTree, path: TopicPath) -> str:
    """The line of a node in the drawn tree, in rich's markup."""
    from rich.markup import escape

    from topic_model.topics import last_step

    name = escape(one_line(last_step(path)))
    record = tree.get(path)
    if record is None:
        return f"[dim]{name}[/]"
    facts = ", ".join(word for word in (record.code, _facts_of(record)) if word)
    return f"{name}  [cyan]{escape(one_line(facts))}[/]" if facts else name


def _report(records: Iterable[ControlRecord], json: bool) -> None:
    """What was appended, in a line for people or as JSON."""
    from topic_model.records.control import TopicRecord, TopicRemoved

    put = [record.path for record in records if isinstance(record, TopicRecord)]
    removed = [record.path for record in records if isinstance(record, TopicRemoved)]
    if json:
        print_json({"put": put, "removed": removed})
        return
    for word, paths in (("put", put), ("removed", removed)):
        for path in paths:
            console().print(one_line(f"{word} {path}"), markup=False, highlight=False, soft_wrap=True)
    if not put and not removed:
        console().print("nothing to change")
