"""Writing SOAP answers, as text, since they are small and have few forms.

Answers have WS-Addressing headers only if the request has, and never a mustUnderstand, on which many clients fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4
from xml.sax.saxutils import escape, quoteattr

from arborcast.core.printable import NOT_XML
from arborcast.topic_model.namespaces import PREFIXES, SOAP11, SOAP12, WSA, WSNT
from arborcast.topic_model.subscriptions import SoapVersion
from arborcast.wire.envelope import Addressing


def expression_element(
    element: str, dialect: str, expression: str, namespaces: Mapping[str, str], namespace: str = WSNT
) -> str:
    """An expression as an element, by default of base notification, with its prefix declarations."""
    # A prefix for the element that the declarations of the expression do not have.
    own = PREFIXES[namespace]
    while own in namespaces:
        own += "_"
    return (
        f'<{own}:{element} xmlns:{own}="{namespace}"{declarations(namespaces)} Dialect={attribute(dialect)}>'
        f"{text(expression)}</{own}:{element}>"
    )


_MEDIA_TYPE: dict[SoapVersion, bytes] = {
    "1.1": b"text/xml; charset=utf-8",
    "1.2": b"application/soap+xml; charset=utf-8",
}

_NAMESPACE: dict[SoapVersion, str] = {"1.1": SOAP11, "1.2": SOAP12}

_ANONYMOUS = f"{WSA}/anonymous"


def media_type(soap: SoapVersion) -> bytes:
    """The Content-Type of messages of this version."""
    return _MEDIA_TYPE[soap]


def text(value: str) -> str:
    """`value` as XML text; characters that are not allowed in XML become question marks."""
    return escape(NOT_XML.sub("?", value))


def attribute(value: str) -> str:
    """`value` as an XML attribute value, quotes included."""
    return quoteattr(NOT_XML.sub("?", value))


def declarations(namespaces: Mapping[str, str]) -> str:
    """The declarations of these prefixes; the default one is under ""."""
    return "".join(f" xmlns{':' if prefix else ''}{prefix}={attribute(uri)}" for prefix, uri in namespaces.items())


def qname(name: str) -> tuple[str, str]:
    """A `{namespace}name` as text with the prefix `q`, and the declaration for the element around it."""
    if not name.startswith("{"):
        return text(name), ' xmlns=""'
    namespace, _, local = name[1:].partition("}")
    return f"q:{text(local)}", f" xmlns:q={attribute(namespace)}"


def envelope(soap: SoapVersion, body: str, action: str, request: Addressing | None) -> bytes:
    """The complete message with `body`."""
    header = "" if request is None else _header(action, request)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<soap:Envelope xmlns:soap="{_NAMESPACE[soap]}">'
        f"{header}<soap:Body>{body}</soap:Body></soap:Envelope>"
    ).encode()


def reply_action(request: Addressing | None, default: str) -> str:
    """The action of the answer, derived from that of the request, since clients use several port types for one
    operation."""
    if request is not None and request.action.endswith("Request"):
        return request.action.removesuffix("Request") + "Response"
    return default


def _header(action: str, request: Addressing) -> str:
    relates_to = f"<wsa:RelatesTo>{text(request.message_id)}</wsa:RelatesTo>" if request.message_id else ""
    return (
        f'<soap:Header xmlns:wsa="{WSA}"><wsa:To>{_ANONYMOUS}</wsa:To><wsa:Action>{text(action)}</wsa:Action>'
        f"<wsa:MessageID>urn:uuid:{uuid4()}</wsa:MessageID>{relates_to}</soap:Header>"
    )
