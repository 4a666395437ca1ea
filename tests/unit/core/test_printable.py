from __future__ import annotations

import json
import unicodedata

import hypothesis.strategies as st
from hypothesis import given

from arborcast.core.printable import as_html, as_json, is_printable, one_line, printable

# Each has an effect: sets the clipboard, sets colours, ends a line for some readers, reverses the writing direction.
ACTS = (
    "\x1b]52;c;aGk=\x07\x9b31m\x00\r\b\x7f\x85\x9d"
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029\udc9b"
)
CONTROLS = {"Cc", "Zl", "Zp", "Cs", "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def test_control_characters_are_escaped_and_letters_stay() -> None:
    shown = printable(f"a{ACTS}b\n\tc")
    assert shown.startswith("a\\x1b]52;c;aGk=\\x07\\x9b31m\\x00\\x0d\\x08\\x7f")
    assert shown.endswith("\\udc9bb\n\tc")
    assert not set(shown) & (set(ACTS) - set("]52;c;aGk=31m"))
    text = "Prüfstand {urn:é}Ж/水/مرحبا/שלום/👩‍🔧 \\ \xa0\n\t"
    assert printable(text) == text
    assert as_html("<b title='x'>\"&\u202e\x9b") == "&lt;b title=&#x27;x&#x27;&gt;&quot;&amp;\\u202e\\x9b"
    assert one_line("a\nb\x85c\u2028d\re\tf") == "a\\nb\\x85c\\u2028d\\x0de\tf"


@given(ANY_TEXT)
def test_printable_text_has_no_effect_on_a_terminal(text: str) -> None:
    shown = printable(text)
    for each in set(shown) - {"\n", "\t"}:
        assert not {unicodedata.category(each), unicodedata.bidirectional(each)} & CONTROLS
    assert is_printable(shown)
    assert printable(shown) == shown
    assert is_printable(text) == (shown == text)


@given(st.dictionaries(ANY_TEXT, ANY_TEXT))
def test_json_keeps_its_value(value: dict[str, str]) -> None:
    for options in ({}, {"ensure_ascii": False}, {"indent": 2, "ensure_ascii": False}):
        text = as_json(value, **options)
        assert is_printable(text)
        assert json.loads(text) == json.loads(json.dumps(value))
