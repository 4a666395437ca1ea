"""What a person types on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from topic_model.errors import ExpressionError
from topic_model.expressions.dialects import FULL, compile_paths
from topic_model.expressions.namespaces import Declarations
from topic_model.expressions.writing import write_full
from topic_model.grammar import Notation, check_length, scan
from topic_model.patterns import EVERYTHING, parse_normal
from topic_model.subscriptions import TopicFilter
from topic_model.topics import NCNAME

# The beginning of an alternative, if it has colons.
_colon_path = re.compile(rf"(?P<start>(?:^|\|)\s*)(?P<first>{NCNAME})(?P<rest>(?::{NCNAME})+)")


def parse_friendly(text: str, namespaces: Mapping[str, str] | None = None) -> TopicFilter:
    """The filter meant by a text in any of these forms, ready to be sent in the Full dialect.

    `a/b//.` and all else that is legal Full; `tns:a/b` when `namespaces` knows the prefix; `{urn:t}a/b` and the rest
    of the notation of normal forms; a colon path `a:b:c`, also with steps behind it that have slashes (`a:b//.`,
    `a:b/c`); `//.` for everything (then `normal` is EVERYTHING and the right thing to send is no filter). What comes
    behind a name never decides whether that is a prefix. Raises ExpressionError.
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
    """Colon paths as slash paths. One colon after a known prefix makes a QName, any others a path."""

    def slashed(match: re.Match[str]) -> str:
        if match["first"] in namespaces and match["rest"].count(":") == 1:
            return match[0]
        return match["start"] + match["first"] + match["rest"].replace(":", "/")

    return _colon_path.sub(slashed, text)
