from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from arborcast.core.xml import xml_parser


def test_no_entity_of_a_document_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for entity in ('"secret"', f'SYSTEM "{secret.as_uri()}"'):
        root = etree.fromstring(f"<!DOCTYPE a [<!ENTITY e {entity}>]><a>&e;</a>".encode(), xml_parser())
        assert "secret" not in "".join(str(text) for text in root.itertext(tag=etree.Element))


def test_a_document_that_is_too_deep_is_refused() -> None:
    etree.fromstring(b"<a>" * 200 + b"</a>" * 200, xml_parser())
    with pytest.raises(etree.XMLSyntaxError):
        etree.fromstring(b"<a>" * 300 + b"</a>" * 300, xml_parser())


def test_comments_are_in_the_tree_unless_they_are_not_wanted() -> None:
    document = b"<a><!-- c --><?p i?><b/></a>"
    assert len(etree.fromstring(document, xml_parser())) == 3
    assert len(etree.fromstring(document, xml_parser(comments=False))) == 1
