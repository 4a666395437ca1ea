"""Writing p:Publication: the delivery attributes of messages, such as validity, type, priority and reliability. Also
the filters of subscriptions by content and type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from arborcast.client.values import ClientError
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.message_types import read_type
from arborcast.topic_model.namespaces import ARBORCAST_POLICY
from arborcast.wire import answers


def publication_attributes(
    valid_until: datetime | None,
    lifespan: timedelta | None,
    kind: str,
    namespaces: Mapping[str, str] | None,
    priority: int | None,
    reliable: bool = False,
    merge: str = "",
) -> str:
    """The attributes of p:Publication for a message; empty for none. Raises ClientError."""
    attributes = ""
    if valid_until is not None:
        attributes += f' ValidUntil="{valid_until.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"'
    if lifespan is not None:
        attributes += f' Lifespan="PT{lifespan.total_seconds():.3f}S"'
    if kind:
        attributes += f" Type={answers.attribute(written_type(kind, namespaces))}"
    if priority is not None:
        attributes += f' Priority="{priority}"'
    if merge:
        attributes += f" Merge={answers.attribute(merge)}"
    return attributes + ' Reliable="true"' * reliable


def publications(attributes: Sequence[str]) -> str:
    """The p:Publication elements of a Notify, from the attributes of each message; empty for none."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(attributes, start=1):
        numbers[text].append(number)
    numbers.pop("", None)
    return "".join(
        f'<p:Publication xmlns:p="{ARBORCAST_POLICY}"{_messages(messages, len(attributes))}{text}/>'
        for text, messages in numbers.items()
    )


def conditions(expressions: Iterable[str], namespaces: Mapping[str, str] | None) -> str:
    """The filters for payloads that fulfil all of these XPath 1.0 conditions."""
    declared = answers.declarations(namespaces or {})
    return "".join(
        f"<wsnt:MessageContent{declared} Dialect={answers.attribute(XPATH_1)}>{answers.text(each)}"
        "</wsnt:MessageContent>"
        for each in expressions
    )


def message_types(types: Iterable[str], namespaces: Mapping[str, str] | None) -> str:
    """The filter for these types; empty for all types. Raises ClientError."""
    names = " ".join(written_type(each, namespaces) for each in types)
    return f'<p:MessageType xmlns:p="{ARBORCAST_POLICY}">{answers.text(names)}</p:MessageType>' if names else ""


def written_type(text: str, namespaces: Mapping[str, str] | None) -> str:
    """A type in the form `{namespace}name`, independent of declarations in scope. Raises ClientError."""
    try:
        declared: dict[str | None, str] = dict((namespaces or {}).items())
        name = read_type(text.strip(), declared)
    except ValueError as error:
        raise ClientError(f"a type is written {{namespace}}name, p:name or name: {error}") from error
    return name if name.startswith("{") else f"{{}}{name}"


def _messages(numbers: Sequence[int], count: int) -> str:
    return "" if len(numbers) == count else f' Messages="{" ".join(map(str, numbers))}"'
