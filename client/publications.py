"""p:Publication, as the clients write it: until when messages are wanted, of which type and how urgent they are, and
whether nobody is to lose them for the sake of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from arborcast.client.values import ClientError
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.message_types import read_type
from arborcast.topic_model.namespaces import ARBORCAST_POLICY
from arborcast.wire import answers


def said_of(
    valid_until: datetime | None,
    lifespan: timedelta | None,
    kind: str,
    namespaces: Mapping[str, str] | None = None,
    priority: int | None = None,
    reliable: bool = False,
    merge: str = "",
) -> str:
    """What is said of a message, as attributes; empty for nothing. Raises ClientError."""
    said = ""
    if valid_until is not None:
        said += f' ValidUntil="{valid_until.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"'
    if lifespan is not None:
        said += f' Lifespan="PT{lifespan.total_seconds():.3f}S"'
    if kind:
        said += f" Type={answers.attribute(written_type(kind, namespaces))}"
    if priority is not None:
        said += f' Priority="{priority}"'
    if merge:
        said += f" Merge={answers.attribute(merge)}"
    return said + ' Reliable="true"' * reliable


def publications(said: Sequence[str]) -> str:
    """The elements behind the messages of a Notify of which this is said; none where nothing is."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, attributes in enumerate(said, start=1):
        numbers[attributes].append(number)
    numbers.pop("", None)
    return "".join(
        f'<p:Publication xmlns:p="{ARBORCAST_POLICY}"{_messages(which, len(said))}{attributes}/>'
        for attributes, which in numbers.items()
    )


def conditions(expressions: Iterable[str], namespaces: Mapping[str, str] | None = None) -> str:
    """The filters for payloads that fulfil all of these, each an XPath 1.0."""
    declared = "".join(f" xmlns:{prefix}={answers.attribute(uri)}" for prefix, uri in (namespaces or {}).items())
    return "".join(
        f"<wsnt:MessageContent{declared} Dialect={answers.attribute(XPATH_1)}>{answers.text(each)}"
        "</wsnt:MessageContent>"
        for each in expressions
    )


def message_types(types: Iterable[str], namespaces: Mapping[str, str] | None = None) -> str:
    """The filter for these types; empty for all of them. Raises ClientError."""
    wanted = " ".join(written_type(each, namespaces) for each in types)
    return f'<p:MessageType xmlns:p="{ARBORCAST_POLICY}">{answers.text(wanted)}</p:MessageType>' if wanted else ""


def written_type(text: str, namespaces: Mapping[str, str] | None = None) -> str:
    """A type as anybody reads it, whatever is declared around it. Raises ClientError."""
    try:
        declared: dict[str | None, str] = dict((namespaces or {}).items())
        name = read_type(text.strip(), declared)
    except ValueError as error:
        raise ClientError(f"a type is written {{namespace}}name, p:name or name: {error}") from error
    return name if name.startswith("{") else f"{{}}{name}"


def _messages(numbers: Sequence[int], count: int) -> str:
    return "" if len(numbers) == count else f' Messages="{" ".join(map(str, numbers))}"'
