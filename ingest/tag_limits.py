"""How much one tag may hold: attributes and namespace declarations.

libxml2 takes any number of them, and so do we in linear time; receivers of a payload may not, since many a parser
compares each attribute with each other. libxml2's own bounds (256 levels, names of 50,000 characters, 10 MB in one
text) stay on; that is seen to in `xml_reading.make_parser`.
"""

from __future__ import annotations

import re

from ingest.errors import MalformedMessage

MAX_ATTRIBUTES = 1_000
"""Attributes of one element, its namespace declarations among them."""

MAX_DECLARATIONS = 256
"""Namespace declarations of one element."""

MAX_DECLARATIONS_IN_ALL = 100_000
"""Of one message: those who declare a namespace anew on each element need a tenth of it."""

# 257 declarations have 12 bytes each. What is shorter, as nearly every tag is, is not looked at.
_LARGE = 3_000
_LARGE_TAG = re.compile(rb"<([^\s<>/!?][^<]{%d,})" % (_LARGE - 2))

ATTRIBUTE = re.compile(rb"(?<=[\s\"'])([^\s=\"'<>/]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')|(>)")
"""Name and quoted value of an attribute, or the end of its tag. Looked for behind the tag's name.

A name is tried from its first letter only, and no blank is looked at twice: long names, and blanks without end, take a
time that is linear.
"""


def check_tags(document: bytes) -> None:
    """Raises MalformedMessage for a well-formed document, in UTF-8, of which a tag holds too much."""
    if len(document) <= _LARGE:
        return
    declared = document.count(b"xmlns")
    if declared > MAX_DECLARATIONS_IN_ALL:
        raise MalformedMessage(f"{declared} namespaces are declared, {MAX_DECLARATIONS_IN_ALL} may be")
    if document.count(b"=") <= MAX_DECLARATIONS:
        return
    for tag in _LARGE_TAG.finditer(document):
        _check_tag(tag[1])


def _check_tag(tag: bytes) -> None:
    declarations = 0
    for attributes, found in enumerate(ATTRIBUTE.finditer(tag), start=1):
        if found[3]:  # the end of the tag; what follows is text
            return
        declarations += found[1] == b"xmlns" or found[1].startswith(b"xmlns:")
        if declarations > MAX_DECLARATIONS:
            raise MalformedMessage(f"an element declares more than {MAX_DECLARATIONS} namespaces")
        if attributes > MAX_ATTRIBUTES:
            raise MalformedMessage(f"an element has more than {MAX_ATTRIBUTES} attributes")
