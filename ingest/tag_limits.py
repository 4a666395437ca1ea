"""How much a request may hold in tags, and one tag in attributes and namespace declarations.

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

NODE_MEMORY = 400
"""What an element or an attribute takes with a text in it, at most: 260 bytes in libxml2, and, where it belongs to a
message, what we note of it."""

COPIES = 4
"""So often the bytes of a body are there: as they came, in the tree, cut up, and on their way into the log."""


def memory_to_read(document: bytes, elements: int) -> int:
    """How many bytes of memory it takes to parse a document, and to cut it up.

    Raises MalformedMessage for one with more than so many elements and attributes, which takes a hundred times its size
    and more. They are counted without parsing, so that what looks like one inside a text counts too.
    """
    found = document.count(b"<") + document.count(b"=")  # at most; as good as the number for what is small
    if found > elements:
        quotes = document.count(b'"') + document.count(b"'")
        found = document.count(b"<") - document.count(b"</") + min(document.count(b"="), quotes // 2)
        if found > elements:
            raise MalformedMessage(f"the request has {found} elements and attributes, {elements} are taken")
    return COPIES * len(document) + NODE_MEMORY * found


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
