"""Topics named by their codes: `code:1.4.A`, where somebody has the topic tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from core.errors import ExpressionError
from topic_model.expressions.dialects import parse_friendly
from topic_model.topics import TopicPath, is_ncname

_PREFIX = "code"


def with_codes(text: str, namespaces: Mapping[str, str], find: Callable[[str], Sequence[TopicPath]]) -> str:
    """What a person has typed for `parse_friendly`, with topics in the place of their codes.

    An alternative `code:CODE`, also with steps behind it (`code:1.4//.`), is meant so when a topic has that code; when
    none has it, or `code` is a declared prefix, it is what it was without codes: a colon path, a name with a prefix.
    `find` says who has a code, the first one counts. Raises ExpressionError.
    """
    if f"{_PREFIX}:" not in text or _PREFIX in namespaces:
        return text
    alternatives = [each.strip() for each in text.split("|")]
    found = [_found(each, find) for each in alternatives]
    if not any(found):
        return text
    # A topic is put down in the notation of normal forms, which knows no prefixes: so are the others.
    return "|".join(
        topic or parse_friendly(each, namespaces).normal for topic, each in zip(found, alternatives, strict=True)
    )


def _found(alternative: str, find: Callable[[str], Sequence[TopicPath]]) -> str:
    prefix, colon, rest = alternative.partition(":")
    if prefix != _PREFIX or not colon:
        return ""
    code, slash, steps = rest.partition("/")
    owners = find(code)
    if owners:
        return f"{owners[0]}{slash}{steps}"
    if not all(map(is_ncname, code.split(":"))):
        raise ExpressionError(f"no topic has the code {code[:200]!r}", alternative[:1000])
    return ""
