"""The table of rights and operations: each operation, requested by users with one right each, or two. And the topics
that no right includes: operator events.

An operation of the application, or a frame of clients, without a row here fails a test. For publications and
subscriptions with each protocol see test_protocols.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
import zmq

from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.policy import read_policy
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users_file import User
from arborcast.ingest.http.app import _OPERATIONS
from arborcast.ingest.operations.legacy import messages
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.topics import SYSTEM
from arborcast.wire import frames
from arborcast.wire.endpoints import Kind
from arborcast.wire.frames import FrameKind
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.framed import FramedClient, framed_edge, zmq_edge
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import basic, quick_hash, users_in

pytestmark = pytest.mark.slow

BASE = "http://127.0.0.1:8080"
BROKER = Kind.BROKER.value

# Users, by their rights for the topics below {urn:t}a and a. The first owns the resources that the others use.
OWNER = "owner"
NAMED = ("publish", "subscribe", "manage", "serve", "subscribe-publish", "subscribe-serve", "subscribe-manage")
RIGHTS: dict[str, tuple[str, ...]] = {
    OWNER: ("publish", "subscribe", "manage"),
    **{name: tuple(name.split("-")) for name in NAMED},
    **dict.fromkeys(("nothing", "manage-everything"), ()),
}
OTHERS = frozenset(RIGHTS) - {OWNER}
SECRET = "of-each-user"  # noqa: S105  # of all users in this file

NONE: frozenset[str] = frozenset()
PUBLISHERS = frozenset({"publish", "subscribe-publish"})
SUBSCRIBERS = frozenset({"subscribe", "subscribe-publish", "subscribe-serve", "subscribe-manage"})
SERVERS = frozenset({"subscribe-serve", "subscribe-manage"})
MANAGERS = frozenset({"manage", "subscribe-manage", "manage-everything"})
OF_EVERYTHING = frozenset({"manage-everything"})

PREFIXES = {
    "wsnt": "http://docs.oasis-open.org/wsn/b-2",
    "br": "http://docs.oasis-open.org/wsn/br-2",
    "rp": "http://docs.oasis-open.org/wsrf/rp-2",
    "rl": "http://docs.oasis-open.org/wsrf/rl-2",
    "tev": "http://www.onvif.org/ver10/events/wsdl",
    "tds": "http://www.onvif.org/ver10/device/wsdl",
    "p": "urn:arborcast:policy",
}
DECLARED = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in PREFIXES.items())

# Texts of refusals: for a missing right, or equal to those for unknown resources.
REFUSED = re.compile(r"may not|\(any more\)|that does not exist|is not among|^faild$|only the engine")


def policy() -> str:
    rules = ['[namespaces]\nt = "urn:t"']

    def allow(name: str, rights: Iterable[str], topics: str) -> None:
        do = ", ".join(f'"{right}"' for right in rights)
        rules.append(f'[[allow]]\ndo = [{do}]\ntopics = [{topics}]\nusers = ["{name}"]')

    for name, rights in RIGHTS.items():
        if rights:
            allow(name, rights, '"t:a//.", "a//."')
    allow("manage-everything", ("manage",), '"//."')
    allow("root", ("publish", "subscribe", "serve", "manage"), '"//."')
    return "\n".join(rules)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """The gate of all worlds: the hash function is slow."""
    made = [User(name, quick_hash(SECRET)) for name in (*RIGHTS, "root")]
    users = users_in(tmp_path_factory.mktemp("access"), *made, remember_s=3_600)
    rights = read_policy(policy(), "policy")
    return Gate(None, Authenticator(AccessSettings(methods="basic"), users), lambda: rights)


class Setup:
    """A gateway with this gate (None: without users), and with all topics."""

    def __init__(self, gate: Gate | None, topics: TopicSettings | None = None) -> None:
        self.parts = GatewayParts(topics=topics)
        self.parts.gateway.gate = gate
        self.parts.have_topics("{urn:t}a/b", retain=True)
        self.parts.have_topics("{urn:t}a/jobs", queue=True)
        self.parts.have_topics("{urn:t}a/to", f"{SYSTEM}/breaker/closed")

    def post(self, body: str | bytes, user: str, path: str = BROKER, version: str = "1.1", header: str = "") -> str:
        """Empty if carried out, otherwise the reason."""
        sent = body if isinstance(body, bytes) else soap.envelope(body, version, header)
        answer = self.parts.post(sent, path, authorization=basic(user, SECRET))
        if answer.status in (200, 202):
            word = (answer.text("WsnProcessResponse") or "") if answer.body else ""
            return word if word == "faild" else ""
        assert answer.status in (400, 403, 500), answer.body
        return answer.reason or f"HTTP {answer.status}"

    def made(self, body: str | bytes, kind: Kind, path: str = BROKER) -> str:
        """The path of the resource that the owner creates by this."""
        sent = body if isinstance(body, bytes) else soap.envelope(body)
        answer = self.parts.post(sent, path, authorization=basic(OWNER, SECRET))
        assert answer.status == 200, answer.body
        addresses = (element.text or "" for element in answer.root.iter("{*}Address"))
        return next(each.removeprefix(BASE) for each in addresses if each.startswith(BASE + kind.value))

    @property
    def written(self) -> tuple[int, int, int]:
        """The lengths of the logs."""
        parts = self.parts
        return len(parts.control.records), len(parts.notifications.accepted), len(parts.pull_log.records)


Prepare = Callable[[Setup], str]
"""Lets the owner create the resource; returns its path."""

Send = Callable[[Setup, str, str], str]
"""Sends a user's request for the resource at a path; empty if carried out, otherwise the reason."""


