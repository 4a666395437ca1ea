"""The dialects of topic expressions, all compiled to patterns.

Each path dialect is a restriction of the full grammar:

    Simple       one root topic
    Concrete     one topic: names only
    ConcreteSet  topics, each optionally with `//.` at its end, joined by `|` (ONVIF)
    Full         everything

An expression without a dialect is Simple.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from arborcast.core.errors import ExpressionError, MultipleTopics, TopicError, UnknownDialect
from arborcast.topic_model.expressions.namespaces import Declarations
from arborcast.topic_model.expressions.writing import write_full
from arborcast.topic_model.expressions.xpath import parse_xpath
from arborcast.topic_model.patterns.grammar import Axis, Notation, RawPath, check_length, refuse, scan
from arborcast.topic_model.patterns.patterns import EVERYTHING, Pattern, alternative, keep, parse_normal, pattern
from arborcast.topic_model.subscriptions import TopicFilter
from arborcast.topic_model.topics import (
    MAX_DEPTH,
    MAX_PATH_LENGTH,
    NCNAME,
    TopicPath,
    is_namespace,
    parse_colon_path,
)

SIMPLE: Final = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Simple"

CONCRETE: Final = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete"

FULL: Final = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Full"

CONCRETE_SET: Final = "http://www.onvif.org/ver10/tev/topicExpression/ConcreteSet"

XPATH: Final = "http://www.w3.org/TR/1999/REC-xpath-19991116"

DIALECTS = (SIMPLE, CONCRETE, FULL, CONCRETE_SET, XPATH)
"""The dialects that `parse` reads, in the order of the resource property TopicExpressionDialect."""

_plain = re.compile(rf"[ \t\r\n]*(?:({NCNAME}):)?({NCNAME}(?:/{NCNAME})*)[ \t\r\n]*")


def parse(text: str, dialect: str | None, namespaces: Mapping[str, str], *, legacy: bool = False) -> TopicFilter:
    """The filter of an expression; `namespaces` are the declarations in scope, the default one under "".

    `legacy`: the older system's mode, which ignores the dialect: a colon path, and everything below it. Raises
    ExpressionError, or UnknownDialect.
    """
    if legacy:
        topic = _colon_topic(text)
        return TopicFilter(dialect or SIMPLE, text.strip(), f"{topic}//.")
    dialect = _known(dialect)
    check_length(text)
    if dialect == XPATH:
        xpath = parse_xpath(text, namespaces)
        return TopicFilter(dialect, xpath.text, xpath.normal, dict(xpath.namespaces))
    declarations = Declarations(namespaces)
    paths = scan(text, Notation.PREFIXES)
    _check(text, paths, dialect)
    compiled = compile_paths(text, paths, declarations)
    keep(compiled)
    return TopicFilter(dialect, text.strip(), compiled.normal, declarations.used)


def concrete_topic(
    text: str, dialect: str | None, namespaces: Mapping[str, str], *, legacy: bool = False, colons: bool = False
) -> TopicPath:
    """The topic of a Notify.

    `legacy`: as in `parse`. `colons`: accept a colon path if it is unambiguous, in the Simple dialect and without a
    declared prefix.

    A path of several steps is accepted in the Simple dialect too (Axis cameras), and a trailing `//.` in ConcreteSet
    (devices that repeat the subscriber's expression). Raises ExpressionError, its subclass MultipleTopics for a legal
    expression that may select several topics, or UnknownDialect.
    """
    if legacy:
        return _colon_topic(text)
    dialect = _known(dialect)
    if colons and dialect == SIMPLE and _is_colon_path(text, namespaces):
        return _colon_topic(text)
    plain = _plain_topic(text, namespaces) if dialect != XPATH else None
    if plain is not None:
        return plain
    check_length(text)
    if dialect == XPATH:
        raise MultipleTopics(f"one topic is required here, but the XPath {text[:60]!r} may select several")
    paths = scan(text, Notation.PREFIXES)
    _check(text, paths, CONCRETE if dialect == SIMPLE else dialect)
    if dialect == CONCRETE_SET:
        paths = tuple(_without_subtree(path) for path in paths)
    topic = compile_paths(text, paths, Declarations(namespaces)).single_topic()
    if topic is None:
        raise MultipleTopics(f"one topic is required here, but {text[:60]!r} may select several")
    return topic


def _plain_topic(text: str, namespaces: Mapping[str, str]) -> TopicPath | None:
    """The topic of an expression like `tns:a/b/c`, which means the same in every path dialect; None for any other.

    Nearly all notifications have such a topic, and this takes a tenth of the grammar's time.
    """
    if len(text) > MAX_PATH_LENGTH:
        return None
    match = _plain.fullmatch(text)
    if match is None or text.count("/") >= MAX_DEPTH:
        return None
    prefix, path = match.groups()
    namespace = namespaces.get(prefix or "", "")
    if not namespace:
        return TopicPath(path) if prefix is None else None
    if prefix is None or not is_namespace(namespace) or len(namespace) + len(path) + 2 > MAX_PATH_LENGTH:
        return None
    return TopicPath(f"{{{namespace}}}{path}")


def compile_paths(text: str, paths: tuple[RawPath, ...], declarations: Declarations) -> Pattern:
    """The pattern of scanned paths with prefixes as qualifiers."""
    alternatives = []
    for path in paths:
        if path.qualifier is None:
            root = declarations.default(text, path.position)
        else:
            root = declarations.resolve(path.qualifier, text, path.position)
        steps = []
        for step in path.steps:
            prefix = step.qualifier
            namespace = None if prefix is None else declarations.resolve(prefix, text, step.position - len(prefix) - 1)
            steps.append((step.axis, namespace, step.name))
        try:
            alternatives.append(alternative(f"{{{root}}}", steps))
        except TopicError as error:
            refuse(text, path.position, str(error))
    return pattern(alternatives)


def _known(dialect: str | None) -> str:
    # xsd:anyURI collapses white space; an empty attribute counts as absent.
    dialect = (dialect or "").strip() or SIMPLE
    if dialect not in DIALECTS:
        raise UnknownDialect(f"the topic expression dialect {dialect[:200]!r} is not supported")
    return dialect


def _is_colon_path(text: str, namespaces: Mapping[str, str]) -> bool:
    first, colon, _ = text.partition(":")
    return bool(colon) and "/" not in text and not namespaces.get(first.strip())


def _colon_topic(text: str) -> TopicPath:
    check_length(text)
    try:
        return parse_colon_path(text.strip())
    except TopicError as error:
        raise ExpressionError(f"colon path {text.strip()[:60]!r}: {error}") from error


def _check(text: str, paths: tuple[RawPath, ...], dialect: str) -> None:
    """Refuse what the dialect does not allow; Full is the whole grammar."""
    if dialect == FULL:
        return
    name = dialect.rpartition("/")[2]
    if dialect == CONCRETE_SET:
        paths = tuple(map(_without_subtree, paths))
    elif len(paths) > 1:
        refuse(text, paths[1].position, f"the {name} dialect has no alternatives; use Full")
    for path in paths:
        for step in path.steps:
            if step.axis is Axis.DESCENDANT or step.name in "*.":
                what = "//" if step.axis is Axis.DESCENDANT else step.name
                refuse(text, step.position, f"{what} is not allowed here in the {name} dialect; use Full")
    if dialect == SIMPLE and len(paths[0].steps) > 1:
        refuse(text, paths[0].steps[1].position, "the Simple dialect allows a root topic only; use Concrete or Full")


def _without_subtree(path: RawPath) -> RawPath:
    last = path.steps[-1]
    if len(path.steps) > 1 and last.axis is Axis.DESCENDANT and last.name == ".":
        return RawPath(path.qualifier, path.steps[:-1], path.position)
    return path


# The beginning of an alternative, if it has colons.
_colon_path = re.compile(rf"(?P<start>(?:^|\|)\s*)(?P<first>{NCNAME})(?P<rest>(?::{NCNAME})+)")


def parse_friendly(text: str, namespaces: Mapping[str, str] | None = None) -> TopicFilter:
    """The filter of a person's input in any of these forms, in the Full dialect.

    `a/b//.` and other Full expressions; `tns:a/b` with a prefix of `namespaces`; `{urn:t}a/b` and other normal forms; a
    colon path `a:b:c`, also followed by steps with slashes (`a:b//.`, `a:b/c`); `//.` for all topics (then `normal` is
    EVERYTHING, and no filter should be sent). Whether a name is a prefix does not depend on the text after it. Raises
    ExpressionError.
    """
    check_length(text)
    text = text.strip()
    if "{" in text or text == EVERYTHING:
        pattern = parse_normal(text)
    else:
        text = _with_slashes(text, namespaces or {})
        pattern = compile_paths(text, scan(text, Notation.PREFIXES), Declarations(namespaces or {}))
    if pattern.normal == EVERYTHING:
        return TopicFilter(FULL, EVERYTHING, EVERYTHING)
    full_text, full_namespaces = write_full(pattern)
    return TopicFilter(FULL, full_text, pattern.normal, full_namespaces)


def _with_slashes(text: str, namespaces: Mapping[str, str]) -> str:
    """Colon paths as slash paths. One colon after a declared prefix makes a QName, other colons a path."""

    def replace(match: re.Match[str]) -> str:
        if match["first"] in namespaces and match["rest"].count(":") == 1:
            return match[0]
        return match["start"] + match["first"] + match["rest"].replace(":", "/")

    return _colon_path.sub(replace, text)


# The prefix of a topic's code: `code:1.4.A`.
_CODE = "code"


def with_codes(text: str, namespaces: Mapping[str, str], find: Callable[[str], Sequence[TopicPath]]) -> str:
    """A person's input for `parse_friendly`, with codes replaced by their topics.

    An alternative `code:CODE`, also with further steps (`code:1.4//.`), is the topic with this code, unless `code` is a
    declared prefix. `find` returns the topics with a code; the first one counts. Raises ExpressionError without one: a
    mistyped code would otherwise be a new topic.
    """
    if f"{_CODE}:" not in text or _CODE in namespaces:
        return text
    alternatives = [each.strip() for each in text.split("|")]
    found = [_owner(each, find) for each in alternatives]
    if not any(found):
        return text
    # Topics are written in normal form, which has no prefixes, so the other alternatives are too.
    return "|".join(
        topic or parse_friendly(each, namespaces).normal for topic, each in zip(found, alternatives, strict=True)
    )


def _owner(alternative: str, find: Callable[[str], Sequence[TopicPath]]) -> str:
    prefix, colon, rest = alternative.partition(":")
    if prefix != _CODE or not colon:
        return ""
    code, slash, steps = rest.partition("/")
    if not (owners := find(code)):
        raise ExpressionError(f"no topic has the code {code[:200]!r}; a topic below `code` is written with slashes")
    return f"{owners[0]}{slash}{steps}"
