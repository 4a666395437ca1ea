"""State before a case's request: each function makes it at a gateway and returns the variable of its name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import requests
from lxml import etree

from tests.support import soap_messages as soap

PREFIXES = {
    "wsnt": soap.WSNT,
    "wsa": soap.WSA,
    "wsn-br": "http://docs.oasis-open.org/wsn/br-2",
    "wstop": "http://docs.oasis-open.org/wsn/t-1",
    "wsrf-bf": "http://docs.oasis-open.org/wsrf/bf-2",
    "wsrf-r": "http://docs.oasis-open.org/wsrf/r-2",
    "wsrf-rl": "http://docs.oasis-open.org/wsrf/rl-2",
    "wsrf-rp": "http://docs.oasis-open.org/wsrf/rp-2",
    "xsi": soap.XSI,
    "policy": "urn:arborcast:policy",
    "t": "urn:t",
    "x": "urn:x",
}
"""Prefixes for the bodies and answers of cases."""

CONSTANTS = {
    "simple": f"{soap.DIALECT}Simple",
    "concrete": f"{soap.DIALECT}Concrete",
    "full": f"{soap.DIALECT}Full",
    "concrete_set": "http://www.onvif.org/ver10/tev/topicExpression/ConcreteSet",
    "xpath": "http://www.w3.org/TR/1999/REC-xpath-19991116",
    "long": "x" * 1_000,
}

_numbers = itertools.count(1)

Variables = dict[str, str]


def send(url: str, body: str, version: str = "1.1", header: str = "") -> requests.Response:
    """One request, with all prefixes declared on the operation's element."""
    name, space, rest = body.partition(" ")
    cut = min(position for position in (name.find(">"), name.find("/>"), len(name)) if position >= 0)
    declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in PREFIXES.items())
    body = f"{name[:cut]}{declared}{name[cut:]}{space}{rest}"
    return requests.post(
        url, soap.envelope(body, version, header), headers={"Content-Type": soap.MEDIA_TYPES[version]}, timeout=120
    )


def variables(broker: str) -> Variables:
    """The constants, and a consumer for one case."""
    return {**CONSTANTS, "broker": broker, "consumer": f"http://127.0.0.1:9/consumer/{next(_numbers)}"}


def _address(known: Mapping[str, str], body: str, where: str) -> str:
    answer = send(known["broker"], body)
    assert answer.status_code == 200, answer.text
    address = etree.fromstring(answer.content).findtext(f".//{where}/wsa:Address", namespaces=PREFIXES)
    assert address, answer.text
    return address


def _pull_point(known: Variables) -> str:
    return _address(known, "<wsnt:CreatePullPoint/>", "wsnt:PullPoint")


def _notified(url: str, topic: str, name: str) -> str:
    """Send a message on this topic; returns its text."""
    text = str(next(_numbers))
    answer = send(
        url,
        f'<wsnt:Notify><wsnt:NotificationMessage><wsnt:Topic Dialect="{CONSTANTS["concrete"]}">{topic}</wsnt:Topic>'
        f"<wsnt:Message><x:{name}>{text}</x:{name}></wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>",
    )
    assert answer.status_code == 202, answer.text
    return text


def _subscription(known: Variables) -> str:
    return _address(
        known,
        f"<wsnt:Subscribe><wsnt:ConsumerReference><wsa:Address>{known['consumer']}</wsa:Address>"
        "<wsa:ReferenceParameters><x:session>s1</x:session></wsa:ReferenceParameters></wsnt:ConsumerReference>"
        f'<wsnt:Filter><wsnt:TopicExpression Dialect="{known["full"]}">t:a//.</wsnt:TopicExpression></wsnt:Filter>'
        "<wsnt:InitialTerminationTime>PT1H</wsnt:InitialTerminationTime></wsnt:Subscribe>",
        "wsnt:SubscriptionReference",
    )


def _ended(known: Variables) -> str:
    """An ended subscription."""
    answer = send(known["subscription"], "<wsnt:Unsubscribe/>")
    assert answer.status_code == 200, answer.text
    return known["subscription"]


def _registration(known: Variables) -> str:
    return _address(
        known,
        "<wsn-br:RegisterPublisher><wsn-br:PublisherReference><wsa:Address>http://127.0.0.1:9/producer</wsa:Address>"
        f'</wsn-br:PublisherReference><wsn-br:Topic Dialect="{known["full"]}">t:a//.</wsn-br:Topic>'
        "<wsn-br:InitialTerminationTime>2100-01-01T00:00:00Z</wsn-br:InitialTerminationTime>"
        "</wsn-br:RegisterPublisher>",
        "wsn-br:PublisherRegistrationReference",
    )


GIVEN: dict[str, Callable[[Variables], str]] = {
    "subscription": _subscription,
    "ended": _ended,
    "current_message": lambda known: _notified(known["broker"], "t:kept", "current"),
    "registration": _registration,
    "pull_point": _pull_point,
    "waiting_message": lambda known: _notified(known["pull_point"], "t:a", "waiting"),
}