def at_broker_itself(setup: Setup) -> str:
    return BROKER


@dataclass(frozen=True)
class Row:
    """The users with the right to an operation. `key` is the operation, as in `operations_without_a_row`."""

    key: tuple[str, str]
    may: frozenset[str]
    send: Send
    prepare: Prepare = at_broker_itself
    protocol: str = ""

    @property
    def name(self) -> str:
        return f"{self.key[0]} {self.key[1]} {self.protocol}".strip()


def element(name: str, inside: str = "", attributes: str = "") -> str:
    return f"<{name} {DECLARED}{attributes}>{inside}</{name}>"


SUBSCRIBE = soap.subscribe(filters=soap.topic_expression("t:a//."))
SERVE = soap.subscribe(filters=soap.topic_expression("t:a/jobs"), policy="<p:Queue/>")
PULL = element("tev:CreatePullPointSubscription", f"<tev:Filter>{soap.topic_expression('t:a//.')}</tev:Filter>")
REGISTER = element("br:RegisterPublisher", soap.topic("t:a/b").replace("wsnt:Topic", "br:Topic"))
TRIGGER = element(
    "p:CreateTrigger",
    f"<wsnt:Filter>{soap.topic_expression('t:a/b')}</wsnt:Filter><p:Publish>{soap.topic('t:a/to')}</p:Publish>",
    ' Name="hot"',
)


def made(what: str, kind: Kind) -> Prepare:
    return lambda setup: setup.made(what, kind)


def published(setup: Setup) -> str:
    assert not setup.post(soap.notify(soap.message("t:a/b")), OWNER)
    return BROKER


def with_trigger(setup: Setup) -> str:
    assert not setup.post(TRIGGER, OWNER)
    return BROKER


def name_of(body: str) -> str:
    name = re.match(r"<([\w:]+)", body)
    assert name is not None
    return name[1]


def at_its_address(
    body: str, may: frozenset[str], at: str = "BROKER", prepare: Prepare = at_broker_itself
) -> Iterator[Row]:
    """At the address of the resource, in both versions of SOAP."""
    for version in ("1.1", "1.2"):

        def send(setup: Setup, user: str, path: str, version: str = version) -> str:
            return setup.post(body, user, path, version)

        yield Row((name_of(body), at), may, send, prepare, f"SOAP {version}")


def by_wsa_to(body: str, may: frozenset[str], prepare: Prepare) -> Iterator[Row]:
    """At the broker's address, with the resource in wsa:To."""

    def send(setup: Setup, user: str, path: str) -> str:
        return setup.post(body, user, header=soap.addressing("urn:any", to=BASE + path))

    yield Row((name_of(body), "BROKER"), may, send, prepare, "SOAP, by wsa:To")


