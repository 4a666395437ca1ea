"""The table of rights and operations: each operation, requested by users that hold one right each, or two. And what no
right allows: operator events.

An operation of the application, or a frame that clients send, without a row here fails a test. Publications and
subscriptions through each door: test_doors.py.
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
from arborcast.ingest.access.users import FileUsers, Guesses, Users
from arborcast.ingest.access.users_file import User, hash_password, write_users
from arborcast.ingest.addresses import FACTORIES
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
from tests.support.guarded_gateway import basic

pytestmark = pytest.mark.slow

BASE = "http://127.0.0.1:8080"
BROKER = Kind.BROKER.value

# Users, by what each holds for the topics below {urn:t}a and a. The first has made what the others ask about.
OWNER = "owner"
RIGHTS = {
    OWNER: ("publish", "subscribe", "manage"),
    "publish": ("publish",),
    "subscribe": ("subscribe",),
    "manage": ("manage",),
    "serve": ("serve",),
    "subscribe-publish": ("subscribe", "publish"),
    "subscribe-serve": ("subscribe", "serve"),
    "subscribe-manage": ("subscribe", "manage"),
    "nothing": (),
    "manage-everything": (),
}
OTHERS = frozenset(RIGHTS) - {OWNER}
SECRET = "of-each-user"  # noqa: S105  # of the users of these tests

NOBODY: frozenset[str] = frozenset()
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

# How a refusal reads: because of who asks, or as if there were no such thing.
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
    """All worlds' gate: to begin one takes a hash that is made to take long."""
    file = tmp_path_factory.mktemp("access") / "users"
    write_users({name: User(name, hash_password(SECRET, log_n=4)) for name in (*RIGHTS, "root")}, file)
    users = Users(FileUsers(file), remember_s=3_600, guesses=Guesses(1_000, 1_000))
    rights = read_policy(policy(), "policy")
    return Gate(None, Authenticator(AccessSettings(methods="basic"), users), lambda: rights)


class World:
    """A gateway with this gate, None for a gateway without users; every topic that is needed is there."""

    def __init__(self, gate: Gate | None, topics: TopicSettings | None = None) -> None:
        self.parts = GatewayParts(topics=topics)
        self.parts.gateway.gate = gate
        self.parts.have_topics("{urn:t}a/b", retain=True)
        self.parts.have_topics("{urn:t}a/jobs", queue=True)
        self.parts.have_topics("{urn:t}a/to", f"{SYSTEM}/breaker/closed")

    def post(self, body: str | bytes, who: str, path: str = BROKER, version: str = "1.1", header: str = "") -> str:
        """Empty where it was done, else why not."""
        sent = body if isinstance(body, bytes) else soap.envelope(body, version, header)
        answer = self.parts.post(sent, path, authorization=basic(who, SECRET))
        if answer.status in (200, 202):
            said = (answer.text("WsnProcessResponse") or "") if answer.body else ""
            return said if said == "faild" else ""
        assert answer.status in (400, 403, 500), answer.body
        return answer.reason or f"HTTP {answer.status}"

    def made(self, body: str | bytes, kind: Kind, path: str = BROKER) -> str:
        """The path of what the owner makes by this."""
        sent = body if isinstance(body, bytes) else soap.envelope(body)
        answer = self.parts.post(sent, path, authorization=basic(OWNER, SECRET))
        assert answer.status == 200, answer.body
        addresses = (element.text or "" for element in answer.root.iter("{*}Address"))
        return next(each.removeprefix(BASE) for each in addresses if each.startswith(BASE + kind.value))

    @property
    def written(self) -> tuple[int, int, int]:
        """How much is in the logs."""
        parts = self.parts
        return len(parts.control.records), len(parts.notifications.accepted), len(parts.pull_log.records)


Prepare = Callable[[World], str]
"""Has the owner make what is asked about; returns its path."""

Ask = Callable[[World, str, str], str]
"""Has a user ask for something about what is at a path; empty where it was done, else why not."""


def at_broker_itself(world: World) -> str:
    return BROKER


