"""Every regular expression for untrusted text takes linear time, or the text is bounded before.

Python's engine counts no steps. So each expression is run over long texts that repeat its repeated parts: a
linear one takes milliseconds for a text, a quadratic one minutes, which over all texts exceeds the time limit of the
run. No time is compared.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

_ANY = 100_000
"""The bound of texts limited only by the size of a request."""

# Expressions of more than linear time, with the bound of their texts.
BOUNDED = {
    "arborcast.topic_model.patterns.grammar.Notation.NAMESPACES": 65_536,  # an expression
    "arborcast.topic_model.topics._namespace": 4_096,  # a topic's path
    "arborcast.topic_model.topics._step": 4_096,
}

# Only for texts of operators and of Arborcast itself.
OURS = {
    "arborcast.dispatch.tables.repair._CHECKPOINT",
    "arborcast.dispatch.tables.repair._COMMIT",
    "arborcast.ingest.access.ldap_users._NAMED",
    "arborcast.ingest.access.policy._PREFIX",
    "arborcast.ingest.soap.wsdl._DOCTYPE",
    "arborcast.core.telemetry.log_format._HUMAN",
}


_ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "topic_model", "wire", "client", "directory", "ingest", "dispatch")


def _written() -> Iterator[str]:
    """The module and name of each call of a function of `re` in the packages; `?` for one that makes no constant."""
    for package in PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            module = ".".join(("arborcast", *file.relative_to(_ROOT).with_suffix("").parts))
            text = file.read_text(encoding="utf-8")
            if "import re\n" not in text:
                continue
            tree = ast.parse(text)
            constants = {}
            scopes: list[ast.Module | ast.ClassDef] = [tree]
            scopes += [each for each in tree.body if isinstance(each, ast.ClassDef)]
            for scope in scopes:
                where = f"{module}.{scope.name}" if isinstance(scope, ast.ClassDef) else module
                for each in scope.body:
                    if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                        constants[id(each.value)] = f"{where}.{each.targets[0].id}"
            for node in ast.walk(tree):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="re"))):
                        yield constants.get(id(node), f"{module}.?")


@cache
def _seen() -> list[str]:
    return [name for name in _written() if name not in OURS]


def test_each_expression_has_a_name_and_each_entry_is_used() -> None:
    seen = _seen()
    assert not [name for name in seen if name.endswith("?")], "assign it to a constant of the module"
    assert len(seen) == len({*seen})
    assert BOUNDED.keys() <= {*seen}
    assert {*_written()} - {*seen} == OURS


def test_digits_are_those_of_ascii() -> None:
    """`\\d` matches digits of forty scripts, which int() and other readers convert differently."""
    patterns = {name: _expression(name).pattern for name in _seen()}
    assert [name for name, each in patterns.items() if isinstance(each, str) and r"\d" in each] == []


def _expression(name: str) -> re.Pattern[Any]:
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:number]))
        except ModuleNotFoundError:
            continue
        for part in parts[number:]:
            found = getattr(found, part)
        break
    pattern = getattr(found, "value", found)
    assert isinstance(pattern, re.Pattern)
    return pattern


# The parser is private; only its result is used: pairs of an operation and its arguments.
_parser, _compiler = importlib.import_module("re._parser"), importlib.import_module("re._compiler")
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_POOL = "aZ1 x0_-.:/=\"'<>&;|{}[]()*+\\,%#@!?~\t\n\x01\x7f\xe9"
_MANY = 50


def _matched(operation: Any, argument: Any) -> list[str]:
    """The characters of the pool that one part of an expression matches."""
    part = _compiler.compile(_parser.SubPattern(_parser.State(), [(operation, argument)]))
    return [each for each in _POOL if part.fullmatch(each)]


def _alphabet(parts: Any) -> str:
    """One of the characters that all parts of an expression treat alike."""
    tests: list[list[str]] = []

    def collect(parts: Any) -> None:
        for operation, argument in parts:
            if str(operation) in ("LITERAL", "NOT_LITERAL", "IN"):
                tests.append(_matched(operation, argument))
            for each in _inside(str(operation), argument):
                collect(each)

    collect(parts)
    return "".join({tuple(each in test for test in tests): each for each in reversed(_POOL)}.values())


def _inside(operation: str, argument: Any) -> list[Any]:
    """The sequences of which a part consists."""
    if operation == "BRANCH":
        return list(argument[1])
    if operation in _REPEATS or operation in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return [argument[-1]]
    return [argument] if operation == "ATOMIC_GROUP" else []


def _samples(operation: Any, argument: Any, alphabet: str) -> list[str]:
    """Texts that one part of an expression matches."""
    match str(operation):
        case "LITERAL":
            return [chr(argument)]
        case "NOT_LITERAL" | "ANY" | "IN":
            matched = _matched(operation, argument)
            return [each for each in alphabet if each in matched] or [chr(argument[0][1][0])]
        case "BRANCH":
            return [text for branch in argument[1] for text in _texts(branch, alphabet)]
        case "SUBPATTERN":
            return _texts(argument[-1], alphabet)
        case "ATOMIC_GROUP":
            return _texts(argument, alphabet)
        case repeat if repeat in _REPEATS:
            least, _, repeated = argument
            return [text * max(least, 1) for text in _texts(repeated, alphabet)] + ([""] if least == 0 else [])
        case _:
            return [""]


def _texts(parts: Any, alphabet: str) -> list[str]:
    """Texts that a sequence matches: the shortest of each part, and each other sample of one part at a time."""
    samples = [_samples(operation, argument, alphabet) for operation, argument in parts]
    shortest = [min(each, key=len) for each in samples]
    found = {"".join(shortest): None}
    for index, each in enumerate(samples):
        for sample in each:
            found["".join((*shortest[:index], sample, *shortest[index + 1 :]))] = None
    return list(found)


def _repeated(parts: Any, alphabet: str, before: str = "") -> Iterator[tuple[str, list[str]]]:
    """The unbounded repetitions of an expression: a prefix, and samples of the repeated part."""
    for operation, argument in parts:
        name = str(operation)
        for each in _inside(name, argument):
            yield from _repeated(each, alphabet, before)
        if name in _REPEATS and argument[1] > _MANY:
            yield before, _texts(argument[2], alphabet)
        before += min(_samples(operation, argument, alphabet), key=len)


def _pumped(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Long texts of the repeated part, whose end matches nothing: only then an expression tries again."""
    parts = _parser.parse(pattern.pattern, pattern.flags)
    alphabet = _alphabet(parts)
    cores: dict[tuple[str, str], None] = {}
    for before, repeated in _repeated(parts, alphabet):
        for text in repeated:
            if text:
                cores[before, text] = None
                cores["", text] = None
                cores["", before + text] = None
    for text in filter(None, _texts(parts, alphabet)):
        for end in {1, len(text) // 2, len(text) - 1, len(text)} - {0}:
            cores["", text[:end]] = None
    for before, text in cores:
        yield before + text * ((length - len(before)) // len(text)) + "\x00"


def test_expressions_take_linear_time() -> None:
    methods: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in (_ROOT / package).rglob("*.py"):
            for name, method in re.findall(r"\b(\w+)\.(\w+)\(", file.read_text(encoding="utf-8")):
                methods.setdefault(name, set()).add(method)
    for name in _seen():
        print(name)  # shown when the time is over
        pattern = _expression(name)
        used = methods.get(name.rpartition(".")[2], {"match"})
        for text in _pumped(pattern, BOUNDED.get(name, _ANY)):
            shown = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
            if used & {"search", "findall", "finditer", "split", "sub", "subn"}:
                for _ in pattern.finditer(shown):
                    pass
            elif "match" in used:
                pattern.match(shown)
                pattern.fullmatch(shown)
            else:
                pattern.fullmatch(shown)
