"""The parser for untrusted XML: no entities, no DTD, no network."""

from __future__ import annotations

from lxml import etree


def parse_xml(document: bytes, parser: etree.XMLParser) -> etree._Element:
    """The root of a document. Raises XMLSyntaxError, ValueError for an empty document, and MemoryError, which lxml
    reports as an XMLSyntaxError: the document may be well-formed."""
    try:
        return etree.fromstring(document, parser)
    except etree.XMLSyntaxError as error:
        if getattr(error, "code", 0) == etree.ErrorTypes.ERR_NO_MEMORY:  # which its types lack
            raise MemoryError("there is no memory for an XML document") from error
        raise


def xml_parser(*, comments: bool = True, encoding: str | None = None) -> etree.XMLParser:
    """A parser for untrusted documents; libxml2 itself refuses more than 256 nested elements and texts over 10 MB.

    Without `comments`, the tree has no comments and processing instructions. `encoding` overrides that of the document.
    """
    return etree.XMLParser(
        encoding=encoding,
        resolve_entities=False,
        load_dtd=False,
        dtd_validation=False,
        no_network=True,
        huge_tree=False,
        remove_comments=not comments,
        remove_pis=not comments,
    )