@dataclass(frozen=True)
class Row:
    """Who may do an operation through a door. `key` is the operation, as `without_row` has it."""

    key: tuple[str, str]
    may: frozenset[str]
    ask: Ask
    prepare: Prepare = at_broker_itself
    door: str = ""

    @property
    def name(self) -> str:
        return f"{self.key[0]} {self.key[1]} {self.door}".strip()


def element(name: str, inside: str = "", attributes: str = "") -> str:
    return f"<{name} {DECLARED}{attributes}>{inside}</{name}>"


SUBSCRIBE = soap.subscribe(filters=soap.topic_expression("t:a//."))
QUEUE = "<wsnt:SubscriptionPolicy><p:Queue xmlns:p='urn:arborcast:policy'/></wsnt:SubscriptionPolicy>"
SERVE = soap.subscribe(filters=soap.topic_expression("t:a/jobs"), more=QUEUE)
PULL = element("tev:CreatePullPointSubscription", f"<tev:Filter>{soap.topic_expression('t:a//.')}</tev:Filter>")
REGISTER = element("br:RegisterPublisher", soap.topic("t:a/b").replace("wsnt:Topic", "br:Topic"))
TRIGGER = element(
    "p:CreateTrigger",
    f"<wsnt:Filter>{soap.topic_expression('t:a/b')}</wsnt:Filter><p:Publish>{soap.topic('t:a/to')}</p:Publish>",
    ' Name="hot"',
)


def made(what: str, kind: Kind) -> Prepare:
    return lambda world: world.made(what, kind)


def published(world: World) -> str:
    assert not world.post(soap.notify(soap.message("t:a/b")), OWNER)
    return BROKER


def with_trigger(world: World) -> str:
    assert not world.post(TRIGGER, OWNER)
    return BROKER


def name_of(body: str) -> str:
    name = re.match(r"<([\w:]+)", body)
    assert name is not None
    return name[1]


def there(body: str, may: frozenset[str], at: str = "BROKER", prepare: Prepare = at_broker_itself) -> Iterator[Row]:
    """At the address of what is asked about, in both versions of SOAP."""
    for version in ("1.1", "1.2"):

        def ask(world: World, who: str, path: str, version: str = version) -> str:
            return world.post(body, who, path, version)

        yield Row((name_of(body), at), may, ask, prepare, f"SOAP {version}")


def named(body: str, may: frozenset[str], prepare: Prepare) -> Iterator[Row]:
    """At the broker's address, with that of what is asked about in wsa:To."""

    def ask(world: World, who: str, path: str) -> str:
        return world.post(body, who, header=soap.addressing("urn:any", to=BASE + path))

    yield Row((name_of(body), "BROKER"), may, ask, prepare, "SOAP, by wsa:To")


def named_inside(body: str, may: frozenset[str], prepare: Prepare) -> Iterator[Row]:
    """At the broker's address, with that of what is asked about in the operation's element."""

    def ask(world: World, who: str, path: str) -> str:
        address = f"<wsa:Address>{BASE}{path}</wsa:Address>"
        begin, end = body.rsplit("</", 1)
        return world.post(f"{begin}<wsnt:SubscriptionReference>{address}</wsnt:SubscriptionReference></{end}", who)

    yield Row((name_of(body), "BROKER"), may, ask, prepare, "SOAP, by reference")


RENEW = element("wsnt:Renew", "<wsnt:TerminationTime>PT1H</wsnt:TerminationTime>")
END_AT = element("rl:SetTerminationTime", "<rl:RequestedLifetimeDuration>PT1H</rl:RequestedLifetimeDuration>")
ON_SUBSCRIPTIONS = [
    RENEW,
    element("wsnt:Unsubscribe"),
    element("wsnt:PauseSubscription"),
    element("wsnt:ResumeSubscription"),
    element("p:RotateSecret"),
    element("p:SetCredentials"),
    END_AT,
    element("rl:Destroy"),
]


