"""SOAP messages of clients, for tests to send."""

from __future__ import annotations

from xml.sax.saxutils import escape

NAMESPACES = {"1.1": "http://schemas.xmlsoap.org/soap/envelope/", "1.2": "http://www.w3.org/2003/05/soap-envelope"}
WSNT = "http://docs.oasis-open.org/wsn/b-2"
WSN_BR = "http://docs.oasis-open.org/wsn/br-2"
WSA = "http://www.w3.org/2005/08/addressing"
WSRF_RP = "http://docs.oasis-open.org/wsrf/rp-2"
DIALECT = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/"
XPATH_1 = "http://www.w3.org/TR/1999/REC-xpath-19991116"
XSI = "http://www.w3.org/2001/XMLSchema-instance"

MEDIA_TYPES = {"1.1": "text/xml; charset=utf-8", "1.2": "application/soap+xml; charset=utf-8"}


def envelope(body: str, soap: str = "1.1", header: str = "") -> bytes:
    """A whole message. The prefixes s, wsnt and wsa are declared."""
    return (
        f'<s:Envelope xmlns:s="{NAMESPACES[soap]}" xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">'
        f"{f'<s:Header>{header}</s:Header>' if header else ''}<s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


def addressing(action: str, message_id: str = "urn:uuid:1", to: str = "") -> str:
    """Header blocks of WS-Addressing, as WCF sends them."""
    return (
        f'<wsa:Action s:mustUnderstand="1">{action}</wsa:Action><wsa:MessageID>{message_id}</wsa:MessageID>'
        f'<wsa:To s:mustUnderstand="1">{to}</wsa:To>'
    )


def topic_expression(text: str, dialect: str | None = "Full") -> str:
    """A wsnt:TopicExpression; the prefix t is urn:t."""
    attribute = f' Dialect="{DIALECT}{dialect}"' if dialect else ""
    return f'<wsnt:TopicExpression xmlns:t="urn:t"{attribute}>{text}</wsnt:TopicExpression>'


def content_filter(text: str, kind: str = "MessageContent", dialect: str = XPATH_1) -> str:
    """A wsnt:MessageContent, or another filter of its kind; the prefix o is urn:o."""
    return f'<wsnt:{kind} xmlns:o="urn:o" Dialect="{dialect}">{escape(text)}</wsnt:{kind}>'


def subscribe(
    to: str = "http://127.0.0.1:9/consumer",
    filters: str | None = None,
    termination: str | None = None,
    policy: str = "",
    more: str = "",
) -> str:
    """A Subscribe. `filters` is the content of wsnt:Filter, `policy` that of wsnt:SubscriptionPolicy, with the prefix p
    for urn:arborcast:policy; `more` is appended."""
    return (
        f"<wsnt:Subscribe><wsnt:ConsumerReference><wsa:Address>{to}</wsa:Address></wsnt:ConsumerReference>"
        f"{f'<wsnt:Filter>{filters}</wsnt:Filter>' if filters is not None else ''}"
        f"{f'<wsnt:InitialTerminationTime>{termination}</wsnt:InitialTerminationTime>' if termination else ''}"
        f"{subscription_policy(policy) if policy else ''}{more}</wsnt:Subscribe>"
    )


def subscription_policy(content: str, prefix: str = "wsnt") -> str:
    """A SubscriptionPolicy; the prefix p is urn:arborcast:policy."""
    name = f"{prefix}:SubscriptionPolicy"
    return f'<{name} xmlns:p="urn:arborcast:policy">{content}</{name}>'


def topic(text: str, dialect: str = "Concrete") -> str:
    """A wsnt:Topic; the prefix t is urn:t."""
    return f'<wsnt:Topic xmlns:t="urn:t" Dialect="{DIALECT}{dialect}">{text}</wsnt:Topic>'


def message(
    topic: str = "t:a/b", payload: str = '<o:order xmlns:o="urn:o">1</o:order>', dialect: str = "Concrete"
) -> str:
    """One NotificationMessage; the prefix t is urn:t."""
    return (
        f'<wsnt:NotificationMessage><wsnt:Topic xmlns:t="urn:t" Dialect="{DIALECT}{dialect}">{topic}</wsnt:Topic>'
        f"<wsnt:Message>{payload}</wsnt:Message></wsnt:NotificationMessage>"
    )


def notify(*messages: str) -> str:
    """A Notify of these NotificationMessages."""
    return f"<wsnt:Notify>{''.join(messages or (message(),))}</wsnt:Notify>"


def renew(termination: str) -> str:
    """A Renew."""
    return f"<wsnt:Renew><wsnt:TerminationTime>{termination}</wsnt:TerminationTime></wsnt:Renew>"


def get_property(name: str) -> str:
    """A GetResourceProperty; the prefixes p, rl and wstop are declared, too."""
    return (
        f'<rp:GetResourceProperty xmlns:rp="{WSRF_RP}" xmlns:rl="http://docs.oasis-open.org/wsrf/rl-2"'
        ' xmlns:wstop="http://docs.oasis-open.org/wsn/t-1" xmlns:p="urn:arborcast:policy">'
        f"{name}</rp:GetResourceProperty>"
    )


PROPERTY_DOCUMENT = f'<rp:GetResourcePropertyDocument xmlns:rp="{WSRF_RP}"/>'


def register(*topics: str, publisher: str = "", demand: str = "", ends: str = "", dialect: str = "Full") -> str:
    """A RegisterPublisher; the prefix t is urn:t."""
    reference = f"<b:PublisherReference><wsa:Address>{publisher}</wsa:Address></b:PublisherReference>"
    named = "".join(f'<b:Topic xmlns:t="urn:t" Dialect="{DIALECT}{dialect}">{topic}</b:Topic>' for topic in topics)
    return (
        f'<b:RegisterPublisher xmlns:b="{WSN_BR}">{reference if publisher else ""}{named}'
        f"{f'<b:Demand>{demand}</b:Demand>' if demand else ''}"
        f"{f'<b:InitialTerminationTime>{ends}</b:InitialTerminationTime>' if ends else ''}</b:RegisterPublisher>"
    )
