"""ONVIF's ItemFilter: what it selects as a condition, and what is no ItemFilter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from arborcast.core.errors import ContentExpressionError
from arborcast.topic_model.expressions.conditions import compile_condition, parse_document
from arborcast.topic_model.expressions.item_filter import to_xpath

MOTION = b"""<tt:Message xmlns:tt="http://www.onvif.org/ver10/schema" UtcTime="2026-01-01T00:00:00Z">
<tt:Source><tt:SimpleItem Name="VideoSourceConfigurationToken" Value="1"/><tt:SimpleItem Name="Rule" Value="it's"/>
</tt:Source><tt:Data><tt:SimpleItem Name="IsMotion" Value="true"/><tt:ElementItem Name="Region"><x/></tt:ElementItem>
</tt:Data></tt:Message>"""

DECLARED = {"tt": "http://www.onvif.org/ver10/schema", "o": "urn:o"}


def holds(text: str, namespaces: Mapping[str, str] = DECLARED) -> bool:
    return compile_condition(to_xpath(text, namespaces)).holds(parse_document(MOTION))


@pytest.mark.parametrize("namespaces", [DECLARED, {}, {"tt": "http://www.onvif.org/ver10/schema"}])
@pytest.mark.parametrize("prefix", ["tt:", ""])
def test_the_prefix_does_not_matter(prefix: str, namespaces: Mapping[str, str]) -> None:
    assert holds(f'boolean(//{prefix}SimpleItem[@Name="IsMotion" and @Value="true"])', namespaces)
    assert not holds(f'boolean(//{prefix}SimpleItem[@Name="IsMotion" and @Value="false"])', namespaces)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('boolean(//tt:ElementItem[@Name="Region"])', True),
        ('boolean(//tt:ElementItem[@Name="IsMotion"])', False),
        ('not(boolean(//tt:SimpleItem[@Name="VideoAnalyticsConfigurationToken"]))', True),
        ('boolean(//tt:SimpleItem[@Value="it\'s"])', True),
        ("boolean(//tt:SimpleItem[@Name='IsMotion'])", True),
        (
            'boolean( //tt:SimpleItem [ @Name = "VideoSourceConfigurationToken"\n and (@Value="1" or @Value="2") ] )\n'
            'and boolean(//tt:SimpleItem[@Name="IsMotion" and not(@Value="false")])',
            True,
        ),
        # `and` binds more than `or`, as in XPath.
        (
            'boolean(//SimpleItem[@Name="Rule"]) or boolean(//SimpleItem[@Name="x"])'
            ' and boolean(//SimpleItem[@Name="y"])',
            True,
        ),
        (
            '(boolean(//SimpleItem[@Name="Rule"]) or boolean(//SimpleItem[@Name="x"]))'
            ' and boolean(//SimpleItem[@Name="y"])',
            False,
        ),
    ],
)
def test_what_it_selects(text: str, answer: bool) -> None:
    assert holds(text) is answer


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "boolean is expected, but the text ends"),
        ("true()", "position 0: boolean is expected, not 'true'"),
        ("boolean(//tt:Source)", "SimpleItem or ElementItem"),
        ("boolean(//tt:SimpleItem)", "[ is expected"),
        ('boolean(/tt:Message/tt:SimpleItem[@Name="a"])', "position 8"),
        ('boolean(//o:SimpleItem[@Name="a"])', "namespace http://www.onvif.org/ver10/schema"),
        ('boolean(//tt:SimpleItem[@Other="a"])', "@Name or @Value"),
        ("boolean(//tt:SimpleItem[@Name=7])", "position 30"),
        ("boolean(//tt:SimpleItem[@Name=a])", "a quoted string"),
        ('boolean(//tt:SimpleItem[@Name!="a"])', "position 29"),
        ('boolean(//tt:SimpleItem[contains(@Name, "a")])', "@Name or @Value"),
        ('boolean(//tt:SimpleItem[@Name="a"]', ") is expected, but the text ends"),
        ('boolean(//tt:SimpleItem[@Name="a"]) boolean', "`and` or `or`"),
        ('boolean(//tt:SimpleItem[@Name="a"]) and', "boolean is expected"),
        ("(" * 20, "16 parentheses"),
        (" " * 5_000, "4096 characters"),
    ],
)
def test_what_is_no_item_filter(text: str, says: str) -> None:
    with pytest.raises(ContentExpressionError) as refused:
        to_xpath(text, DECLARED)
    assert says in str(refused.value)


def test_what_is_taken_costs_what_conditions_may() -> None:
    many = " or ".join(f'boolean(//tt:SimpleItem[@Name="{number}"])' for number in range(40))
    with pytest.raises(Exception, match="256 names"):
        compile_condition(to_xpath(many, DECLARED))