def reading(resource: str) -> list[str]:
    """What reads the properties of a resource of which this is one."""
    return [
        element("rp:GetResourceProperty", resource),
        element("rp:GetMultipleResourceProperties", f"<rp:ResourceProperty>{resource}</rp:ResourceProperty>"),
        element("rp:GetResourcePropertyDocument"),
    ]


OLD_SUBSCRIBER = "http://127.0.0.1:9/old"


def old_endpoint(world: World) -> str:
    """A pull point that became the endpoint of a subscription by the older system's client."""
    path = world.made("<wsnt:CreatePullPoint/>", Kind.PULL_POINT, "/WSN/CreatePullPoint")
    old = soap.envelope(legacy.subscribe("a:b", OLD_SUBSCRIBER, BASE + path))
    assert not world.post(old, OWNER, "/WSN/Broker")
    return path


def soap_rows() -> Iterator[Row]:
    notify = soap.notify(soap.message("t:a/b"))
    yield from there(notify, PUBLISHERS)
    yield from there(SUBSCRIBE, SUBSCRIBERS)
    yield from there(SERVE, SERVERS)
    yield from there(element("wsnt:GetCurrentMessage", soap.topic("t:a/b")), SUBSCRIBERS, prepare=published)
    yield from there(TRIGGER, frozenset({"subscribe-publish"}))
    yield from there(element("p:DestroyTrigger", attributes=' Name="hot"'), MANAGERS, prepare=with_trigger)
    yield from there(REGISTER, PUBLISHERS)
    yield from there(PULL, SUBSCRIBERS)
    for open_to_all in (
        element("wsnt:CreatePullPoint"),
        element("tev:SetSynchronizationPoint"),
        element("tev:GetEventProperties"),
        element("tev:GetServiceCapabilities"),
        element("tds:GetSystemDateAndTime"),
        element("tds:GetServices"),
        element("tds:GetCapabilities"),
        element("tds:GetDeviceInformation"),
        *reading("wsnt:FixedTopicSet"),
    ):
        yield from there(open_to_all, OTHERS)
    subscription = made(SUBSCRIBE, Kind.SUBSCRIPTION)
    for body in ON_SUBSCRIPTIONS:
        yield from there(body, MANAGERS, "SUBSCRIPTION", subscription)
        yield from named(body, MANAGERS, subscription)
        yield from named_inside(body, MANAGERS, subscription)
    for body in (*reading("wsnt:ConsumerReference"), element("tev:SetSynchronizationPoint")):
        yield from there(body, MANAGERS, "SUBSCRIPTION", subscription)
    yield from there(element("tev:PullMessages"), MANAGERS, "SUBSCRIPTION", made(PULL, Kind.SUBSCRIPTION))
    point = made("<wsnt:CreatePullPoint/>", Kind.PULL_POINT)
    for body in (element("wsnt:GetMessages"), element("wsnt:DestroyPullPoint")):
        yield from there(body, OF_EVERYTHING, "PULL_POINT", point)
        yield from named(body, OF_EVERYTHING, point)
    yield from there(notify, OF_EVERYTHING, "PULL_POINT", point)
    yield from there(element("wsnt:Unsubscribe"), MANAGERS, "PULL_POINT", old_endpoint)
    registration = made(REGISTER, Kind.REGISTRATION)
    yield from there(notify, PUBLISHERS, "REGISTRATION", registration)
    yield from named(element("br:DestroyRegistration"), MANAGERS, registration)
    yield from named_inside(element("br:DestroyRegistration"), MANAGERS, registration)
    for body in (element("br:DestroyRegistration"), *reading("br:Demand")):
        yield from there(body, MANAGERS, "REGISTRATION", registration)


