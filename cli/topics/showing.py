"""Topics and their subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.documents import document
from arborcast.admin.times import moment
from arborcast.cli.common import (
    JsonOption,
    NamespaceOption,
    TopicArgument,
    existing,
    kafka_of,
    namespaces_of,
    one_topic,
    settings_of,
)
from arborcast.core.printable import one_line
from arborcast.engine.terminal import console, print_error, print_json, print_line, print_table

if TYPE_CHECKING:
    from arborcast.topic_model.records.control import TopicRecord
    from arborcast.topic_model.topics import TopicPath
    from arborcast.topic_model.tree.tree import TopicTree


def register(topics_app: typer.Typer) -> None:
    topics_app.command("list")(list_topics)
    topics_app.command("tree")(show_tree)
    topics_app.command()(find)
    topics_app.command()(match)
    topics_app.command()(subscriptions)
    topics_app.command()(problems)


def list_topics(
    expression: Annotated[str, typer.Argument(help="Only those it selects, for instance 'a//.'.")] = "//.",
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """List topics with their facts."""
    from arborcast.admin import control_log, topics

    tree = control_log.read_tree(kafka_of())
    records = topics.listed(tree, expression, namespaces_of(namespace))
    if json:
        print_json(document(records))
        return
    if not records:
        print_error("no topic of the tree is selected" if len(tree) else "no topics yet")
        return
    rows = ((record.path, record.code, _facts_of(record)) for record in records)
    print_table(("topic", "code", "facts"), rows)


def show_tree(
    depth: Annotated[int | None, typer.Option("--depth", help="Number of levels.", min=1)] = None,
    json: JsonOption = False,
) -> None:
    """Draw the topic tree. Nodes that are no topics themselves are dim."""
    from arborcast.admin import control_log, topics

    tree = control_log.read_tree(kafka_of())
    nodes = topics.nodes(tree, depth)
    if json:
        print_json(document(nodes))
        return
    from rich.tree import Tree

    drawing = Tree(f"[bold]{len(tree)} topics[/]")
    # A stack and not recursion: where to draw, and what.
    waiting = [(drawing, nodes)]
    while waiting:
        branch, below = waiting.pop()
        waiting += [(branch.add(_label_of(tree, node.path)), list(node.children)) for node in below]
    console().print(drawing)


def find(
    code: Annotated[str, typer.Argument(help="The code, for instance 1.4.A.", metavar="CODE")],
    json: JsonOption = False,
) -> None:
    """Find the topic that has a code."""
    from arborcast.admin import control_log, topics

    records = topics.with_code(control_log.read_tree(kafka_of()), code)
    if json:
        print_json(document(records))
        return
    for record in records:
        print_line(one_line(record.path))


def match(
    expression: Annotated[str, typer.Argument(help="For instance 'a//.', 'a/*|b', a:b, {urn:x}a//b.")],
    xpath: Annotated[bool, typer.Option("--xpath", help="The expression is an XPath over the topic set.")] = False,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show which topics a subscription with this expression would get."""
    from arborcast.admin import control_log, topics

    tree = control_log.read_tree(kafka_of())
    paths = topics.matching(tree, expression, namespaces_of(namespace), xpath=xpath)
    if json:
        print_json(paths)
        return
    for path in paths:
        print_line(one_line(path))
    if not paths:
        print_error("no topic of the tree is selected")


def subscriptions(
    topic: TopicArgument,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show the subscriptions that match a topic, with the matching expression."""
    from arborcast.admin import control_log
    from arborcast.admin.subscriptions import recipients

    path = one_topic(topic, namespace)
    control = control_log.read_control(kafka_of())
    found = recipients(control, path)
    if json:
        print_json(document(found))
        return
    if path not in control.table.topics:
        print_error(f"there is no topic {path} (yet); its notifications would go to:")
    if not found:
        print_line("no subscriptions")
        return
    rows = ((each.subscription, each.state, each.expression, each.only_if, each.consumer) for each in found)
    print_table(("subscription", "state", "expression", "only if", "consumer"), rows)


def problems(json: JsonOption = False) -> None:
    """Show topics that cannot be synchronized with the directory, with the remedy."""
    from arborcast.admin import directory
    from arborcast.engine.embedded.home import Home
    from arborcast.engine.embedded.state import has_own_broker

    settings = existing(settings_of())
    found = directory.problems(settings.home)
    if has_own_broker(settings) and Home(settings.home).owner() is None:
        print_error(f"note: no engine runs in {settings.home}: this is the state of its last run")
    if json:
        print_json(document(found))
        return
    for each in found.problems:
        print_line(f"{one_line(each.entry)}\n  since {moment(each.since_ms)}: {one_line(each.reason)}\n  {each.advice}")
    if found.count > len(found.problems):
        print_error(f"and {found.count - len(found.problems):,} more")
    if not found.count:
        print_line("the topics and their directory are the same, according to the leader of the gateways")


def _facts_of(record: TopicRecord) -> str:
    """The facts of a topic beside its code, as text."""
    policy = record.policy
    words = [*record.message_types]
    words += ["final"] * record.final
    words += ["queue" if policy.merge else "queue without merging"] * policy.queue
    words += {True: ["retain"], False: ["no retain"], None: []}[policy.retain]
    words += [f"priority {policy.priority}"] * bool(policy.priority)
    words += [f"routing {policy.routing}"] * bool(policy.routing)
    words += [f"publishers {', '.join(policy.publishers)}"] * bool(policy.publishers)
    return ", ".join(words)


def _label_of(tree: TopicTree, path: TopicPath) -> str:
    """The line of a node in the drawn tree, in rich's markup."""
    from rich.markup import escape

    from arborcast.topic_model.topics import last_step

    name = escape(one_line(last_step(path)))
    record = tree.get(path)
    if record is None:
        return f"[dim]{name}[/]"
    facts = ", ".join(word for word in (record.code, _facts_of(record)) if word)
    return f"{name}  [cyan]{escape(one_line(facts))}[/]" if facts else name
