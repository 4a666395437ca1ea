"""From the contents of a WsnProcess to a request. The root element alone decides on the operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lxml import etree

from arborcast.core.errors import ExpressionError
from arborcast.ingest.elements.filters import read_old_delivery
from arborcast.ingest.operations.legacy.text import parse, raw_content, repaired_xml
from arborcast.topic_model import expressions, legacy_content
from arborcast.topic_model.namespaces import WSNT, WSNT_SLASH, wsa
from arborcast.topic_model.records.packages import MAX_IDENTIFICATION, Fragment, read_fragment, write_package
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, DeliveryPolicy
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import answers, limits
from arborcast.wire.envelope import Request, split_tag
from arborcast.wire.errors import InvalidRequest, TooLarge
from arborcast.wire.fragments import Node, Source
from arborcast.wire.xml_reading import check_payload, memory_to_read

WSNT_MANAGER = "http://docs.oasis-open.org/wsnMgr/b-2"
"""What later relatives call the namespace of base notification."""

_NAMESPACES = (WSNT, WSNT_SLASH, WSNT_MANAGER)

# Notify, NotificationMessage, Message, payload.
_PAYLOAD_DEPTH = 4

# And around an element: Envelope, Body, WsnProcess.
_ENVELOPE_DEPTH = 3

_PACKAGE = ("Identification", "Fragment")

_NO_PACKAGE = Fragment(), ""


@dataclass(frozen=True)
class Subscribe:
    """`address` is the address of pushes, `topic` a colon path, including its subtree. `endpoint` is the address in
    ConsumerReference. They are unchecked, empty if missing. `delivery` has the size of pushes."""

    address: str
    topic: str
    endpoint: str = ""
    delivery: DeliveryPolicy = DEFAULT_POLICY


@dataclass(frozen=True)
class Unsubscribe:
    """Ends the subscription that was made with the same address and topic."""

    address: str
    topic: str


@dataclass(frozen=True)
class CreatePullPoint:
    """Create a pull point; `name` is its name, empty for none."""

    name: str = ""


@dataclass(frozen=True)
class Message:
    """One message of a Notify. `payload` is an element, if necessary the one around loose content; `type` its name.
    `package` is the content of its Package, in the form of `write_package`, if its parts may be delivered alone."""

    topic: TopicPath
    payload: bytes
    type: str
    package: str = ""


@dataclass(frozen=True)
class MessagePart:
    """A part of a message that waits for the other parts. `content` is the unchanged content of its Message;
    `namespaces` are those in scope there. `as_text`: it was received as text, which is decoded once the message is
    complete."""

    topic: TopicPath
    identification: str
    fragment: Fragment
    content: str
    namespaces: dict[str, str]
    as_text: bool = False


@dataclass(frozen=True)
class Notify:
    messages: tuple[Message, ...]


Action = Subscribe | Unsubscribe | CreatePullPoint | Notify | MessagePart


def read(text: str, default: TopicPath | None = None) -> Action:
    """The request in a text; `default` is the topic of messages without one.

    Raises MalformedMessage, InvalidRequest or ExpressionError.
    """
    root, document = parse(text)
    return _read(root, lambda: Source(document, root, _PAYLOAD_DEPTH), default, text)


def read_request(request: Request, default: TopicPath | None, most_elements: int) -> Action:
    """The request in a WsnProcess, whose message is escaped text or an element, for any thread. Raises as `read`."""
    holder = request.operation
    if not len(holder):
        text = holder.text or ""
        memory_to_read(text.encode(), most_elements)
        return read(text, default)
    stray = _stray_text(holder)
    if len(holder) > 1 or stray:
        raise InvalidRequest(
            "WsnProcess takes one WS-Notification message, as an element or as escaped text; this one has "
            + ("an element and text beside it" if stray else f"{len(holder)} elements")
        )
    return _read(holder[0], lambda: request.source(_ENVELOPE_DEPTH + _PAYLOAD_DEPTH), default, None)


def read_subscribe(root: etree._Element) -> Subscribe:
    """The request in a Subscribe with a SubscriberAddress. Raises InvalidRequest, UnsupportedPolicy."""
    delivery = read_old_delivery(_child(root, "SubscriptionPolicy"))
    reference = _child(root, "ConsumerReference")
    endpoint = None if reference is None else next(reference.iterdescendants(wsa("Address")), None)
    return Subscribe(*_address_and_topic(root), _text(endpoint), delivery)


def _read(root: etree._Element, cut: Callable[[], Source], default: TopicPath | None, text: str | None) -> Action:
    """`text` is the received text of the root, before its repair; None if it was received as an element."""
    namespace, name = split_tag(root)
    match name if namespace in _NAMESPACES else "":
        case "Subscribe":
            return read_subscribe(root)
        case "Unsubscribe":
            return Unsubscribe(*_address_and_topic(root))
        case "NotificationMessage":
            source, package = cut(), _package(root)
            if _is_held(package):
                return _part(root, source.node(root), source, default, text)
            return Notify((_message(root, package, source.node(root), source, default),))
        case "Notify":
            source = cut()
            nodes = source.node(root).children
            found = [
                (child, _package(child), node)
                for child, node in zip(root, nodes, strict=True)
                if _is(child, "NotificationMessage")
            ]
            if not found:
                raise InvalidRequest("Notify has no NotificationMessage")
            if any(_is_held(package) for _, package, _ in found if package is not _NO_PACKAGE):
                (part, _, node), *others = found
                if others:
                    # Some would be stored, and others not.
                    raise InvalidRequest("a part of a message must be sent alone, not with others")
                return _part(part, node, source, default, text)
            return Notify(tuple(_message(child, package, node, source, default) for child, package, node in found))
        case "CreatePullPoint":
            return CreatePullPoint(_text(root))
        case _:
            raise InvalidRequest(
                f"WsnProcess takes Subscribe, Unsubscribe, NotificationMessage and CreatePullPoint of {WSNT}, "
                f"not {root.tag!s:.200}"
            )


def _address_and_topic(root: etree._Element) -> tuple[str, str]:
    holder, topic = (next(_descendants(root, name), None) for name in ("SubscriberAddress", "TopicExpression"))
    # The address may be the content itself or in a wsa:Address.
    inner = None if holder is None else holder.find(wsa("Address"))
    return _text(holder if inner is None else inner), _text(topic)


def _is_held(package: tuple[Fragment, str]) -> bool:
    fragment, _ = package
    return fragment.part and not fragment.alone


def _message(
    element: etree._Element, package: tuple[Fragment, str], node: Node, source: Source, default: TopicPath | None
) -> Message:
    path, content = _topic_and_content(element, default)
    fragment, identification = package
    package_text = write_package(fragment, identification if fragment.part else "") if fragment.alone else ""
    inside = node.children[element.index(content)]
    # Of a part the blanks at its ends belong to the message.
    return Message(path, *_payload(content, inside, source, strip=not fragment.part), package_text)


def _part(
    element: etree._Element, node: Node, source: Source, default: TopicPath | None, text: str | None
) -> MessagePart:
    path, content = _topic_and_content(element, default)
    fragment, identification = _package(element)
    # Repaired text may be half of a tag or reference whose other half is in the next part.
    sent = node.children[element.index(content)]
    inside = source.inside(sent).decode() if text is None else raw_content(text)
    return MessagePart(path, identification, fragment, inside, _scope(content), text is not None)


def joined(content: str, namespaces: Mapping[str, str], most_elements: int) -> tuple[bytes, str]:
    """The payload and the type of a message with this content of its Message and these namespaces in scope: read as a
    message in one piece. Raises MalformedMessage or TooLarge."""
    scope = {"wsnt": WSNT} | dict(namespaces)
    declared = answers.declarations(scope)
    text = f"<wsnt:NotificationMessage{declared}><wsnt:Message>{content}</wsnt:Message></wsnt:NotificationMessage>"
    memory_to_read(text.encode(), most_elements)
    root, document = repaired_xml(text)
    source = Source(document, root, _PAYLOAD_DEPTH - 1)
    return _payload(root[0], source.node(root).children[0], source)


def _topic_and_content(element: etree._Element, default: TopicPath | None) -> tuple[TopicPath, etree._Element]:
    topic = _child(element, "Topic")
    path = default if topic is None else expressions.concrete_topic(_text(topic), None, {}, legacy=True)
    if path is None:
        raise ExpressionError("NotificationMessage has no Topic, and this broker delivers by topic")
    content = _child(element, "Message")
    if content is None:
        raise InvalidRequest("NotificationMessage has no Message")
    return path, content


def _package(element: etree._Element) -> tuple[Fragment, str]:
    """The fragment of Package and its Identification; a whole message without Package. Raises InvalidRequest."""
    package = _child(element, "Package")
    if package is None:
        return _NO_PACKAGE
    # Its own children are written without a prefix.
    fields = {name: _text(child) for child in reversed(package) if (name := split_tag(child)[1]) in _PACKAGE}
    try:
        fragment = read_fragment(fields["Fragment"]) if fields.get("Fragment") else Fragment()
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    identification = fields.get("Identification", "")
    if fragment.part and not 0 < len(identification) <= MAX_IDENTIFICATION:
        raise InvalidRequest(
            f"Fragment {fragment} is a part, and its Package has no Identification of the message"
            if not identification
            else f"an Identification of {len(identification)} characters, {MAX_IDENTIFICATION} are allowed"
        )
    return fragment, identification


def _payload(content: etree._Element, node: Node, source: Source, *, strip: bool = True) -> tuple[bytes, str]:
    if len(content) == 1 and not _stray_text(content):
        payload = source.fragment(node.children[0])
        check_payload(payload, content[0])
        return payload, str(content[0].tag)
    inside = source.inside(node).decode()
    if strip:
        inside = inside.strip()
    # The prefixes in scope that it may use; wsnt and wsa are nearly always declared and rarely used.
    scope = _scope(content)
    used = {prefix: uri for prefix, uri in scope.items() if (f"{prefix}:" in inside if prefix else len(content))}
    payload = legacy_content.wrap(inside, used)
    source.count(payload)
    check_payload(payload, content)
    return payload, legacy_content.TYPE


def _stray_text(element: etree._Element) -> str:
    return "".join([element.text or "", *(child.tail or "" for child in element)]).strip()


def _scope(content: etree._Element) -> dict[str, str]:
    scope = {prefix or "": uri for prefix, uri in content.nsmap.items()}
    if len(scope) > limits.LOOSE_NAMESPACES:
        raise TooLarge(f"{len(scope)} namespaces are declared around a message, {limits.LOOSE_NAMESPACES} are allowed")
    if sum(len(prefix) + len(uri) for prefix, uri in scope.items()) > limits.AROUND_BYTES:
        raise TooLarge(
            f"the namespaces declared around a message are too large: {limits.AROUND_BYTES} bytes are allowed"
        )
    return scope


def _text(element: etree._Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _is(element: etree._Element, name: str) -> bool:
    namespace, local = split_tag(element)
    return local == name and namespace in _NAMESPACES


def _child(element: etree._Element, name: str) -> etree._Element | None:
    return next((child for child in element if _is(child, name)), None)


def _descendants(element: etree._Element, name: str) -> Iterator[etree._Element]:
    return element.iterdescendants(*(f"{{{namespace}}}{name}" for namespace in _NAMESPACES))
