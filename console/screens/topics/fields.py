"""A topic as a form, and a form as a topic. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.datastructures import FormData

from arborcast.console.console import text_of
from arborcast.core.errors import TopicError
from arborcast.core.printable import as_json, printable
from arborcast.topic_model.records.control import FAST, RELIABLE, SPLIT, TopicPolicy, TopicRecord
from arborcast.topic_model.topics import NAME_RULE, TopicPath, is_ncname, parse_path
from arborcast.topic_model.tree.distribution import EVERYWHERE, GROUP, LOCAL, TO, is_distribution
from arborcast.topic_model.tree.plans import check_record

ROUTING: Final[Mapping[str, str]] = {
    RELIABLE: "Never drop, even for timely subscribers",
    SPLIT: "Split large messages for legacy subscribers",
    FAST: "Unacknowledged UDP within the group",
}
"""The words of a routing policy besides the destination, with their effects."""

REACHES: Final[Mapping[str, str]] = {
    LOCAL: "This engine only",
    GROUP: "This group",
    EVERYWHERE: "All groups",
    TO: "This group plus…",
}
"""How far messages go, of the engines of a federation; with TO there are names of groups."""

_LARGEST_PRIORITY = 100

_RETAIN: Final[Mapping[str, bool | None]] = {"": None, "yes": True, "no": False}

_WHOLE = re.compile(r"[+-]?[0-9]{1,6}")


def values_of(record: TopicRecord) -> dict[str, str]:
    """The values of the form's fields."""
    policy = record.policy
    words = policy.routing.split()
    reach = next((word for word in words if is_distribution(word)), "")
    return {
        "code": "" if record.placed else record.code,
        "types": "\n".join(record.message_types),
        "final": "yes" if record.final else "",
        "retain": next(word for word, value in _RETAIN.items() if value == policy.retain),
        "priority": str(policy.priority),
        "publishers": "\n".join(policy.publishers),
        **{f"routing-{word}": "yes" if word in words else "" for word in ROUTING},
        "reach": TO if reach.startswith(TO) else reach,
        "groups": reach.removeprefix(TO).replace(",", ", ") if reach.startswith(TO) else "",
        "queue": "yes" if policy.queue else "",
        "apart": "" if policy.merge else "yes",
    }


def given(form: FormData) -> dict[str, str]:
    names = [*values_of(TopicRecord(TopicPath("x"))), "name", "namespace"]
    return {name: text_of(form, name) for name in names}


def record_of(values: Mapping[str, str], base: TopicRecord, errors: dict[str, str]) -> TopicRecord:
    """The topic of the form. Facts without a field stay as in `base`. Mistakes are added to `errors`, by field."""
    values = _as_before(values, base)
    priority = _priority(values["priority"], errors)
    words = [word for word in ROUTING if values[f"routing-{word}"]]
    words += _reach(values, errors)
    policy = msgspec.structs.replace(
        base.policy,
        retain=_RETAIN.get(values["retain"]),
        priority=priority,
        routing=_in_order(base.policy.routing, words),
        publishers=_lines(values["publishers"]),
        queue=bool(values["queue"]),
        merge=not values["apart"],
    )
    code = values["code"].strip()
    record = msgspec.structs.replace(
        base,
        code=base.code if base.placed and not code else code,
        placed=base.placed and not code,
        message_types=_lines(values["types"]),
        final=bool(values["final"]),
        policy=policy,
        prefixes="",
    )
    # One by one, so that a refusal appears beside its field.
    plain = TopicRecord(base.path)
    parts = {
        "code": msgspec.structs.replace(plain, code=record.code),
        "types": msgspec.structs.replace(plain, message_types=record.message_types),
        "routing": msgspec.structs.replace(plain, policy=TopicPolicy(routing=policy.routing)),
        "publishers": msgspec.structs.replace(plain, policy=TopicPolicy(publishers=policy.publishers)),
    }
    for name, part in parts.items():
        try:
            check_record(part)
        except TopicError as error:
            errors.setdefault(name, str(error))
    return record


