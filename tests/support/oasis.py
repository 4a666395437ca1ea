"""Validation of answers by the schemas that OASIS published, from the fetched jar; without network access."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from lxml import etree

from arborcast.engine.install import jars
from arborcast.ingest.soap.wsdl import published_documents

SOAP = {"http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope"}
WSRF_RL = "http://docs.oasis-open.org/wsrf/rl-2"

_NAMESPACES = {
    "b-2.xsd": "http://docs.oasis-open.org/wsn/b-2",
    "br-2.xsd": "http://docs.oasis-open.org/wsn/br-2",
    "t-1.xsd": "http://docs.oasis-open.org/wsn/t-1",
    "bf-2.xsd": "http://docs.oasis-open.org/wsrf/bf-2",
    "r-2.xsd": "http://docs.oasis-open.org/wsrf/r-2",
    "rp-2.xsd": "http://docs.oasis-open.org/wsrf/rp-2",
    "ws-addr.xsd": "http://www.w3.org/2005/08/addressing",
}

# No package ships the schema of WS-ResourceLifetime, so the elements of it in answers are declared here.
_LIFETIME = f"""
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:bf="{_NAMESPACES["bf-2.xsd"]}"
           targetNamespace="{WSRF_RL}" elementFormDefault="qualified">
  <xs:import namespace="{_NAMESPACES["bf-2.xsd"]}" schemaLocation="bf-2.xsd"/>
  <xs:element name="CurrentTime" type="xs:dateTime"/>
  <xs:element name="TerminationTime" type="xs:dateTime" nillable="true"/>
  <xs:element name="DestroyResponse"><xs:complexType/></xs:element>
  <xs:element name="SetTerminationTimeResponse"><xs:complexType><xs:sequence>
    <xs:element name="NewTerminationTime" type="xs:dateTime" nillable="true"/>
    <xs:element name="CurrentTime" type="xs:dateTime"/>
  </xs:sequence></xs:complexType></xs:element>
  <xs:element name="UnableToSetTerminationTimeFault" type="bf:BaseFaultType"/>
  <xs:element name="TerminationTimeChangeRejectedFault" type="bf:BaseFaultType"/>
  <xs:element name="ResourceNotDestroyedFault" type="bf:BaseFaultType"/>
</xs:schema>
"""


@cache
def published() -> Mapping[str, bytes]:
    """The documents in the fetched jar."""
    (jar,) = jars.jar_paths("wsdl")
    return published_documents(jar)


class _FromJar(etree.Resolver):
    """Resolves the documents' references to one another, and refuses all others."""

    def resolve(self, system_url: str, public_id: str, context: object) -> object:  # type: ignore[override]
        name = system_url.rpartition("/")[2]
        if name == "rl-2.xsd":
            return self.resolve_string(_LIFETIME, context, base_url="oasis:/rl-2.xsd")
        document = published().get(name)
        assert document is not None, f"a schema refers to {system_url}, which is not in the jar"
        return self.resolve_string(document, context, base_url=f"oasis:/{name}")


@cache
def schema() -> etree.XMLSchema:
    """All schemas in one schema."""
    imports = "".join(
        f'<xs:import namespace="{namespace}" schemaLocation="oasis:/{name}"/>'
        for name, namespace in {**_NAMESPACES, "rl-2.xsd": WSRF_RL}.items()
    )
    parser = etree.XMLParser(no_network=True)
    parser.resolvers.add(_FromJar())
    text = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{imports}</xs:schema>'
    return etree.XMLSchema(etree.fromstring(text, parser, base_url="oasis:/all.xsd"))


def validate(xml: bytes) -> etree._Element:
    """Check a SOAP answer: the child of its Body, or of its fault's detail, must be valid. Returns that element.

    A fault without detail has no further content to check; then the Fault is returned. AssertionError has
    the error.
    """
    root = etree.fromstring(xml)
    namespace = etree.QName(root).namespace
    assert namespace in SOAP, f"not a SOAP envelope: {root.tag!s}"
    (body,) = root.iterchildren(f"{{{namespace}}}Body")
    (content,) = body
    if content.tag == f"{{{namespace}}}Fault":
        detail = _checked_fault(content, namespace)
        if detail is None:
            return content
        (content,) = detail
    return validate_element(content)


def validate_element(element: etree._Element) -> etree._Element:
    """Check one element, which must be declared in one of the schemas; returns it."""
    # In a separate document: a validator would otherwise check the envelope around it.
    alone = etree.ElementTree(etree.fromstring(etree.tostring(element, with_tail=False)))
    if not schema().validate(alone):
        text = etree.tostring(element, encoding="unicode")
        entries: Any = schema().error_log  # missing in the stubs
        problems = "\n".join(f"{entry.line}: {entry.message}" for entry in entries)
        raise AssertionError(f"invalid:\n{problems}\n{text}")
    return element


def _checked_fault(fault: etree._Element, namespace: str | None) -> etree._Element | None:
    """The detail of a fault whose other children are those of its SOAP version, in their order."""
    names = [etree.QName(child).localname for child in fault]
    if namespace == "http://schemas.xmlsoap.org/soap/envelope/":
        assert names in (["faultcode", "faultstring"], ["faultcode", "faultstring", "detail"]), names
        assert all(not etree.QName(child).namespace for child in fault), "children of a SOAP 1.1 Fault are unqualified"
    else:
        assert names in (["Code", "Reason"], ["Code", "Reason", "Detail"]), names
        assert all(etree.QName(child).namespace == namespace for child in fault)
    return fault[-1] if names[-1].lower() == "detail" else None
