"""Reading a SOAP request: from bytes to the operation's element, its version and its addressing headers.

The envelope's namespace decides the version, not the media type. No network access, no entities: a document type
declaration is refused, and libxml2's own limits (depth 256, 10 MB of text) apply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from lxml import etree

from arborcast.topic_model.grants import Caller
from arborcast.topic_model.namespaces import ARBORCAST_POLICY, SOAP11, SOAP12, WSA, WSSE, wsnt
from arborcast.topic_model.subscriptions import SoapVersion
from arborcast.wire import limits
from arborcast.wire.errors import MalformedMessage, NotUnderstood, Packaged, UnreadableRequest, VersionMismatch
from arborcast.wire.fragments import Source
from arborcast.wire.xml_reading import check_tags, read_xml

_VERSIONS: dict[str, SoapVersion] = {SOAP11: "1.1", SOAP12: "1.2"}

# Namespaces of accepted mandatory headers: addressing is answered; security is checked elsewhere, if required.
_UNDERSTOOD = {WSA, WSSE}

PUBLICATION = f"{{{ARBORCAST_POLICY}}}Publication"
"""The header with the delivery attributes of a Notify (`ingest.elements.publication`); accepted as a mandatory header
of a Notify only."""

_NOTIFY = wsnt("Notify")

# A header with another actor or role is for an intermediary.
_OURS = {
    None,
    "",
    "http://schemas.xmlsoap.org/soap/actor/next",
    f"{SOAP12}/role/next",
    f"{SOAP12}/role/ultimateReceiver",
}


@dataclass(frozen=True, slots=True)
class Addressing:
    """The WS-Addressing headers of a request, empty strings for absent ones."""

    action: str = ""
    message_id: str = ""
    to: str = ""


@dataclass(slots=True)
class Request:
    """A SOAP request. `operation` is the body's only child; `addressing` is None without such headers."""

    soap: SoapVersion
    operation: etree._Element
    addressing: Addressing | None
    document: bytes
    root: etree._Element = field(repr=False)
    disconnected: Callable[[], Awaitable[None]] | None = None
    """Waits until the client has disconnected; may be called once the request was read."""
    caller: Caller | None = None
    """The caller; None without authentication."""
    client: str = ""
    """The key of rate limits: the user, without one the address."""
    traceparent: str = ""
    """The trace context of the request, empty for none; see `core.telemetry.tracing`."""
    bounded: bool = True
    """Whether it is untrusted; see Source."""
    _cut: tuple[int, Source] | None = None

    @property
    def name(self) -> str:
        """The operation's name, `{namespace}name`."""
        return str(self.operation.tag)

    def source(self, depth: int) -> Source:
        """The source for cutting unchanged elements out of the body, down to `depth` levels (the envelope is level
        1)."""
        if self._cut is None or self._cut[0] != depth:
            within = self.operation.getparent()
            self._cut = depth, Source(self.document, self.root, depth, within, bounded=self.bounded)
        return self._cut[1]


def parse(document: bytes, content_type: bytes = b"", *, bounded: bool = True) -> Request:
    """Parse a request. Pure, for any thread. Raises UnreadableRequest.

    `bounded=False` is for answers of a broker, which may have many messages.
    """
    try:
        root, document = read_xml(document, content_type)
    except MalformedMessage as error:
        if content_type.lstrip().lower().startswith(b"multipart/"):
            raise Packaged(
                "a MIME package (SOAP with attachments, MTOM) is not accepted: send the envelope alone, without MTOM"
            ) from error
        raise
    if bounded:
        check_tags(document)
    namespace, name = split_tag(root)
    soap = _VERSIONS.get(namespace)
    if soap is None:
        if name == "Envelope":
            raise VersionMismatch(
                f"the envelope's namespace is {namespace[:200]!r}; only SOAP 1.1 ({SOAP11}) and 1.2 ({SOAP12}) are "
                "supported"
            )
        raise MalformedMessage(f"a SOAP Envelope is expected, this is an element {name[:100]!r}")
    try:
        request = _read(document, root, namespace, soap)
    except UnreadableRequest as error:
        error.soap = soap
        raise
    request.bounded = bounded
    return request


def _read(document: bytes, root: etree._Element, namespace: str, soap: SoapVersion) -> Request:
    header_tag, body_tag = f"{{{namespace}}}Header", f"{{{namespace}}}Body"
    header = body = None
    for child in root:
        if child.tag == body_tag and body is None:
            body = child
        elif child.tag == header_tag and header is None and body is None:
            header = child
        else:
            raise MalformedMessage(f"an Envelope has a Header and one Body; there is another {child.tag!s:.100}")
    if body is None:
        raise MalformedMessage("the Envelope has no Body")
    if len(body) != 1:
        what = "none" if len(body) == 0 else f"{len(body)} elements"
        raise MalformedMessage(f"the Body must have exactly one operation, it has {what}")
    if header is not None and len(header) > limits.HEADER_BLOCKS:
        raise MalformedMessage(f"the Header has {len(header)} blocks, {limits.HEADER_BLOCKS} are allowed")
    understood = PUBLICATION if body[0].tag == _NOTIFY else ""
    addressing = _addressing(header, namespace, understood) if header is not None and len(header) else None
    return Request(soap, body[0], addressing, document, root)


def _addressing(header: etree._Element, namespace: str, understood: str) -> Addressing | None:
    found: dict[str, str] = {}
    for block in header:
        block_namespace, name = split_tag(block)
        if block_namespace == WSA:
            found.setdefault(name, (block.text or "").strip())
        elif block_namespace not in _UNDERSTOOD and block.tag != understood and _mandatory(block, namespace):
            raise NotUnderstood(f"the mandatory header {block.tag!s:.200} is not supported", str(block.tag))
    if not found:
        return None
    message_id = found.get("MessageID", "")
    if len(message_id) > limits.MESSAGE_ID:
        raise MalformedMessage(
            f"a wsa:MessageID has {limits.MESSAGE_ID} characters at most, this one {len(message_id)}"
        )
    return Addressing(found.get("Action", ""), message_id, found.get("To", ""))


def _mandatory(block: etree._Element, namespace: str) -> bool:
    if block.get(f"{{{namespace}}}mustUnderstand", "").strip() not in ("1", "true"):
        return False
    if block.get(f"{{{WSA}}}IsReferenceParameter", "").strip() in ("1", "true"):
        # Echoed from an EPR: from the gateway, or for the client only.
        return False
    return is_for_us(block, namespace)


def is_for_us(block: etree._Element, namespace: str) -> bool:
    """Whether a header block in an envelope of this namespace is for the receiver, not for an intermediary."""
    target = block.get(f"{{{namespace}}}actor") if namespace == SOAP11 else block.get(f"{{{namespace}}}role")
    return target in _OURS


def split_tag(element: etree._Element) -> tuple[str, str]:
    """Namespace, empty for none, and local name of an element."""
    namespace, _, name = str(element.tag).rpartition("}")
    return namespace[1:], name