def field_of(refusal: str) -> str:
    """The field of a refusal by the tree; empty for none."""
    if refusal.startswith("the topic code"):
        return "code"
    if "cannot be final" in refusal:
        return "final"
    return ""


def path_of(below: str, values: Mapping[str, str]) -> TopicPath:
    """The path of a topic that is to be added: below a node, or as a new tree. Raises TopicError."""
    name = values["name"].strip().strip("/")
    namespace = values["namespace"].strip()
    if not name:
        raise TopicError("a topic needs a name")
    for part in [] if "{" in name else name.split("/"):
        if not is_ncname(part):
            raise TopicError(f"{part[:200]!r} is not a legal topic name: {NAME_RULE}")
    step = f"{{{namespace}}}{name}" if namespace and not name.startswith("{") else name
    return parse_path(f"{below}/{step}" if below else step)


def base_of(text: str) -> TopicRecord | None:
    """The base in a form; None for a new topic. Raises TopicError."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=TopicRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TopicError("this form is not one of ours: load the page again") from error


def as_base(record: TopicRecord | None) -> str:
    """The base for a form."""
    # So that it is the same after it was made fit to be looked at.
    return "" if record is None else as_json(msgspec.to_builtins(record.facts))


def shown(record: TopicRecord | None) -> dict[str, str]:
    """The facts of a topic for people, by their labels; empty for defaults."""
    if record is None:
        return {}
    policy = record.policy
    return {
        "Code": record.code,
        "Message types": ", ".join(record.message_types),
        "Final": "yes" if record.final else "",
        "Retain": {None: "", True: "on", False: "off"}[policy.retain],
        "Priority": str(policy.priority) if policy.priority else "",
        "Publishers": ", ".join(policy.publishers),
        "Routing": policy.routing,
        "Work queue": "yes" if policy.queue else "",
        "Duplicates": "" if policy.merge else "separate",
    }


def differences(before: TopicRecord | None, after: TopicRecord | None) -> list[tuple[str, str, str]]:
    """(what, before, after) of all that differs."""
    old, new = shown(before), shown(after)
    values = ((title, old.get(title, ""), new.get(title, "")) for title in old | new)
    return [each for each in values if each[1] != each[2]]


def _as_before(values: Mapping[str, str], base: TopicRecord) -> dict[str, str]:
    """The former value if the field is unchanged: a page has escaped invisible characters."""
    before = values_of(base)
    return {
        name: before[name] if name in before and text == printable(before[name]) else text
        for name, text in values.items()
    }


def _priority(text: str, errors: dict[str, str]) -> int:
    text = text.strip() or "0"
    if _WHOLE.fullmatch(text) and abs(int(text)) <= _LARGEST_PRIORITY:
        return int(text)
    errors["priority"] = f"a whole number from -{_LARGEST_PRIORITY} to {_LARGEST_PRIORITY} is needed"
    return 0


def _reach(values: Mapping[str, str], errors: dict[str, str]) -> list[str]:
    """How far messages go, as a word; none where that is as above."""
    if values["reach"] != TO:
        return [values["reach"]] if values["reach"] in REACHES else []
    groups = values["groups"].replace(",", " ").split()
    if not groups:
        errors["routing"] = "name the groups that get its messages: north, south"
        return []
    return [TO + ",".join(dict.fromkeys(groups))]


def _lines(text: str) -> tuple[str, ...]:
    """Each line once, without blanks around it."""
    return tuple(dict.fromkeys(line.strip() for line in text.split("\n") if line.strip()))


def _in_order(before: str, words: list[str]) -> str:
    """The words in the order that they had, new ones behind: no difference where nothing was changed."""
    if set(before.split()) == set(words):
        return before
    old = [word for word in before.split() if word in words]
    return " ".join([*old, *(word for word in dict.fromkeys(words) if word not in old)])