def legacy_rows() -> Iterator[Row]:
    def of(text: str, may: frozenset[str], door: str, prepare: Prepare = at_broker_itself) -> Row:
        def ask(world: World, who: str, _: str) -> str:
            return world.post(legacy.wsn_process(text), who, Kind.LEGACY.value)

        return Row(("WsnProcess", "any"), may, ask, prepare, door)

    def subscribed(world: World) -> str:
        assert not world.post(legacy.wsn_process(legacy.subscribe("a:b", OLD_SUBSCRIBER)), OWNER, Kind.LEGACY.value)
        return BROKER

    yield of(legacy.notify("a:b", "<x/>"), PUBLISHERS, "Notify")
    (first, *_) = legacy.in_parts("a:b", "<x>1234567890</x>", 8)
    yield of(first, PUBLISHERS, "a part")
    yield of(legacy.subscribe("a:b", OLD_SUBSCRIBER), SUBSCRIBERS, "Subscribe")
    # By address and topic only what is one's own is found.
    yield of(legacy.unsubscribe("a:b", OLD_SUBSCRIBER), NOBODY, "Unsubscribe", subscribed)
    yield of(f'<wsnt:CreatePullPoint xmlns:wsnt="{PREFIXES["wsnt"]}">mine</wsnt:CreatePullPoint>', OTHERS, "pull point")


def follow(world: World, who: str, path: str) -> str:
    """The stream of a subscription."""
    headers = {"authorization": basic(who, SECRET), "last_event_id": path.rpartition("/")[2]}
    answer = asyncio.run(world.parts.hang_up_after_the_head("/events/{urn:t}a//.", headers))
    return "" if answer.status == 200 else answer.body.decode()


def unsubscribe_in_a_frame(world: World, who: str, path: str) -> str:
    with framed_edge(world.parts) as edge, closing(FramedClient(edge, who, SECRET)) as client:
        answer = client.ask(FrameKind.UNSUBSCRIBE, frames.UnsubscribeBody(path.rpartition("/")[2]))
        return "" if answer.kind == FrameKind.RECEIPT else frames.read_body(answer, frames.ErrorBody).text


# Addresses of what belongs to a user.
OWNED = (Kind.SUBSCRIPTION.value, Kind.PULL_POINT.value, Kind.REGISTRATION.value)

