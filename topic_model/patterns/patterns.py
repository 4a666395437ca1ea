"""Topic patterns, to which all dialects of topic expressions compile, and their normal form for comparison.

A pattern is a union of step lists. It is self-contained (namespaces written out, no prefixes), so a routing table can
be rebuilt from normal forms alone, without the dialects and declarations of the expressions.

Normal form, one line per construct; alternatives are sorted, without repeats, joined by `|`:

    {urn:t}a/b         the topic {urn:t}a/b             (exactly a canonical topic path)
    {urn:t}a/*         children of {urn:t}a
    {urn:t}a//b        every b at any depth below a
    {urn:t}a//*        every strict descendant of a
    {urn:t}a//.        a and every descendant
    {urn:t}*           root topics of urn:t             ({}* : root topics in no namespace)
    {urn:t}//b         every b at any depth in the trees of urn:t
    {urn:t}//.         every topic in the trees of urn:t
    //.                every topic                      (also for a missing filter)
    xpath:...          an XPath over the topic set; see `expressions.xpath`

A name without braces is in its parent's namespace, as in a canonical path, also after `//` (by the parent of each
candidate). `*` selects topics of all namespaces.

One set of topics has many spellings. Normalisation covers the cheap cases: `.` steps, redundant namespaces, the
position of `//` in a run of `*` (`a/*//b` is `a//*/b`), repeated alternatives, and alternatives within the subtree or
the children of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from arborcast.core.errors import ExpressionError, TopicError
from arborcast.topic_model.patterns.alternatives import (
    UNIVERSAL_ROOT,
    Alternative,
    Reach,
    StepTest,
    anchors_above,
    is_virtual,
)
from arborcast.topic_model.patterns.grammar import MAX_EXPRESSION_LENGTH, Axis, Notation, RawPath, scan
from arborcast.topic_model.topics import Step, TopicPath, make_path

EVERYTHING: Final = "//."
"""Normal form of "no filter"."""

XPATH_SCHEME: Final = "xpath:"
"""Prefix of the normal forms of XPath expressions, which require the topic set. No path begins with it."""


_ANY_CHILD: Final = StepTest(Axis.CHILD, None, None)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Alternatives in normal form: sorted, without repeats. Equal patterns have equal `normal`."""

    normal: str
    alternatives: tuple[Alternative, ...]

    def matches(self, path: TopicPath) -> bool:
        return any(alternative.matches(path) for alternative in self.alternatives)

    @property
    def steps(self) -> int:
        """The number of steps below the anchors of all alternatives: an upper bound of the tests for one topic."""
        return sum(len(alternative.rest) for alternative in self.alternatives)

    def single_topic(self) -> TopicPath | None:
        """The topic of this pattern; None if it has wildcards or alternatives."""
        if len(self.alternatives) != 1:
            return None
        (only,) = self.alternatives
        return TopicPath(only.anchor) if not only.rest and only.reach is Reach.SELF else None


def alternative(root: str, steps: Iterable[tuple[Axis, str | None, str]]) -> Alternative:
    """The normal form of these steps below a virtual root; a step is (axis, namespace or None, name or `*` or `.`).
    Raises TopicError if the part before the first wildcard is not a valid path."""
    tests, subtree = _without_dots(steps)
    known = root[1:-1]
    anchor_steps: list[Step] = []
    for test in tests:
        if test.axis is Axis.DESCENDANT or test.name is None:
            break
        known = known if test.namespace is None else test.namespace
        anchor_steps.append((known, test.name))
    anchor = make_path(anchor_steps) if anchor_steps else root
    rest, reach = _without_wandering(tests[len(anchor_steps) :], subtree)
    if not rest and is_virtual(anchor):
        if reach is Reach.SELF:
            raise TopicError("the root of all topics is not a topic")
        if reach is Reach.DESCENDANTS:
            reach = Reach.SUBTREE
    # Below the universal root no namespace is redundant.
    return Alternative(anchor, _without_known_namespaces(rest, known if anchor else None), reach)


def pattern(alternatives: Iterable[Alternative]) -> Pattern:
    """The union of at least one alternative. Raises ExpressionError if its normal form is too long."""
    reaches: dict[tuple[str, tuple[StepTest, ...]], set[Reach]] = {}
    for each in alternatives:
        reaches.setdefault((each.anchor, each.rest), set()).add(each.reach)
    plain = {anchor: _merged(found) for (anchor, rest), found in reaches.items() if not rest}
    remaining = [
        (one.normal, one)
        for (anchor, rest), found in reaches.items()
        for one in (Alternative(anchor, rest, reach) for reach in _merged(found))
        if not _covered(one, plain)
    ]
    remaining.sort(key=lambda item: item[0])
    normal = "|".join(text for text, _ in remaining)
    if len(normal) > MAX_EXPRESSION_LENGTH:
        raise ExpressionError(
            f"the topic expression with its namespaces written out may be {MAX_EXPRESSION_LENGTH} characters long, "
            f"this one is {len(normal)}: {normal[:100]!r}…",
        )
    return Pattern(normal, tuple(one for _, one in remaining))


