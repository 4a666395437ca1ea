"""Escaping of untrusted text for display.

Terminals execute control characters: an escape sequence sets the clipboard, hides lines or sends input, and a C1
character (U+0080 to U+009F) does so alone. Bidirectional overrides change the visible order of words. Such characters
are replaced by escapes: `\\x1b`, `\\u202e`. All other characters stay.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_CONTROL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 without tab and newline
    "\x7f-\x9f"  # DEL, and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # bidirectional formatting
    "\u2028\u2029"  # line separators of Unicode
    "\ud800-\udfff"  # surrogates, which no stream can encode
    "]"
)

# Outside XML 1.0, which cannot express them.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """The text with control characters escaped. Idempotent."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """As `printable`, with newlines escaped too: untrusted text cannot forge a further line."""
    return printable(text).replace("\n", "\\n")


def is_printable(text: str) -> bool:
    """Whether `printable` would change nothing."""
    return _CONTROL.search(text) is None


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can express the text. Python decodes other bytes of arguments and variables to lone surrogates."""
    return text.encode(errors="ignore").decode() == text


def as_html(text: str) -> str:
    """The text as the content of an HTML element or of a quoted attribute."""
    return escape(printable(text))


def as_json(value: Any, **named: Any) -> str:
    """As json.dumps; control characters are escaped even with `ensure_ascii=False`."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, **named))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