def by_reference(body: str, may: frozenset[str], prepare: Prepare) -> Iterator[Row]:
    """At the broker's address, with the resource in the operation's element."""

    def send(setup: Setup, user: str, path: str) -> str:
        address = f"<wsa:Address>{BASE}{path}</wsa:Address>"
        begin, end = body.rsplit("</", 1)
        return setup.post(f"{begin}<wsnt:SubscriptionReference>{address}</wsnt:SubscriptionReference></{end}", user)

    yield Row((name_of(body), "BROKER"), may, send, prepare, "SOAP, by reference")


RENEW = element("wsnt:Renew", "<wsnt:TerminationTime>PT1H</wsnt:TerminationTime>")
END_AT = element("rl:SetTerminationTime", "<rl:RequestedLifetimeDuration>PT1H</rl:RequestedLifetimeDuration>")
EMPTY = "wsnt:Unsubscribe wsnt:PauseSubscription wsnt:ResumeSubscription p:RotateSecret p:SetCredentials rl:Destroy"
ON_SUBSCRIPTIONS = [RENEW, END_AT, *map(element, EMPTY.split())]


def property_requests(resource: str) -> list[str]:
    """The requests that read the properties of a resource; `resource` is one property."""
    return [
        element("rp:GetResourceProperty", resource),
        element("rp:GetMultipleResourceProperties", f"<rp:ResourceProperty>{resource}</rp:ResourceProperty>"),
        element("rp:GetResourcePropertyDocument"),
    ]


OPEN_TO_ALL = (
    *("wsnt:CreatePullPoint", "tev:SetSynchronizationPoint", "tev:GetEventProperties", "tev:GetServiceCapabilities"),
    *("tds:GetSystemDateAndTime", "tds:GetServices", "tds:GetCapabilities", "tds:GetDeviceInformation"),
)

OLD_SUBSCRIBER = "http://127.0.0.1:9/old"


def old_endpoint(setup: Setup) -> str:
    """A pull point that the older client's Subscribe made the endpoint of a subscription."""
    path = setup.made("<wsnt:CreatePullPoint/>", Kind.PULL_POINT, "/WSN/CreatePullPoint")
    old = soap.envelope(legacy.subscribe("a:b", OLD_SUBSCRIBER, BASE + path))
    assert not setup.post(old, OWNER, "/WSN/Broker")
    return path


def soap_rows() -> Iterator[Row]:
    notify = soap.notify(soap.message("t:a/b"))
    yield from at_its_address(notify, PUBLISHERS)
    yield from at_its_address(SUBSCRIBE, SUBSCRIBERS)
    yield from at_its_address(SERVE, SERVERS)
    yield from at_its_address(element("wsnt:GetCurrentMessage", soap.topic("t:a/b")), SUBSCRIBERS, prepare=published)
    yield from at_its_address(TRIGGER, frozenset({"subscribe-publish"}))
    yield from at_its_address(element("p:DestroyTrigger", attributes=' Name="hot"'), MANAGERS, prepare=with_trigger)
    yield from at_its_address(REGISTER, PUBLISHERS)
    yield from at_its_address(PULL, SUBSCRIBERS)
    for open_to_all in (*map(element, OPEN_TO_ALL), *property_requests("wsnt:FixedTopicSet")):
        yield from at_its_address(open_to_all, OTHERS)
    subscription = made(SUBSCRIBE, Kind.SUBSCRIPTION)
    for body in ON_SUBSCRIPTIONS:
        yield from at_its_address(body, MANAGERS, "SUBSCRIPTION", subscription)
        yield from by_wsa_to(body, MANAGERS, subscription)
        yield from by_reference(body, MANAGERS, subscription)
    for body in (*property_requests("wsnt:ConsumerReference"), element("tev:SetSynchronizationPoint")):
        yield from at_its_address(body, MANAGERS, "SUBSCRIPTION", subscription)
    yield from at_its_address(element("tev:PullMessages"), MANAGERS, "SUBSCRIPTION", made(PULL, Kind.SUBSCRIPTION))
    point = made("<wsnt:CreatePullPoint/>", Kind.PULL_POINT)
    for body in (element("wsnt:GetMessages"), element("wsnt:DestroyPullPoint")):
        yield from at_its_address(body, OF_EVERYTHING, "PULL_POINT", point)
        yield from by_wsa_to(body, OF_EVERYTHING, point)
    yield from at_its_address(notify, OF_EVERYTHING, "PULL_POINT", point)
    yield from at_its_address(element("wsnt:Unsubscribe"), MANAGERS, "PULL_POINT", old_endpoint)
    registration = made(REGISTER, Kind.REGISTRATION)
    yield from at_its_address(notify, PUBLISHERS, "REGISTRATION", registration)
    yield from by_wsa_to(element("br:DestroyRegistration"), MANAGERS, registration)
    yield from by_reference(element("br:DestroyRegistration"), MANAGERS, registration)
    for body in (element("br:DestroyRegistration"), *property_requests("br:Demand")):
        yield from at_its_address(body, MANAGERS, "REGISTRATION", registration)


