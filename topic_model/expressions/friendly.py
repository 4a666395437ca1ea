"""What a person types on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from topic_model.errors import ExpressionError
from topic_model.expressions.dialects import FULL, compile_paths
from topic_model.expressions.namespaces import Declarations
from topic_model.expressions.writing import write_full
from topic_model.grammar import Notation, check_length, scan
from topic_model.patterns import EVERYTHING, parse_normal
from topic_model.subscriptions import TopicFilter
from topic_model.topics import NCNAME

_colon_path = re.compile(rf"({NCNAME})((?::{NCNAME})+)(//[.*]|/[.*])?")

_PREFIX: Final = 1
_REST: Final = 2
_REACH: Final = 3


def parse_friendly(text: str, namespaces: Mapping[str, str] | None = None) -> TopicFilter:
    """The filter meant by a text in any of these forms, ready to be sent in the Full dialect.

    `a/b//.` and all else that is legal Full; `tns:a/b` when `namespaces` knows the prefix; `{urn:t}a/b` and the rest
    of the notation of normal forms; a colon path `a:b:c`, also with `//.`, `//*` or `/*` behind it; `//.` for
    everything (then `normal` is EVERYTHING and the right thing to send is no filter). Raises ExpressionError.
    """
    check_length(text)
    text = text.strip()
    declarations = Declarations(namespaces or {})
    if text == EVERYTHING:
        return TopicFilter(FULL, text, EVERYTHING)
    if "{" in text:
        pattern = parse_normal(text)
    else:
        text = _with_slashes(text, namespaces or {})
        pattern = compile_paths(text, scan(text, Notation.PREFIXES), declarations)
    try:
        full_text, full_namespaces = write_full(pattern)
    except ExpressionError:
        if pattern.normal == EVERYTHING:
            return TopicFilter(FULL, EVERYTHING, EVERYTHING)
        raise
    return TopicFilter(FULL, full_text, pattern.normal, full_namespaces)


def _with_slashes(text: str, namespaces: Mapping[str, str]) -> str:
    """A colon path as a slash path. One colon after a known prefix makes a QName, anything else with colons a path."""
    match = _colon_path.fullmatch(text)
    if match is None:
        return text
    rest = match.group(_REST)
    if match.group(_PREFIX) in namespaces and rest.count(":") == 1:
        return text
    return match.group(_PREFIX) + rest.replace(":", "/") + (match.group(_REACH) or "")
