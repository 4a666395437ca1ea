"""Mutation testing: the share of small faults in a module that the named tests find.

    python -m tests.mutation dispatch/delivery/verdict.py -- tests/unit/dispatch/delivery/test_retry.py

Tests are collected once. Each fault replaces the code of a function in a process forked for it, where the tests
that run this function are run until one fails. A fault is another comparison, operator or constant, a condition that is
always or never true, a result of None, or a missing statement. MOST limits the faults of a module to a sample.
"""

from __future__ import annotations

import ast
import gc
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

_SWAPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
_LOGGING = {"debug", "info", "warning", "error", "exception"}

_Key = tuple[str, str, int]  # file, qualified name and first line of a function


class _Faults(ast.NodeTransformer):
    """Counts the possible faults of a module, and makes the one with the number `wanted`."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.lines, self._functions = wanted, list[int](), 0

    def visit(self, node: Any) -> Any:
        match node:
            case ast.Raise() | ast.JoinedStr():
                return node
            case ast.Call(func=ast.Attribute(attr=name)) if name in _LOGGING:
                return node
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions += 1
                node.body = [self.visit(each) for each in node.body]
                self._functions -= 1
                return node
        return self.generic_visit(self._changed(node) if self._functions else node)

    def _changed(self, node: Any) -> Any:
        match node:
            case ast.Compare(ops=[operator, *_]) if type(operator) in _SWAPS and self._here(node):
                node.ops[0] = _SWAPS[type(operator)]()
            case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _SWAPS and self._here(node):
                node.op = _SWAPS[type(operator)]()
            case ast.Constant(value=bool() | int() | float() as value) if self._here(node):
                node.value = not value if isinstance(value, bool) else value + 1
            case ast.If() | ast.IfExp():
                for answer in (True, False):
                    if self._here(node):
                        node.test = ast.Constant(answer)
            case ast.Return(value=ast.expr()) if self._here(node):
                node.value = ast.Constant(None)
            case ast.Assign() | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call()):
                if self._here(node):
                    return ast.Pass()
        return node

    def _here(self, node: ast.AST) -> bool:
        self.lines.append(getattr(node, "lineno", 0))
        return len(self.lines) - 1 == self.wanted


class _Run:
    """Replaces pytest's run of the collected tests."""

    def __init__(self, modules: list[str], most: int) -> None:
        self.modules, self.most = {os.path.realpath(each): each for each in modules}, most
        self.ran: defaultdict[_Key, set[pytest.Item]] = defaultdict(set)
        self.live: defaultdict[_Key, list[FunctionType]] = defaultdict(list)
        self.took: dict[pytest.Item, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            began = time.monotonic()
            sys.setprofile(partial(self._note, item))
            passed = _passes(item)
            sys.setprofile(None)
            assert passed, f"{item.nodeid} fails without a fault"
            self.took[item] = time.monotonic() - began
        gc.unfreeze()  # the functions were frozen after collection
        for each in gc.get_objects():
            if type(each) is FunctionType:
                self.live[_key(each.__code__)].append(each)
        for file, module in self.modules.items():
            self._judge(file, module)
        return True

    def _note(self, item: pytest.Item, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (key := _key(frame.f_code))[0] in self.modules:
            self.ran[key].add(item)

    def _judge(self, file: str, module: str) -> None:
        source = Path(file).read_text(encoding="utf-8")
        counted = _Faults()
        counted.visit(ast.parse(source))
        numbers = range(len(counted.lines))
        chosen = sorted(random.Random(7).sample(numbers, min(self.most, len(numbers))))
        missed = [number for number in chosen if not self._is_found(number, source, file)]
        lines = [counted.lines[number] for number in missed]
        print(f"{module}: {len(chosen) - len(missed)} of {len(chosen)} found; not those in lines", *lines, flush=True)

    def _is_found(self, number: int, source: str, file: str) -> bool:
        """Whether a test fails with this fault, or takes far longer than without it."""
        code = compile(ast.fix_missing_locations(_Faults(number).visit(ast.parse(source))), file, "exec")
        changed = [(each, new) for new in _inside(code) for each in self.live[_key(new)] if each.__code__ != new]
        inner = max((_key(new) for _, new in changed), key=lambda key: len(key[1]), default=None)
        tests = sorted(self.ran[inner], key=self.took.__getitem__) if inner else []
        child = os.fork()
        if not child:
            signal.alarm(5 + int(10 * sum(self.took[each] for each in tests)))
            for function, code in changed:
                function.__code__ = code
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(not all(map(_passes, tests)))
        return os.waitpid(child, 0)[1] != 0


_path_of = cache(os.path.realpath)  # `_note` looks up the file of every call


def _key(code: CodeType) -> _Key:
    return _path_of(code.co_filename), code.co_qualname, code.co_firstlineno


def _inside(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inside(each)


def _passes(item: pytest.Item) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


if __name__ == "__main__":
    split = sys.argv.index("--")
    options = ["-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-o", "timeout=0", "--hypothesis-profile=quick"]
    most = int(os.environ.get("MOST", "10_000"))
    sys.exit(pytest.main([*options, *sys.argv[split + 1 :]], [_Run(sys.argv[1:split], most)]))
