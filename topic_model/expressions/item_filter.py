"""ONVIF's ItemFilter dialect of wsnt:MessageContent, rewritten as the XPath of conditions.

    boolean(//tt:SimpleItem[@Name="Token" and @Value="1"]) and not(boolean(//tt:ElementItem[@Name="Region"]))

It selects SimpleItem or ElementItem by @Name and @Value, with `and`, `or`, `not()` and parentheses: a subset of XPath
1.0 with one difference. Items are in ONVIF's schema with any prefix: clients of cameras omit the prefix, or do not
declare it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from arborcast.core.errors import ContentExpressionError
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.expressions.xpath_syntax import MAX_PARENTHESES, MAX_XPATH_LENGTH
from arborcast.topic_model.subscriptions import XPathFilter
from arborcast.topic_model.topics import NCNAME

ITEM_FILTER: Final = "http://www.onvif.org/ver10/tev/messageContentFilter/ItemFilter"

_SCHEMA = "http://www.onvif.org/ver10/schema"

_PREFIX = "tt"

_token = re.compile(rf"\s*(\"[^\"]*\"|'[^']*'|//|@?{NCNAME}(?::{NCNAME})?|[][()=]|\Z)")


def to_xpath(text: str, namespaces: Mapping[str, str]) -> XPathFilter:
    """The condition for an ItemFilter; `namespaces` are in scope. Raises ContentExpressionError."""
    return XPathFilter(XPATH_1, _Reader(text, namespaces).written(), {_PREFIX: _SCHEMA})


class _Reader:
    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        if len(text) > MAX_XPATH_LENGTH:
            raise ContentExpressionError(f"an ItemFilter may be {MAX_XPATH_LENGTH} characters long, not {len(text)}")
        self._text = text
        self._namespaces = namespaces
        self._written: list[str] = []
        self._open = 0
        self._start = self._end = 0
        self._word = ""
        self._advance()

    def written(self) -> str:
        self._operands(self._items)
        if self._word:
            self._refuse("`and` or `or`")
        return "".join(self._written)

    def _operands(self, single: Callable[[], None]) -> None:
        """Operands joined by `and` and `or`, with the precedence of XPath."""
        self._operand(single)
        while self._word in ("and", "or"):
            self._written.append(f" {self._word} ")
            self._advance()
            self._operand(single)

    def _operand(self, single: Callable[[], None]) -> None:
        if self._word == "not":
            self._take("not")
        elif self._word != "(":
            single()
            return
        self._open += 1
        if self._open > MAX_PARENTHESES:
            self._refuse(f"at most {MAX_PARENTHESES} parentheses open at once")
        self._take("(")
        self._operands(single)
        self._take(")")
        self._open -= 1

    def _items(self) -> None:
        for each in ("boolean", "(", "//"):
            self._take(each)
        prefix, colon, name = self._word.rpartition(":")
        if name not in ("SimpleItem", "ElementItem"):
            self._refuse("SimpleItem or ElementItem")
        if colon and self._namespaces.get(prefix, _SCHEMA) != _SCHEMA:
            self._refuse(f"an item in the namespace {_SCHEMA}")
        self._written.append(f"{_PREFIX}:{name}")
        self._advance()
        self._take("[")
        self._operands(self._comparison)
        self._take("]")
        self._take(")")

    def _comparison(self) -> None:
        if self._word not in ("@Name", "@Value"):
            self._refuse("@Name or @Value")
        self._take(self._word)
        self._take("=")
        if not self._word.startswith(("'", '"')):
            self._refuse("a quoted string")
        self._take(self._word)

    def _take(self, expected: str) -> None:
        if self._word != expected:
            self._refuse(expected)
        self._written.append(expected)
        self._advance()

    def _advance(self) -> None:
        found = _token.match(self._text, self._end)
        if found is None:
            self._start, self._word = self._end, self._text[self._end :].strip()[:1]
            self._refuse("a name, a symbol or a quoted string")
        self._start, self._end = found.span(1)
        self._word = found[1]

    def _refuse(self, expected: str) -> NoReturn:
        found = f"not {self._word[:60]!r}" if self._word else "but the text ends"
        raise ContentExpressionError(f"ItemFilter, position {self._start}: {expected} is expected, {found}")
