"""Any text in the older envelope is carried out, or refused as the client's fault."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support import legacy_messages as legacy
from tests.support.gateway_parts import GatewayParts

_SEEDS = [
    legacy.subscribe("all:alarm:alarm1", "http://host:9002/wsn-subscribe"),
    legacy.unsubscribe("all:alarm:alarm1", "http://host:9002/wsn-subscribe"),
    legacy.notify("all:alarm:alarm1", "<level n='1'>3 &lt; 4</level>"),
    legacy.notify("all", "text & more", "1-0-1-2"),
    f"<wsnt:Notify xmlns:wsnt='{legacy.WSNT}'>{legacy.notify('a', '<![CDATA[&]]>')}</wsnt:Notify>",
    legacy.create_pull_point(),
]
_SNIPPETS = [
    "<",
    ">",
    "&",
    "&amp;",
    "&#0;",
    "&#x110000;",
    '"',
    "'",
    "/",
    ":",
    "]]>",
    "<!--",
    "-->",
    "<![CDATA[",
    "<?",
    "?>",
]
_SNIPPETS += [
    "<!DOCTYPE a>",
    "<wsnt:Message>",
    "</wsnt:Message>",
    "<Fragment>",
    "0-",
    "é",
    "Ã©",
    "告",
    "\u202e",
    "xmlns=''",
]


def check(text: str) -> None:
    parts = GatewayParts()
    answer = parts.post(legacy.wsn_process(text), "/wsnprocess")
    assert answer.status in (200, 400, 500)
    if answer.status != 200:
        assert answer.reason
        assert answer.reason != "internal error"
        assert parts.control.records == []
        assert parts.notifications.accepted == []


@st.composite
def _spoiled(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(_SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 3, 10, 60])))
        text = text[:start] + draw(st.sampled_from(["", *_SNIPPETS])) + text[end:]
    return text


@given(_spoiled())
def test_spoiled_texts(text: str) -> None:
    check(text)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")))
def test_any_text(text: str) -> None:
    check(text)
    check(legacy.notify("a", text))
    check(legacy.subscribe(text.replace("<", ""), "http://h/"))
    check(legacy.subscribe("a", text.replace("<", "")))
