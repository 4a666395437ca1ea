"""The engine's WSDL: services, ports and bindings for both SOAP versions, for the port types that OASIS published.

The published documents declare port types without bindings, and are imported unchanged, by absolute addresses at which
the gateway serves them. Operations and faults of bindings are read from them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lxml import etree

from arborcast.core.errors import InfrastructureError
from arborcast.core.xml import xml_parser
from arborcast.ingest.addresses import OwnAddresses, Target
from arborcast.topic_model.namespaces import ACTION_BRW, ACTION_BW, ACTION_RPW, HPWSN
from arborcast.wire.answers import attribute
from arborcast.wire.endpoints import Kind

_SUFFIXES = frozenset({".wsdl", ".xsd"})

# Further down lies XML Schema's own schema, which is not needed.
_DEPTH = len(PurePosixPath("org/apache/cxf/wsn/wsdl/b-2.xsd").parts)

# Apache CXF's own service, at an address that leads nowhere.
_NOT_PUBLISHED = "wsn.wsdl"

# Clients in Java fetch this DTD, which they do not need, from a server that may take a minute.
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>\[]*>\s*")


def published_documents(jar: Path) -> Mapping[str, bytes]:
    """The WSDL and schema files that OASIS published, as a jar carries them, by their file names; 130 kB in all.

    They refer to one another by bare file names, so they can be served side by side without being rewritten. Raises
    InfrastructureError when the jar cannot be read, or is another one.
    """
    try:
        with zipfile.ZipFile(jar) as archive:
            documents = {
                path.name: _DOCTYPE.sub(b"", archive.read(str(path)), count=1)
                for path in map(PurePosixPath, archive.namelist())
                if path.suffix in _SUFFIXES and len(path.parts) == _DEPTH and path.name != _NOT_PUBLISHED
            }
    except (OSError, zipfile.BadZipFile) as error:
        raise InfrastructureError(f"the published WSDL cannot be read from {jar}: {error}") from error
    if "b-2.xsd" not in documents:
        raise InfrastructureError(f"{jar} has no b-2.xsd: it is not the jar of the published WSDL")
    return documents


NAMESPACE = "urn:arborcast:wsdl"
"""Target namespace of our services and bindings."""

FOLDER = "/wsn/wsdl/"
"""Path below which the published documents are served."""

_WSDL = "http://schemas.xmlsoap.org/wsdl/"

_HTTP = "http://schemas.xmlsoap.org/soap/http"

_BINDINGS = {"11": "http://schemas.xmlsoap.org/wsdl/soap/", "12": "http://schemas.xmlsoap.org/wsdl/soap12/"}

_IMPORTED = {"bw-2.wsdl": ACTION_BW, "brw-2.wsdl": ACTION_BRW, "rpw-2.wsdl": ACTION_RPW}

_PROPERTIES = tuple(
    (ACTION_RPW, name)
    for name in (
        "GetResourceProperty",
        "GetMultipleResourceProperties",
        "GetResourcePropertyDocument",
    )
)

RESOURCES = {
    Kind.SUBSCRIPTION: "the SubscriptionReference that Subscribe returns",
    Kind.PULL_POINT: "the PullPoint that CreatePullPoint returns",
    Kind.REGISTRATION: "the PublisherRegistrationReference that RegisterPublisher returns",
}
"""Where clients find the address of a resource."""

# Most clients use the first port of a service by default.
_BROKER = ("NotificationBroker", ((ACTION_BRW, "NotificationBroker"), (ACTION_BW, "CreatePullPoint"), *_PROPERTIES))

_SERVICES: dict[Kind, tuple[str, tuple[tuple[str, str], ...]]] = {
    Kind.BROKER: _BROKER,
    Kind.PULL_POINT_FACTORY: ("CreatePullPoint", tuple(reversed(_BROKER[1][:2]))),
    # ONVIF publishes the WSDL of its services, and its clients contain it.
    Kind.EVENT_SERVICE: _BROKER,
    Kind.DEVICE_SERVICE: _BROKER,
    Kind.SUBSCRIPTION: ("SubscriptionManager", ((ACTION_BW, "PausableSubscriptionManager"), *_PROPERTIES)),
    Kind.PULL_POINT: ("PullPoint", ((ACTION_BW, "PullPoint"),)),
    Kind.REGISTRATION_FACTORY: ("RegisterPublisher", ((ACTION_BRW, "RegisterPublisher"),)),
    Kind.REGISTRATION: (
        "PublisherRegistrationManager",
        ((ACTION_BRW, "PublisherRegistrationManager"), (ACTION_BW, "NotificationConsumer"), *_PROPERTIES),
    ),
}


# The contents of the broker's WSDL: one import makes a whole client; the service of the broker is the first.
_WHOLE = (Kind.BROKER, Kind.REGISTRATION_FACTORY, *RESOURCES)

# There also the port types with less in them, for clients that were made from the published documents.
_ALSO = {
    Kind.BROKER: ((ACTION_BW, "NotificationProducer"),),
    Kind.SUBSCRIPTION: ((ACTION_BW, "SubscriptionManager"),),
}


@dataclass(frozen=True)
class _Operation:
    name: str
    answered: bool
    faults: tuple[str, ...]


class ServiceDescriptions:
    """The answers of `?wsdl`, and the documents that they import."""

    def __init__(self, published: Mapping[str, bytes]) -> None:
        """Raises KeyError when a document or a port type is missing among the published ones."""
        self._published = published
        known = {
            (namespace, name): operations
            for file, namespace in _IMPORTED.items()
            for name, operations in _port_types(published[file])
        }
        described = (*(keys for _, keys in _SERVICES.values()), *_ALSO.values())
        self._port_types = {key: known[key] for keys in described for key in keys}

    def document(self, name: str) -> bytes | None:
        """The published document of this name, None without one."""
        return self._published.get(name)

    def wsdl(self, target: Target, own: OwnAddresses) -> bytes:
        """The service at an address; at the broker's all services.

        A subscription, pull point or registration has an address of its own, which clients set; in the document it is
        the broker's. A request there whose wsa:To names the resource is performed for it; any other gets a fault with
        the address to use. At HPwsn's address the document is HPwsn's own, which its clients import.
        """
        if target.kind is Kind.LEGACY:
            return _hpwsn(own.resource(target.kind, target.id))
        whole = target.kind is Kind.BROKER
        services = {}
        for kind in _WHOLE if whole else (target.kind,):
            # All other addresses offer the broker's operations in addition to those beyond the standard.
            name, port_types = _SERVICES.get(kind, _BROKER)
            services[kind] = name, (*port_types, *_ALSO.get(kind, ())) if whole else port_types
        imports = "".join(
            f'<wsdl:import namespace="{namespace}" location={attribute(f"{own.base}{FOLDER}{file}")}/>'
            for file, namespace in _IMPORTED.items()
        )
        bindings = "".join(
            self._binding(namespace, name, version)
            for namespace, name in dict.fromkeys(key for _, port_types in services.values() for key in port_types)
            for version in _BINDINGS
        )
        address = attribute(own.resource(target.kind, target.id))
        prefixes = "".join(f' xmlns:soap{version}="{namespace}"' for version, namespace in _BINDINGS.items())
        named: set[str] = set()
        described = ""
        for kind, (service, port_types) in services.items():
            where = RESOURCES.get(kind) if whole else None
            note = f"<wsdl:documentation>Set the address in {where}.</wsdl:documentation>" if where else ""
            ports = _ports(service, [name for _, name in port_types], address, named)
            described += f'<wsdl:service name="{service}">{note}{ports}</wsdl:service>\n'
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<wsdl:definitions xmlns:wsdl="{_WSDL}" xmlns:tns="{NAMESPACE}"'
            f'{prefixes} name="{services[target.kind][0]}" targetNamespace="{NAMESPACE}">\n{imports}\n{bindings}\n'
            f"{described}</wsdl:definitions>\n"
        ).encode()

    def _binding(self, namespace: str, port_type: str, version: str) -> str:
        soap = f"soap{version}"
        body = f'<{soap}:body use="literal"/>'
        operations = []
        for operation in self._port_types[namespace, port_type]:
            action = f"{namespace}/{port_type}/{operation.name}{'Request' if operation.answered else ''}"
            output = f"<wsdl:output>{body}</wsdl:output>" if operation.answered else ""
            faults = "".join(
                f'<wsdl:fault name="{name}"><{soap}:fault name="{name}" use="literal"/></wsdl:fault>'
                for name in operation.faults
            )
            operations.append(
                f'<wsdl:operation name="{operation.name}"><{soap}:operation soapAction="{action}"/>'
                f"<wsdl:input>{body}</wsdl:input>{output}{faults}</wsdl:operation>"
            )
        return (
            f'<wsdl:binding name="{port_type}Soap{version}" type="pt:{port_type}" xmlns:pt="{namespace}">'
            f'<{soap}:binding style="document" transport="{_HTTP}"/>{"".join(operations)}</wsdl:binding>\n'
        )


def _hpwsn(address: str) -> bytes:
    """IWsnProcess, with names as its clients were generated from: one text in, one out."""
    messages = "".join(
        f'<wsdl:message name="{name}"><wsdl:part name="parameters" element="tns:{name}"/></wsdl:message>'
        for name in ("WsnProcess", "WsnProcessResponse")
    )
    body = '<soap:body use="literal"/>'
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<wsdl:definitions xmlns:wsdl="{_WSDL}" xmlns:tns="{HPWSN}"'
        f' xmlns:soap="{_BINDINGS["11"]}" xmlns:xs="http://www.w3.org/2001/XMLSchema" name="IWsnProcess"'
        f' targetNamespace="{HPWSN}">\n<wsdl:types><xs:schema targetNamespace="{HPWSN}" elementFormDefault="qualified">'
        '<xs:element name="WsnProcess" type="xs:string"/><xs:element name="WsnProcessResponse" type="xs:string"/>'
        f"</xs:schema></wsdl:types>\n{messages}\n"
        '<wsdl:portType name="IWsnProcess"><wsdl:operation name="WsnProcess"><wsdl:input message="tns:WsnProcess"/>'
        '<wsdl:output message="tns:WsnProcessResponse"/></wsdl:operation></wsdl:portType>\n'
        '<wsdl:binding name="IWsnProcessSoap11" type="tns:IWsnProcess">'
        f'<soap:binding style="document" transport="{_HTTP}"/><wsdl:operation name="WsnProcess">'
        f'<soap:operation soapAction="" style="document"/><wsdl:input>{body}</wsdl:input>'
        f"<wsdl:output>{body}</wsdl:output></wsdl:operation></wsdl:binding>\n"
        '<wsdl:service name="IWsnProcess"><wsdl:port name="IWsnProcessPort" binding="tns:IWsnProcessSoap11">'
        f"<soap:address location={attribute(address)}/></wsdl:port></wsdl:service>\n</wsdl:definitions>\n"
    ).encode()


def _ports(service: str, port_types: list[str], address: str, named: set[str]) -> str:
    """The ports of a service. Names are unique in a document: one in `named` already gets a longer name."""
    ports = ""
    for port_type in port_types:
        name = f"{service}{port_type}" if port_type in named else port_type
        named.add(name)
        ports += "".join(
            f'<wsdl:port name="{name}Soap{version}" binding="tns:{port_type}Soap{version}">'
            f"<soap{version}:address location={address}/></wsdl:port>"
            for version in _BINDINGS
        )
    return ports


def _port_types(document: bytes) -> Iterator[tuple[str, tuple[_Operation, ...]]]:
    for port_type in etree.fromstring(document, xml_parser()).iterchildren(f"{{{_WSDL}}}portType"):
        yield (
            port_type.get("name", ""),
            tuple(
                _Operation(
                    operation.get("name", ""),
                    operation.find(f"{{{_WSDL}}}output") is not None,
                    tuple(fault.get("name", "") for fault in operation.iterchildren(f"{{{_WSDL}}}fault")),
                )
                for operation in port_type.iterchildren(f"{{{_WSDL}}}operation")
            ),
        )
