"""ONVIF's device service, as far as clients need it to find the event service: the clock and the list of services."""

from __future__ import annotations

from ingest import answers
from ingest.addresses import Kind, Target
from ingest.envelope import Request
from ingest.gateway import Gateway, Operation, Reply
from ingest.onvif.event_service import TEV, capabilities

TDS = "http://www.onvif.org/ver10/device/wsdl"
_TT = "http://www.onvif.org/ver10/schema"

# The versions of the two services' WSDL that these operations are from.
_VERSION = "<tds:Version><tt:Major>2</tt:Major><tt:Minor>60</tt:Minor></tds:Version>"


def _tds(name: str) -> str:
    return f"{{{TDS}}}{name}"


async def get_system_date_and_time(gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """Our clock: clients date their credentials by it."""
    now = gateway.now()
    return _reply(
        "GetSystemDateAndTime",
        "<tds:SystemDateAndTime><tt:DateTimeType>NTP</tt:DateTimeType><tt:DaylightSavings>false</tt:DaylightSavings>"
        "<tt:TimeZone><tt:TZ>UTC0</tt:TZ></tt:TimeZone><tt:UTCDateTime><tt:Time>"
        f"<tt:Hour>{now.hour}</tt:Hour><tt:Minute>{now.minute}</tt:Minute><tt:Second>{now.second}</tt:Second>"
        f"</tt:Time><tt:Date><tt:Year>{now.year}</tt:Year><tt:Month>{now.month}</tt:Month><tt:Day>{now.day}</tt:Day>"
        "</tt:Date></tt:UTCDateTime></tds:SystemDateAndTime>",
    )


async def get_services(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Where the services are."""
    detailed = (request.operation.findtext(_tds("IncludeCapability")) or "").strip() in ("1", "true")
    inside = f'<tds:Capabilities xmlns:tev="{TEV}">{capabilities(gateway)}</tds:Capabilities>' if detailed else ""
    return _reply(
        "GetServices",
        f"<tds:Service><tds:Namespace>{TDS}</tds:Namespace><tds:XAddr>{_address(gateway, Kind.DEVICE_SERVICE)}"
        f"</tds:XAddr>{_VERSION}</tds:Service>"
        f"<tds:Service><tds:Namespace>{TEV}</tds:Namespace><tds:XAddr>{_address(gateway, Kind.EVENT_SERVICE)}"
        f"</tds:XAddr>{inside}{_VERSION}</tds:Service>",
    )


async def get_capabilities(gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """The same in the older form."""
    return _reply(
        "GetCapabilities",
        f"<tds:Capabilities><tt:Device><tt:XAddr>{_address(gateway, Kind.DEVICE_SERVICE)}</tt:XAddr></tt:Device>"
        f"<tt:Events><tt:XAddr>{_address(gateway, Kind.EVENT_SERVICE)}</tt:XAddr>"
        "<tt:WSSubscriptionPolicySupport>false</tt:WSSubscriptionPolicySupport>"
        "<tt:WSPullPointSupport>true</tt:WSPullPointSupport>"
        "<tt:WSPausableSubscriptionManagerInterfaceSupport>true</tt:WSPausableSubscriptionManagerInterfaceSupport>"
        "</tt:Events></tds:Capabilities>",
    )


async def get_device_information(_gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """Who we are; clients show it."""
    return _reply(
        "GetDeviceInformation",
        "<tds:Manufacturer>Arborcast</tds:Manufacturer><tds:Model>notification broker</tds:Model>"
        "<tds:FirmwareVersion>1</tds:FirmwareVersion><tds:SerialNumber>none</tds:SerialNumber>"
        "<tds:HardwareId>none</tds:HardwareId>",
    )


def _address(gateway: Gateway, kind: Kind) -> str:
    return answers.text(gateway.own.resource(kind, ""))


def _reply(operation: str, content: str) -> Reply:
    name = f"{operation}Response"
    return Reply(f'<tds:{name} xmlns:tds="{TDS}" xmlns:tt="{_TT}">{content}</tds:{name}>', f"{TDS}/{name}")


_BROKER = frozenset({Kind.BROKER})

OPERATIONS: tuple[Operation, ...] = (
    Operation(_tds("GetSystemDateAndTime"), get_system_date_and_time, _BROKER),
    Operation(_tds("GetServices"), get_services, _BROKER),
    Operation(_tds("GetCapabilities"), get_capabilities, _BROKER),
    Operation(_tds("GetDeviceInformation"), get_device_information, _BROKER),
)
"""What the device service offers."""