@lru_cache(maxsize=1024)
def _kept(_normal: str) -> list[Pattern]:
    """The place of a pattern in the cache, empty at first."""
    return []


def keep(compiled: Pattern) -> None:
    """Keep a pattern for `parse_normal`: a long one takes 0.1 s to parse."""
    _kept(compiled.normal)[:] = [compiled]


def parse_normal(normal: str) -> Pattern:
    """The pattern of a normal form, or of other text in its notation; cached. Raises ExpressionError."""
    if not (kept := _kept(normal)):
        kept[:] = [_parse_normal(normal)]
    return kept[0]


def _parse_normal(normal: str) -> Pattern:
    if normal.startswith(XPATH_SCHEME):
        raise ExpressionError("an XPath expression requires the topic set: use expressions.xpath.parse_normal")
    found = []
    for path in scan(normal, Notation.NAMESPACES):
        steps = [(step.axis, step.qualifier, step.name) for step in path.steps]
        try:
            found.append(alternative(_normal_root(path), steps))
        except TopicError as error:
            raise ExpressionError(str(error), path.position) from error
    return pattern(found)


def _normal_root(path: RawPath) -> str:
    if path.qualifier is not None:
        return f"{{{path.qualifier}}}"
    first = path.steps[0]
    return UNIVERSAL_ROOT if first.axis is Axis.DESCENDANT or first.name == "*" else "{}"


def _without_dots(steps: Iterable[tuple[Axis, str | None, str]]) -> tuple[list[StepTest], bool]:
    """Resolve `.` steps: `/.` is redundant; after `//.` the next step (or the end) is at any depth. Returns the other
    steps, and whether the end is."""
    tests: list[StepTest] = []
    deeper = False
    for axis, namespace, name in steps:
        deeper = deeper or axis is Axis.DESCENDANT
        if name != ".":
            tests.append(StepTest(Axis.DESCENDANT if deeper else Axis.CHILD, namespace, None if name == "*" else name))
            deeper = False
    return tests, deeper


def _without_wandering(tests: Sequence[StepTest], subtree: bool) -> tuple[list[StepTest], Reach]:
    """Normalise each run of `*`: k of them with a `//` anywhere mean "at least k levels further down".

    The `//` moves to the name after the run, or into the reach if the run ends the alternative.
    """
    rest: list[StepTest] = []
    run, deeper = 0, False
    for test in tests:
        deeper = deeper or test.axis is Axis.DESCENDANT
        if test.name is None:
            run += 1
            continue
        rest.extend([_ANY_CHILD] * run)
        rest.append(StepTest(Axis.DESCENDANT if deeper else Axis.CHILD, test.namespace, test.name))
        run, deeper = 0, False
    deeper = deeper or subtree
    if run == 0:
        return rest, Reach.SUBTREE if deeper else Reach.SELF
    rest.extend([_ANY_CHILD] * (run - 1))
    return rest, Reach.DESCENDANTS if deeper else Reach.CHILDREN


def _without_known_namespaces(rest: Iterable[StepTest], known: str | None) -> tuple[StepTest, ...]:
    """Omit each namespace that equals the parent's."""
    result: list[StepTest] = []
    for test in rest:
        if test.name is None:
            known = None
        elif test.axis is Axis.DESCENDANT:
            known = test.namespace  # the parent's namespace differs between candidates
        elif test.namespace is not None:
            inherited = test.namespace == known
            known = test.namespace
            test = StepTest(test.axis, None if inherited else test.namespace, test.name)
        result.append(test)
    return tuple(result)


def _merged(reaches: set[Reach]) -> set[Reach]:
    if Reach.SUBTREE in reaches or {Reach.SELF, Reach.DESCENDANTS} <= reaches:
        return {Reach.SUBTREE}
    if Reach.DESCENDANTS in reaches:
        return {Reach.DESCENDANTS}
    return reaches


_ALL_BELOW: Final = {Reach.SUBTREE, Reach.DESCENDANTS}


def _covered(one: Alternative, plain: dict[str, set[Reach]]) -> bool:
    """Whether an alternative without steps selects all topics of this one."""
    if one.rest and plain.get(one.anchor, set()) & _ALL_BELOW:
        return True
    parent_found = False
    for above in anchors_above(one.anchor):
        reaches = plain.get(above, set())
        if reaches & _ALL_BELOW:
            return True
        # A root topic is a child of its namespace's root and of the universal root.
        child = Reach.CHILDREN if is_virtual(one.anchor) else Reach.SELF
        if Reach.CHILDREN in reaches and not parent_found and not one.rest and one.reach is child:
            return True
        parent_found = parent_found or not is_virtual(above)
    return False
