from __future__ import annotations

from datetime import UTC, datetime

import pytest
from lxml import etree

from arborcast.core.errors import PeerError
from arborcast.topic_model.subscriptions import SoapVersion
from arborcast.wire import faults
from arborcast.wire.envelope import Addressing
from arborcast.wire.errors import (
    OperationRefused,
    UnacceptableTermination,
    UnknownFilters,
    UnrecognizedPolicy,
    UnsupportedPolicy,
)
from arborcast.wire.faults import DECLARED
from tests.support import oasis
from tests.support.gateway_parts import HttpAnswer
from tests.support.xpath import elements

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASE_FAULTS = "http://docs.oasis-open.org/wsrf/bf-2"

# Faults without an element.
SOAP_CODES = {"FailedAuthentication", "Client", "VersionMismatch", "MustUnderstand", "ActionNotSupported"}


def rendered(error: PeerError, soap: SoapVersion = "1.1") -> HttpAnswer:
    answer = faults.of_peer(error, soap, Addressing(), NOW)
    return HttpAnswer(answer.status, {}, answer.body)


def detail(answer: HttpAnswer) -> etree._Element:
    (found,) = elements(answer.root, "//*[local-name()='detail' or local-name()='Detail']/*")
    return found


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_fault_is_an_element_with_time_and_description(name: str, soap: SoapVersion) -> None:
    answer = rendered(OperationRefused("because <it> & that", name), soap)
    element = detail(answer)
    family = "wsrf" if "/wsrf/" in DECLARED[name] else "wsn"
    assert (answer.status, answer.text("Action")) == (500, f"http://docs.oasis-open.org/{family}/fault")
    assert element.tag == f"{{{DECLARED[name]}}}{name}"
    timestamp, description, *_ = element
    assert (timestamp.tag, timestamp.text) == (f"{{{BASE_FAULTS}}}Timestamp", "2026-01-01T00:00:00Z")
    assert (description.tag, description.text) == (f"{{{BASE_FAULTS}}}Description", "because <it> & that")
    assert description.get("{http://www.w3.org/XML/1998/namespace}lang") == "en"
    assert oasis.validate(answer.body).tag == element.tag


def test_every_error_of_a_peer_names_a_writable_fault() -> None:
    found: list[type[PeerError]] = [PeerError]
    for kind in found:
        found += kind.__subclasses__()
    assert {kind.fault for kind in found} <= DECLARED.keys() | SOAP_CODES


def valid(error: PeerError) -> etree._Element:
    """The element of the fault, whose message must be valid by the schemas."""
    answer = rendered(error)
    oasis.validate(answer.body)
    return detail(answer)


def test_prefixes_of_qnames_are_declared() -> None:
    first, second = valid(UnknownFilters("no", ("{urn:x&y}F", "plain"))).findall("{*}UnknownFilter")
    assert (first.text, first.nsmap["q"], second.text) == ("q:F", "urn:x&y", "plain")
    for kind in (UnrecognizedPolicy, UnsupportedPolicy):
        element = valid(kind("not here", ("{urn:x}P", "{urn:y}P")))
        names = [(each.text, each.nsmap["q"]) for each in [*element][2:]]
        assert names == [("q:P", "urn:x"), ("q:P", "urn:y")]


def test_a_termination_fault_has_its_minimum() -> None:
    for initial in (True, False):
        element = valid(UnacceptableTermination("too early", NOW, initial=initial))
        assert element.findtext("{http://docs.oasis-open.org/wsn/b-2}MinimumTime") == "2026-01-01T00:00:00Z"


def test_codes_of_an_unknown_operation_in_soap_1_1_and_1_2() -> None:
    error = OperationRefused("no such thing", "ActionNotSupported")
    codes = [value.text for value in rendered(error, "1.2").root.iterfind(".//{*}Value")]
    assert codes == ["soap:Sender", "wsa:ActionNotSupported"]
    assert rendered(error).text("faultcode") == "wsa:ActionNotSupported"
    assert rendered(OperationRefused("a\x00b\ud800c", "Client")).reason == "a?b?c", "characters outside XML"
