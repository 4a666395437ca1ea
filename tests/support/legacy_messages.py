"""Messages of the older system's clients, composed by hand."""

from __future__ import annotations

import requests

SERVICE = "http://org.apache.servicemix.application"
WSNT = "http://docs.oasis-open.org/wsn/b-2"
_SIMPLE = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Simple"


def wsn_process(text: str, service: str = SERVICE) -> bytes:
    """The request with this text: `<`, `>` and ampersands that begin no reference are escaped."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><soapenv:Envelope '
        f'xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" xmlns:org="{service}"><soapenv:Header/>'
        f"<soapenv:Body><org:WsnProcess>{escaped}</org:WsnProcess></soapenv:Body></soapenv:Envelope>"
    ).encode()


def subscribe(topic: str, address: str, endpoint: str = "endpoint:null") -> str:
    """The text of a Subscribe."""
    return (
        f'<wsnt:Subscribe xmlns:wsnt="{WSNT}" xmlns:wsa="http://www.w3.org/2005/08/addressing"><wsnt:ConsumerReference>'
        f" <wsa:Address>{endpoint}</wsa:Address></wsnt:ConsumerReference><wsnt:Filter>"
        f'<wsnt:TopicExpression Dialect="{_SIMPLE}">{topic}</wsnt:TopicExpression></wsnt:Filter>'
        f"<wsnt:SubscriberAddress>{address}</wsnt:SubscriberAddress></wsnt:Subscribe>"
    )


def unsubscribe(topic: str, address: str) -> str:
    """The text of an Unsubscribe."""
    return (
        f'<wsnt:Unsubscribe xmlns:wsnt="{WSNT}"><wsnt:TopicExpression Dialect="{_SIMPLE}">{topic}'
        f"</wsnt:TopicExpression><wsnt:SubscriberAddress>{address}</wsnt:SubscriberAddress></wsnt:Unsubscribe>"
    )


def notify(topic: str, content: str, fragment: str | None = "0-0-1-0", identification: str = "10481519:1") -> str:
    """The text of a Notify; without `fragment` there is no Package."""
    package = (
        f"<wsnt:Package><Identification>{identification}</Identification><Fragment>{fragment}</Fragment>"
        "<EventType>A</EventType></wsnt:Package>"
    )
    return (
        f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}"><wsnt:Topic Dialect="{_SIMPLE}">{topic}</wsnt:Topic>'
        f"{package if fragment is not None else ''}<wsnt:Message>{content}</wsnt:Message></wsnt:NotificationMessage>"
    )


def in_parts(
    topic: str, content: str, size: int, *, alone: bool = False, identification: str = "10481519:1"
) -> list[str]:
    """The texts of the Notifies with this content in parts of this many characters."""
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    texts = []
    for number, piece in enumerate(pieces):
        fragment = f"1-{number < len(pieces) - 1:d}-{alone:d}-{number}"
        texts.append(notify(topic, piece, fragment, identification))
    return texts


def create_pull_point(name: str = "") -> str:
    """The text of a CreatePullPoint."""
    return f'<wsnt:CreatePullPoint xmlns:wsnt="{WSNT}">{name}</wsnt:CreatePullPoint>'


def plain_unsubscribe(to: str, namespace: str = WSNT) -> bytes:
    """An Unsubscribe with its subscription in wsa:To."""
    action = "http://docs.oasis-open.org/wsn/bw-2/SubscriptionManager/UnsubscribeRequest"
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:a="http://www.w3.org/2005/08/addressing">'
        f"<s:Header><a:Action>{action}</a:Action><a:To>{to}</a:To></s:Header>"
        f'<s:Body><n:Unsubscribe xmlns:n="{namespace}"/></s:Body></s:Envelope>'
    ).encode()


def address_in(reference: str) -> str:
    """The address that the clients read from an answer."""
    return reference.split("<ns2:Address>")[1].split("</ns2:Address>")[0]


def post(address: str, text: str) -> requests.Response:
    """Send a text as the old clients do."""
    return requests.post(address, data=wsn_process(text), headers={"Content-Type": "text/xml"}, timeout=120)
