from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from lxml import etree

from arborcast.core.errors import InfrastructureError
from arborcast.engine.install import jars
from arborcast.ingest.addresses import OwnAddresses
from arborcast.ingest.soap.wsdl import ServiceDescriptions, published_documents
from arborcast.wire.endpoints import Kind
from tests.support import oasis
from tests.support.gateway_parts import GatewayParts

WSDL = "{http://schemas.xmlsoap.org/wsdl/}"
PROPERTIES = ["GetResourceProperty", "GetMultipleResourceProperties", "GetResourcePropertyDocument"]
_RESOURCES = ("registrations", "subscriptions/s", "pullpoints/p", "registrations/r")
ADDRESSES = ["NotificationBroker", "CreatePullPoint", *_RESOURCES]


@pytest.fixture
def parts() -> GatewayParts:
    parts = GatewayParts()
    parts.gateway.descriptions = ServiceDescriptions(oasis.published())
    return parts


WHOLE = {
    "NotificationBroker": ["NotificationBroker", "CreatePullPoint", *PROPERTIES, "NotificationProducer"],
    "RegisterPublisher": ["RegisterPublisher"],
    "SubscriptionManager": ["PausableSubscriptionManager", *PROPERTIES, "SubscriptionManager"],
    "PullPoint": ["PullPoint"],
    "PublisherRegistrationManager": ["PublisherRegistrationManager", "NotificationConsumer", *PROPERTIES],
}


@pytest.mark.parametrize("path", ["/wsn/NotificationBroker", "/wsn/NotificationBroker/", "/WSN/Broker"])
def test_the_wsdl_of_the_broker(parts: GatewayParts, path: str) -> None:
    root = parts.get(f"{path}?wsdl").root
    bindings = {binding.get("name"): binding for binding in root.iter(f"{WSDL}binding")}
    found: dict[str, list[str]] = {}
    names = []
    for service in root.iter(f"{WSDL}service"):
        for port in service.iter(f"{WSDL}port"):
            names.append(port.get("name"))
            binding = bindings[port.get("binding", "").removeprefix("tns:")]
            port_type = binding.get("type", "").partition(":")[2]
            found.setdefault(service.get("name", ""), []).append(port_type)
    assert {name: list(dict.fromkeys(port_types)) for name, port_types in found.items()} == WHOLE
    assert next(iter(found)) == "NotificationBroker", "most clients use the first service by default"
    assert len(set(names)) == len(names), "WSDL 1.1, 2.6: unique among all ports of the document"
    assert len(list(root.iter(f"{WSDL}binding"))) == len(bindings)
    assert set(bindings) == {f"{each}Soap{version}" for all_ in WHOLE.values() for each in all_ for version in (11, 12)}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_wsdl_of_each_address(parts: GatewayParts, address: str) -> None:
    parts.gateway.own = OwnAddresses("10.0.0.1", 8080, "https://events.example/a&b")
    answer = parts.get(f"/wsn/{address}?wsdl")
    assert (answer.status, answer.headers[b"content-type"]) == (200, b"text/xml; charset=utf-8")
    ports = answer.root.findall(f".//{WSDL}port")
    assert {port[0].get("location") for port in ports} == {f"https://events.example/a&b/wsn/{address}"}
    assert len({etree.QName(port[0]).namespace for port in ports}) == 2
    bindings = {f"tns:{binding.get('name')}" for binding in answer.root.iter(f"{WSDL}binding")}
    assert {port.get("binding") for port in ports} == bindings


def test_operations_and_faults_of_the_published_port_types(parts: GatewayParts) -> None:
    root = parts.get("/wsn/NotificationBroker?WSDL").root
    (binding,) = root.iterfind(f"{WSDL}binding[@name='NotificationBrokerSoap12']")
    operations = {operation.get("name"): operation for operation in binding.iter(f"{WSDL}operation")}
    assert set(operations) == {"Notify", "Subscribe", "GetCurrentMessage", "RegisterPublisher"}
    assert operations["Notify"].find(f"{WSDL}output") is None
    faults = {fault.get("name") for fault in operations["Subscribe"].iter(f"{WSDL}fault")}
    assert {"InvalidFilterFault", "SubscribeCreationFailedFault", "NotifyMessageNotSupportedFault"} <= faults


def test_documents_are_as_published_without_a_dtd(parts: GatewayParts) -> None:
    (jar,) = jars.jar_paths("wsdl")
    with zipfile.ZipFile(jar) as archive:
        schema = archive.read("org/apache/cxf/wsn/wsdl/b-2.xsd")
        addressing = archive.read("org/apache/cxf/wsn/wsdl/ws-addr.xsd")
    assert parts.get("/wsn/wsdl/b-2.xsd").body == schema
    served = parts.get("/wsn/wsdl/ws-addr.xsd").body
    assert (b"DOCTYPE" in addressing, b"DOCTYPE" in served) == (True, False)
    found, expected = (etree.tostring(etree.fromstring(each), method="c14n") for each in (served, addressing))
    assert found == expected


@pytest.mark.parametrize("name", ["nothing.xsd", "", "../../etc/passwd", "wsn.wsdl"])
def test_other_documents_do_not_exist(parts: GatewayParts, name: str) -> None:
    assert parts.get(f"/wsn/wsdl/{name}").status == 404


def test_each_kind_of_address_has_a_wsdl(parts: GatewayParts) -> None:
    for kind in Kind:
        assert parts.get(f"{kind.value}{'x' if kind.value.endswith('/') else ''}?wsdl").status == 200


@pytest.mark.parametrize("path", ["/wsn/NotificationBroker?wsdl", "/wsn/wsdl/b-2.xsd"])
def test_without_the_published_schemas_the_wsdl_is_503(path: str) -> None:
    answer = GatewayParts().get(path)
    assert answer.status == 503
    assert b"arborcast fetch" in answer.body


def test_invalid_jars_are_refused(tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.jar", tmp_path / "other.jar"
    broken.write_bytes(b"not a jar")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("org/x/y/z/a/c.xsd", "<schema/>")
    for jar in (broken, other, tmp_path / "missing.jar"):
        with pytest.raises(InfrastructureError, match=jar.name):
            published_documents(jar)
