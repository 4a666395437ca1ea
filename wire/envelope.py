"""Reading a SOAP request: from bytes to the operation's element, its version and its addressing headers.

The version comes from the envelope's namespace, never from the media type. Nothing here touches the network or expands
an entity: a document type declaration is refused, and libxml2's own bounds (depth 256, 10 MB of text) stay on.
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

# Mandatory headers of these we take: addressing is answered, security is checked elsewhere or not at all.
_UNDERSTOOD = {WSA, WSSE}

PUBLICATION = f"{{{ARBORCAST_POLICY}}}Publication"
"""How the messages of a Notify are to be delivered (`ingest.elements.publication`): a mandatory header of no other
request is taken."""

_NOTIFY = wsnt("Notify")

# A header with another actor or role is meant for somebody between the client and us.
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
    """A SOAP request. `operation` is the body's one child; `addressing` is None when there were no such headers."""

    soap: SoapVersion
    operation: etree._Element
    addressing: Addressing | None
    document: bytes
    root: etree._Element = field(repr=False)
    gone: Callable[[], Awaitable[None]] | None = None
    """Returns when the client has hung up. Only after everything was read."""
    caller: Caller | None = None
    """Who asks; None without authentication."""
    client: str = ""
    """What rates count by: the user, else the address."""
    traceparent: str = ""
    """The trace that the client's request belongs to, empty for none; see core/telemetry/tracing.py."""
    bounded: bool = True
    """Whether it is from a stranger, see Source."""
    _cut: tuple[int, Source] | None = None

    @property
    def name(self) -> str:
        """The operation's name, `{namespace}name`."""
        return str(self.operation.tag)

    def source(self, depth: int) -> Source:
        """For cutting elements out of the body as they were sent, down to `depth` levels (the envelope is level 1)."""
        if self._cut is None or self._cut[0] != depth:
            within = self.operation.getparent()
            self._cut = depth, Source(self.document, self.root, depth, within, bounded=self.bounded)
        return self._cut[1]


def parse(document: bytes, content_type: bytes = b"", *, bounded: bool = True) -> Request:
    """Read a request: a pure function of its arguments, for any thread. Raises UnreadableRequest.

    `bounded=False` is for the answer of a broker, in which there may be many messages.
    """
    try:
        root, document = read_xml(document, content_type)
    except MalformedMessage as error:
        if content_type.lstrip().lower().startswith(b"multipart/"):
            raise Packaged(
                "a MIME package (SOAP with attachments, MTOM) is not taken: send the envelope alone, MTOM switched off"
            ) from error
        raise
    if bounded:
        check_tags(document)
    namespace, name = _split(root)
    soap = _VERSIONS.get(namespace)
    if soap is None:
        if name == "Envelope":
            raise VersionMismatch(
                f"the envelope's namespace is {namespace[:200]!r}; SOAP 1.1 ({SOAP11}) and 1.2 ({SOAP12}) are spoken"
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
            raise MalformedMessage(f"an Envelope holds a Header and one Body, not a further {child.tag!s:.100}")
    if body is None:
        raise MalformedMessage("the Envelope has no Body")
    if len(body) != 1:
        what = "nothing" if len(body) == 0 else f"{len(body)} elements"
        raise MalformedMessage(f"the Body must hold exactly one operation, it holds {what}")
    if header is not None and len(header) > limits.HEADER_BLOCKS:
        raise MalformedMessage(f"the Header holds {len(header)} blocks, {limits.HEADER_BLOCKS} are taken")
    understood = PUBLICATION if body[0].tag == _NOTIFY else ""
    addressing = _addressing(header, namespace, understood) if header is not None and len(header) else None
    return Request(soap, body[0], addressing, document, root)


def _addressing(header: etree._Element, namespace: str, understood: str) -> Addressing | None:
    found: dict[str, str] = {}
    for block in header:
        block_namespace, name = _split(block)
        if block_namespace == WSA:
            found.setdefault(name, (block.text or "").strip())
        elif block_namespace not in _UNDERSTOOD and block.tag != understood and _mandatory(block, namespace):
            raise NotUnderstood(f"the header {block.tag!s:.200} must be understood and is not", str(block.tag))
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
        # Echoed from an EPR: it came from us, or concerns only the client.
        return False
    return is_for_us(block, namespace)


def is_for_us(block: etree._Element, namespace: str) -> bool:
    """Whether a header block of an envelope of this namespace is meant for us, and not for somebody on the way."""
    target = block.get(f"{{{namespace}}}actor") if namespace == SOAP11 else block.get(f"{{{namespace}}}role")
    return target in _OURS


def _split(element: etree._Element) -> tuple[str, str]:
    namespace, _, name = str(element.tag).rpartition("}")
    return namespace[1:], name