ROWS = [
    *soap_rows(),
    *legacy_rows(),
    Row(("Events", "GET"), MANAGERS, follow, made(PULL, Kind.SUBSCRIPTION)),
    Row(("UNSUBSCRIBE", "framed"), MANAGERS, unsubscribe_in_a_frame, made(SUBSCRIBE, Kind.SUBSCRIPTION)),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_who_may(gate: Gate, row: Row) -> None:
    did = set()
    for who in sorted(OTHERS):
        world = World(gate)
        path = row.prepare(world)
        before = world.written
        why = row.ask(world, who, path)
        if not why:
            did.add(who)
            continue
        assert REFUSED.search(why), (who, why)
        if path.startswith(OWNED) and row.key[0] != "wsnt:Notify":
            own_id = path.rpartition("/")[2]
            missing = row.ask(world, who, path.replace(own_id, "none"))
            assert why.replace(own_id, "none") == missing, "to another it is not there"
        assert world.written == before, (who, "a refusal changes nothing")
    assert did == row.may


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_without_users_everybody_may(row: Row) -> None:
    world = World(None)
    assert row.ask(world, "nothing", row.prepare(world)) == ""


def without_row() -> set[tuple[str, str]]:
    """Operations of the application that no row is about."""
    prefixes = {uri: prefix for prefix, uri in PREFIXES.items()}
    found = set()
    for name, kind in _OPERATIONS:
        uri, _, local = name[1:].partition("}")
        at = "BROKER" if kind in FACTORIES else kind.name
        found.add(("WsnProcess", "any") if local == "WsnProcess" else (f"{prefixes.get(uri, uri)}:{local}", at))
    return found - {row.key for row in ROWS}


def test_each_operation_and_each_frame_has_a_row() -> None:
    assert without_row() == set()
    assert len(get_args(messages.Action)) == len(list(legacy_rows())), "what WsnProcess carries out"
    in_a_row, doors = {FrameKind.UNSUBSCRIBE}, {FrameKind.PUBLISH, FrameKind.SUBSCRIBE}
    # CONNECT names the user; the rest is about messages that the connection was given, or about the connection.
    about_itself = {FrameKind.CONNECT, FrameKind.ACK, FrameKind.REFUSE, FrameKind.PING, FrameKind.PONG, FrameKind.CLOSE}
    answers = {FrameKind.CONNECTED, FrameKind.RECEIPT, FrameKind.MESSAGE, FrameKind.ERROR}
    assert set(FrameKind) == in_a_row | doors | about_itself | answers
    assert {kind.name for kind in in_a_row} <= {row.key[0] for row in ROWS}


@pytest.mark.parametrize(("who", "may"), [("subscribe", True), ("publish", False)])
def test_who_may_subscribe_by_zeromq(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, may: bool
) -> None:
    if not may:
        monkeypatch.setattr("arborcast.ingest.zeromq.edge._READY_S", 1.0)  # it ends with the error
    world = World(gate)
    with zmq_edge(world.parts, who, SECRET, tmp_path) as ask, zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.setsockopt(zmq.LINGER, 0)
        sub.connect(f"ipc://{tmp_path}/edge-s")
        sub.subscribe(b"a/b")
        assert ask(b"ready", b"a/b")[0] == (b"ok" if may else b"error")
        assert bool(world.parts.control.records) is may


def about(body: str) -> Callable[[str], Ask]:
    """What asks the same of another topic than {urn:t}a/b."""
    return lambda topic: lambda world, who, _: world.post(body.replace("t:a/b", f"t:{topic}"), who)


ABOUT_A_TOPIC = {
    body: about(body)
    for body in (
        soap.subscribe(filters=soap.topic_expression("t:a/b"), more=QUEUE),
        element("wsnt:GetCurrentMessage", soap.topic("t:a/b")),
        TRIGGER,
        TRIGGER.replace(soap.topic("t:a/to"), soap.topic("t:a/b")),
        REGISTER,
    )
}


@pytest.mark.parametrize("ask", ABOUT_A_TOPIC.values(), ids=range(len(ABOUT_A_TOPIC)))
def test_rights_are_asked_before_it_is_said_whether_a_topic_is_there(gate: Gate, ask: Callable[[str], Ask]) -> None:
    """With a fixed topic set a client that may not use a topic would learn which ones there are."""
    answers = []
    for topic in ("a/b", "a/c"):
        why = ask(topic)(World(gate, TopicSettings(fixed=True)), "nothing", BROKER)
        assert "may not" in why
        answers.append(why.replace(topic, ""))
    assert answers[0] == answers[1]


EVENT_TOPIC = (
    f'<wsnt:Topic xmlns:e="urn:arborcast" Dialect="{soap.DIALECT}Concrete">e:system/breaker/closed</wsnt:Topic>'
)
EVENT_MESSAGE = f"<wsnt:NotificationMessage>{EVENT_TOPIC}<wsnt:Message><x/></wsnt:Message></wsnt:NotificationMessage>"
FORGED: dict[str, Ask] = {
    "Notify among others": lambda world, who, path: world.post(soap.notify(soap.message("t:a/b"), EVENT_MESSAGE), who),
    "a trigger": lambda world, who, path: world.post(TRIGGER.replace(soap.topic("t:a/to"), EVENT_TOPIC), who),
    "a registration": lambda world, who, path: world.post(
        element("br:RegisterPublisher", EVENT_TOPIC.replace("wsnt:Topic", "br:Topic")), who
    ),
    "a registration for all": lambda world, who, path: world.post(
        element(
            "br:RegisterPublisher",
            EVENT_TOPIC.replace("wsnt:Topic", "br:Topic").replace("Concrete", "Full").replace("closed", "/."),
        ),
        who,
    ),
}


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("door", FORGED)
def test_no_client_publishes_operator_events(gate: Gate, door: str, guarded: bool) -> None:
    """Whatever the policy allows, and where there is none; for each door see test_doors.py."""
    world = World(gate if guarded else None)
    why = FORGED[door](world, "root", BROKER)
    assert "only the engine publishes" in why, why
    assert world.parts.notifications.accepted == []
    assert world.parts.parts.records == []
    assert len(world.parts.table.triggers) == 0
    assert len(world.parts.registrations) == 0
