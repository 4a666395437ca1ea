"""XML from outside, read without doing what it says: no DTD, no entities, no network, bounded in size and depth."""

from __future__ import annotations

from typing import Final

from lxml import etree

from topic_model.errors import DocumentError
from topic_model.topic_set import WSTOP

MAX_DOCUMENT_BYTES: Final = 256 * 1024 * 1024  # a TopicSet of a million topics has about 100 MB


def parse_document(data: bytes, expected_root: str) -> etree._Element:
    """The root element, which must be `{WSTOP}expected_root`. Raises DocumentError."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentError(f"a document may be {MAX_DOCUMENT_BYTES} bytes long, this one is {len(data)}")
    # Without huge_tree, libxml2 stops at 256 nested elements and at texts of 10 MB by itself.
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise DocumentError(f"not well-formed XML: {error.msg}", line=error.lineno) from error
    doctype: str = getattr(root.getroottree().docinfo, "doctype", "")
    if doctype:
        raise DocumentError("a document of topics may not have a DOCTYPE", line=1)
    if root.tag != f"{{{WSTOP}}}{expected_root}":
        raise DocumentError(f"the root element is {root.tag}, {{{WSTOP}}}{expected_root} is needed", line=line_of(root))
    return root


def line_of(element: etree._Element) -> int | None:
    """Where the element begins."""
    line: object = element.sourceline
    return line if isinstance(line, int) else None


def boolean(text: str | None) -> bool:
    """An xs:boolean attribute; absent is false."""
    return text is not None and text.strip() in ("true", "1")


def serialize(root: etree._Element) -> bytes:
    """The document as UTF-8, indented for people."""
    etree.indent(root)
    result: bytes = etree.tostring(root, encoding="UTF-8", xml_declaration=True)
    return result + b"\n"
