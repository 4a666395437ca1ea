"""Text that strangers wrote, as it may be looked at.

A terminal obeys what it is shown: an escape sequence sets the clipboard, hides lines or answers in the operator's name,
and the C1 characters (U+0080 to U+009F) do so in one character. Overrides of the direction of writing show other words
than there are. So what such a character is, is written instead: `\\x1b`, `\\u202e`. All other letters stay.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_UNSEEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 without tab and newline
    "\x7f-\x9f"  # DEL, and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # the direction of writing
    "\u2028\u2029"  # which end a line for some
    "\ud800-\udfff"  # which no stream can encode
    "]"
)


def printable(text: str) -> str:
    """The text with every character written out that does something instead of being seen. Idempotent."""
    return _UNSEEN.sub(_written_out, text)


def one_line(text: str) -> str:
    """The same on one line, where the next line is about something else, which a stranger must not be able to write."""
    return printable(text).replace("\n", "\\n")


def is_printable(text: str) -> bool:
    """Whether `printable` would change nothing."""
    return _UNSEEN.search(text) is None


def as_html(text: str) -> str:
    """The text as the content of an HTML element or of a quoted attribute."""
    return escape(printable(text))


def as_json(value: Any, **named: Any) -> str:
    """What json.dumps makes of it. Letters may stay as they are (`ensure_ascii=False`), these characters never."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, **named))


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