def legacy_rows() -> Iterator[Row]:
    def of(text: str, may: frozenset[str], protocol: str, prepare: Prepare = at_broker_itself) -> Row:
        def send(setup: Setup, user: str, _: str) -> str:
            return setup.post(legacy.wsn_process(text), user, Kind.LEGACY.value)

        return Row(("WsnProcess", "any"), may, send, prepare, protocol)

    def subscribed(setup: Setup) -> str:
        assert not setup.post(legacy.wsn_process(legacy.subscribe("a:b", OLD_SUBSCRIBER)), OWNER, Kind.LEGACY.value)
        return BROKER

    yield of(legacy.notify("a:b", "<x/>"), PUBLISHERS, "Notify")
    (first, *_) = legacy.in_parts("a:b", "<x>1234567890</x>", 8)
    yield of(first, PUBLISHERS, "a part")
    yield of(legacy.subscribe("a:b", OLD_SUBSCRIBER), SUBSCRIBERS, "Subscribe")
    # By address and topic a user can only end its own subscription.
    yield of(legacy.unsubscribe("a:b", OLD_SUBSCRIBER), NONE, "Unsubscribe", subscribed)
    yield of(f'<wsnt:CreatePullPoint xmlns:wsnt="{PREFIXES["wsnt"]}">mine</wsnt:CreatePullPoint>', OTHERS, "pull point")


def follow(setup: Setup, user: str, path: str) -> str:
    """Resumes the stream of a subscription."""
    headers = {"authorization": basic(user, SECRET), "last_event_id": path.rpartition("/")[2]}
    answer = asyncio.run(setup.parts.hang_up_after_the_head("/events/{urn:t}a//.", headers))
    return "" if answer.status == 200 else answer.body.decode()


def unsubscribe_in_a_frame(setup: Setup, user: str, path: str) -> str:
    with framed_edge(setup.parts) as edge, closing(FramedClient(edge, user, SECRET)) as client:
        answer = client.request(FrameKind.UNSUBSCRIBE, frames.UnsubscribeBody(path.rpartition("/")[2]))
        return "" if answer.kind == FrameKind.RECEIPT else frames.read_body(answer, frames.ErrorBody).text


# Addresses of resources with an owner.
OWNED = (Kind.SUBSCRIPTION.value, Kind.PULL_POINT.value, Kind.REGISTRATION.value)

