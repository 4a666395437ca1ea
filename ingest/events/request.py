"""A request for a stream: its topics, its conditions, and the position after which it continues. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from arborcast.core.errors import ContentExpressionError
from arborcast.ingest.elements.filters import Filters
from arborcast.ingest.http.asgi import Headers, Scope, header
from arborcast.topic_model.expressions import CONCRETE, FULL, SIMPLE, XPATH, parse, parse_friendly
from arborcast.topic_model.expressions.conditions import check_conditions
from arborcast.topic_model.patterns.patterns import EVERYTHING
from arborcast.topic_model.subscriptions import XPathFilter
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest

ROOT = "/events"

EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"

# Short names of dialects; any other value is the URI.
_DIALECTS = {"simple": SIMPLE, "concrete": CONCRETE, "full": FULL, "xpath": XPATH}

_NAMESPACE = "xmlns:"

_KEYS = ("dialect", "filter", "from", "after")

_MOST_KEYS = 64

# Larger than each offset of a log.
_DIGITS = 18


@dataclass(frozen=True)
class StreamRequest:
    """One request. `stream` is the id of the subscription that it resumes, empty for a new one; `after` the offset of
    the last message that the client has, -1 for none. `media` is the type of the answer."""

    filters: Filters
    current: bool
    stream: str
    after: int
    media: str


def read_request(scope: Scope) -> StreamRequest:
    """Raises ExpressionError, ContentExpressionError, or InvalidRequest."""
    headers: Headers = scope["headers"]
    try:
        query = scope.get("query_string", b"").decode("ascii")
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_KEYS, errors="strict")
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from error
    namespaces = {key.removeprefix(_NAMESPACE): value for key, value in pairs if key.startswith(_NAMESPACE)}
    conditions = [value for key, value in pairs if key == "filter"]
    named = {key: value for key, value in pairs if key != "filter" and not key.startswith(_NAMESPACE)}
    if unknown := sorted(set(named) - set(_KEYS)):
        raise InvalidRequest(f"the query has {', '.join(_KEYS)} and xmlns:PREFIX, no {unknown[0]:.100}")
    if len(conditions) > limits.CONDITIONS:
        raise ContentExpressionError(f"a stream may have {limits.CONDITIONS} filters, not {len(conditions)}")
    start = named.get("from", "now")
    if start not in ("now", "last"):
        raise InvalidRequest(f"from is now or last, not {start:.100}")
    accepted = header(headers, b"accept").decode("latin-1")
    last = header(headers, b"last-event-id").decode("latin-1") or named.get("after", "")
    stream, after = _position(last)
    expression = scope["path"].removeprefix(ROOT).removeprefix("/")
    if "\ufffd" in expression:  # otherwise topics with different letters would be one
        raise InvalidRequest("the address is not percent-encoded UTF-8")
    if expression.endswith("//"):
        expression += "."  # browsers and curl remove the dot: as a segment of a path it means nothing (RFC 3986, 5.2.4)
    return StreamRequest(
        _filters(expression, named.get("dialect", ""), conditions, namespaces),
        start == "last",
        stream,
        after,
        JSON_LINES if JSON_LINES in accepted else EVENT_STREAM,
    )


def position(stream: str, offset: int = -1) -> str:
    """The id of an event: where a stream is."""
    return stream if offset < 0 else f"{stream}.{offset}"


def _position(text: str) -> tuple[str, int]:
    stream, dot, offset = text.partition(".")
    if not dot:
        return stream, -1
    if not (stream and offset.isascii() and offset.isdecimal() and len(offset) <= _DIGITS):
        raise InvalidRequest(f"Last-Event-ID is {text[:60]!r}, and no id of an event of a stream")
    return stream, int(offset)


def _filters(expression: str, dialect: str, conditions: list[str], namespaces: dict[str, str]) -> Filters:
    if dialect:
        topic = parse(expression, _DIALECTS.get(dialect, dialect), namespaces)
    else:
        topic = parse_friendly(expression or EVERYTHING, namespaces)
    content = tuple(
        XPathFilter(XPATH, text, {prefix: uri for prefix, uri in namespaces.items() if f"{prefix}:" in text})
        for text in conditions
    )
    check_conditions(content)
    return Filters(() if topic.normal == EVERYTHING else (topic,), content)
