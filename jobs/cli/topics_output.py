"""How topics and changes of them are shown: to people in words, to scripts as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.terminal import console, print_json
from topic_model.printable import one_line

if TYPE_CHECKING:
    from topic_model.records import ControlRecord, TopicRecord
    from topic_model.topics import TopicPath
    from topic_model.tree import TopicTree


def facts_of(record: TopicRecord) -> str:
    """What a topic has to say beside its code, in words."""
    policy = record.policy
    words = [*record.message_types]
    words += ["final"] * record.final + ["retain"] * policy.retain
    words += [f"priority {policy.priority}"] * bool(policy.priority)
    words += [f"routing {policy.routing}"] * bool(policy.routing)
    words += [f"publishers {', '.join(policy.publishers)}"] * bool(policy.publishers)
    return ", ".join(words)


def record_document(record: TopicRecord) -> dict[str, Any]:
    """A topic's facts, every one of them."""
    import msgspec

    policy = msgspec.structs.asdict(record.policy)
    return {**msgspec.structs.asdict(record), "policy": policy}


def node_document(tree: TopicTree, path: TopicPath, depth: int | None) -> dict[str, Any]:
    """A node with what is below it; a topic path is at most 64 levels deep, so recursion is safe."""
    below = [] if depth == 1 else sorted(tree.children(path))
    children = [node_document(tree, child, depth and depth - 1) for child in below]
    return {"path": path, "topic": path in tree, "children": children}


def label_of(tree: TopicTree, path: TopicPath) -> str:
    """The line of a node in the drawn tree, in rich's markup."""
    from rich.markup import escape

    from topic_model.topics import last_step

    name = escape(one_line(last_step(path)))
    record = tree.get(path)
    if record is None:
        return f"[dim]{name}[/]"
    facts = ", ".join(word for word in (record.code, facts_of(record)) if word)
    return f"{name}  [cyan]{escape(one_line(facts))}[/]" if facts else name


def report(records: Iterable[ControlRecord], json: bool) -> None:
    """What was appended, in a line for people or as JSON."""
    from topic_model.records import TopicRecord, TopicRemoved

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