ROWS = [
    *soap_rows(),
    *legacy_rows(),
    Row(("Events", "GET"), MANAGERS, follow, made(PULL, Kind.SUBSCRIPTION)),
    Row(("UNSUBSCRIBE", "framed"), MANAGERS, unsubscribe_in_a_frame, made(SUBSCRIBE, Kind.SUBSCRIPTION)),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_rights(gate: Gate, row: Row) -> None:
    allowed = set()
    for user in sorted(OTHERS):
        setup = Setup(gate)
        path = row.prepare(setup)
        before = setup.written
        why = row.send(setup, user, path)
        if not why:
            allowed.add(user)
            continue
        assert REFUSED.search(why), (user, why)
        if path.startswith(OWNED) and row.key[0] != "wsnt:Notify":
            own_id = path.rpartition("/")[2]
            missing = row.send(setup, user, path.replace(own_id, "none"))
            assert why.replace(own_id, "none") == missing, "equal to the refusal for an unknown resource"
        assert setup.written == before, (user, "a refusal changes nothing")
    assert allowed == row.may


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_without_users_all_operations_are_allowed(row: Row) -> None:
    setup = Setup(None)
    assert row.send(setup, "nothing", row.prepare(setup)) == ""


def operations_without_a_row() -> set[tuple[str, str]]:
    """Operations of the application without a row."""
    prefixes = {uri: prefix for prefix, uri in PREFIXES.items()}
    found = set()
    for name, kind in _OPERATIONS:
        uri, _, local = name[1:].partition("}")
        found.add(("WsnProcess", "any") if local == "WsnProcess" else (f"{prefixes.get(uri, uri)}:{local}", kind.name))
    return found - {row.key for row in ROWS}


def test_each_operation_and_each_frame_has_a_row() -> None:
    assert operations_without_a_row() == set()
    assert len(get_args(messages.Action)) == len(list(legacy_rows())), "the operations of WsnProcess"
    in_a_row, protocols = {FrameKind.UNSUBSCRIBE}, {FrameKind.PUBLISH, FrameKind.SUBSCRIBE}
    # CONNECT contains the user; the others concern messages of the connection, or the connection.
    about_itself = {FrameKind.CONNECT, FrameKind.ACK, FrameKind.REFUSE, FrameKind.PING, FrameKind.PONG, FrameKind.CLOSE}
    answers = {FrameKind.CONNECTED, FrameKind.RECEIPT, FrameKind.MESSAGE, FrameKind.ERROR}
    assert set(FrameKind) == in_a_row | protocols | about_itself | answers
    assert {kind.name for kind in in_a_row} <= {row.key[0] for row in ROWS}


@pytest.mark.parametrize(("user", "may"), [("subscribe", True), ("publish", False)])
def test_rights_to_subscribe_by_zeromq(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, may: bool
) -> None:
    if not may:
        monkeypatch.setattr("arborcast.ingest.zeromq.edge._READY_S", 1.0)  # the time-out is the error
    setup = Setup(gate)
    with (
        zmq_edge(setup.parts, user, SECRET, tmp_path) as send,
        zmq.Context() as context,
        context.socket(zmq.SUB) as sub,
    ):
        sub.setsockopt(zmq.LINGER, 0)
        sub.connect(f"ipc://{tmp_path}/edge-s")
        sub.subscribe(b"a/b")
        assert send(b"ready", b"a/b")[0] == (b"ok" if may else b"error")
        assert bool(setup.parts.control.records) is may


@pytest.mark.parametrize(
    "body",
    [
        soap.subscribe(filters=soap.topic_expression("t:a/b"), policy="<p:Queue/>"),
        element("wsnt:GetCurrentMessage", soap.topic("t:a/b")),
        TRIGGER,
        TRIGGER.replace(soap.topic("t:a/to"), soap.topic("t:a/b")),
        REGISTER,
    ],
    ids=name_of,
)
def test_rights_are_checked_before_the_existence_of_a_topic(gate: Gate, body: str) -> None:
    """With a fixed topic set a client without rights could otherwise find out which topics exist."""
    answers = []
    for topic in ("a/b", "a/c"):
        why = Setup(gate, TopicSettings(fixed=True)).post(body.replace("t:a/b", f"t:{topic}"), "nothing")
        assert "may not" in why
        answers.append(why.replace(topic, ""))
    assert answers[0] == answers[1]


EVENT_TOPIC = (
    f'<wsnt:Topic xmlns:e="urn:arborcast" Dialect="{soap.DIALECT}Concrete">e:system/breaker/closed</wsnt:Topic>'
)
EVENT_MESSAGE = f"<wsnt:NotificationMessage>{EVENT_TOPIC}<wsnt:Message><x/></wsnt:Message></wsnt:NotificationMessage>"
OFFERED = EVENT_TOPIC.replace("wsnt:Topic", "br:Topic")
OFFERED_BELOW = OFFERED.replace("Concrete", "Full").replace("closed", "/.")
FORGED = {
    "Notify among others": soap.notify(soap.message("t:a/b"), EVENT_MESSAGE),
    "a trigger": TRIGGER.replace(soap.topic("t:a/to"), EVENT_TOPIC),
    "a registration": element("br:RegisterPublisher", OFFERED),
    "a registration for all": element("br:RegisterPublisher", OFFERED_BELOW),
}


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_no_client_publishes_operator_events(gate: Gate, body: str, guarded: bool) -> None:
    """For any policy, and without one; for each protocol see test_protocols.py."""
    setup = Setup(gate if guarded else None)
    why = setup.post(body, "root")
    assert "only the engine publishes" in why, why
    assert (setup.parts.notifications.accepted, setup.parts.parts.records) == ([], [])
    assert (len(setup.parts.table.triggers), len(setup.parts.registrations)) == (0, 0)
