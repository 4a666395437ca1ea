"""Every operation on something that belongs to somebody, asked for by another: to others it is not there.

The operations are those that the application has, so one that is added without a thought of owners fails here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.policy import read_policy
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users import FileUsers, Guesses, Users
from arborcast.ingest.access.users_file import User, hash_password, write_users
from arborcast.ingest.elements.protection import Protector
from arborcast.ingest.http.app import _OPERATIONS
from arborcast.wire.endpoints import Kind
from tests.support import legacy_messages as legacy
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.guarded_gateway import basic
from tests.support.soap_messages import addressing, envelope, message, notify, subscribe, topic, topic_expression

pytestmark = pytest.mark.slow

BASE = "http://127.0.0.1:8080"
ANNA, BERT = basic("anna", "pa"), basic("bert", "pb")

POLICY = """
[[allow]]
do = ["publish", "subscribe"]
topics = ["//."]
users = ["anna", "bert"]
"""

NAMESPACES = {
    "wsnt": "http://docs.oasis-open.org/wsn/b-2",
    "br": "http://docs.oasis-open.org/wsn/br-2",
    "rp": "http://docs.oasis-open.org/wsrf/rp-2",
    "rl": "http://docs.oasis-open.org/wsrf/rl-2",
    "tev": "http://www.onvif.org/ver10/events/wsdl",
    "p": "urn:arborcast:policy",
}
DECLARED = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items())

# What stands inside the operation's element, where something has to.
INSIDE = {
    ("wsnt", "Renew"): "<wsnt:TerminationTime>PT1H</wsnt:TerminationTime>",
    ("rl", "SetTerminationTime"): "<rl:RequestedLifetimeDuration>PT1H</rl:RequestedLifetimeDuration>",
    ("rp", "GetResourceProperty"): "wsnt:ConsumerReference",
    ("rp", "GetMultipleResourceProperties"): "<rp:ResourceProperty>wsnt:ConsumerReference</rp:ResourceProperty>",
    ("wsnt", "Notify"): message("t:a"),
}

# At a registration's address, notifications are asked about as at the broker's: may this one publish there?
NOT_OF_AN_OWNER = {("wsnt", "Notify", Kind.REGISTRATION)}


def operations(kind: Kind) -> list[tuple[str, str]]:
    """Prefix and name of every operation at the addresses of a kind."""
    prefixes = {uri: prefix for prefix, uri in NAMESPACES.items()}
    found = []
    for name, at in _OPERATIONS:
        uri, _, local = name[1:].partition("}")
        if at is kind and local != "WsnProcess" and (prefixes[uri], local, kind) not in NOT_OF_AN_OWNER:
            found.append((prefixes[uri], local))
    return sorted(found)


def body(prefix: str, name: str, kind: Kind, more: str = "") -> str:
    inside = INSIDE.get((prefix, name), "")
    if kind is Kind.REGISTRATION:
        inside = inside.replace("wsnt:ConsumerReference", "br:Demand")
    return f"<{prefix}:{name} {DECLARED}>{inside}{more}</{prefix}:{name}>"


@pytest.fixture
def parts(tmp_path: Path) -> GatewayParts:
    users = [User(name, hash_password(password, log_n=4)) for name, password in (("anna", "pa"), ("bert", "pb"))]
    write_users({user.name: user for user in users}, tmp_path / "users.toml")
    asked = Users(FileUsers(tmp_path / "users.toml"), remember_s=60, guesses=Guesses(1_000, 1_000))
    policy = read_policy(POLICY, "policy")
    made = GatewayParts()
    made.gateway.gate = Gate(None, Authenticator(AccessSettings(methods="basic"), asked), lambda: policy)
    made.gateway.protector = Protector(SecretSettings(), KeyRing({"k1": b"k" * 32}))
    return made


def made(parts: GatewayParts, kind: Kind, *, pulled: bool = False) -> str:
    """The path of something of this kind that belongs to Anna."""
    asks = {
        Kind.SUBSCRIPTION: subscribe(filters=topic_expression("t:a//.")),
        Kind.PULL_POINT: "<wsnt:CreatePullPoint/>",
        Kind.REGISTRATION: f'<br:RegisterPublisher xmlns:br="{NAMESPACES["br"]}">'
        f"{topic('t:a').replace('wsnt:Topic', 'br:Topic')}</br:RegisterPublisher>",
    }
    ask = f'<tev:CreatePullPointSubscription xmlns:tev="{NAMESPACES["tev"]}"/>' if pulled else asks[kind]
    answer = parts.post(envelope(ask), authorization=ANNA)
    assert answer.status == 200, answer.reason
    addresses = [element.text or "" for element in answer.root.iter("{*}Address")]
    (path,) = {each.removeprefix(BASE) for each in addresses if each.startswith(BASE + kind.value)}
    return path


def bound(parts: GatewayParts) -> str:
    """The path of a pull point that became the endpoint of an old subscription of Anna's."""
    created = parts.post(envelope("<wsnt:CreatePullPoint/>"), "/WSN/CreatePullPoint", authorization=ANNA)
    address = created.text("Address") or ""
    old = legacy.subscribe("all:alarm", "http://127.0.0.1:9/old", address)
    assert parts.post(envelope(old), "/WSN/Broker", authorization=ANNA).status == 200
    return address.removeprefix(BASE)


CASES = [
    pytest.param(kind, prefix, name, id=f"{name} of a {kind.name.lower()}")
    for kind in (Kind.SUBSCRIPTION, Kind.PULL_POINT, Kind.REGISTRATION)
    for prefix, name in operations(kind)
]


def test_all_of_them_are_here() -> None:
    assert len(CASES) >= 18
    assert {name for _, name in operations(Kind.SUBSCRIPTION)} >= {"Renew", "RotateSecret", "SetCredentials", "Destroy"}
    assert {name for _, name in operations(Kind.PULL_POINT)} == {
        "GetMessages",
        "DestroyPullPoint",
        "Notify",
        "Unsubscribe",
    }


@pytest.mark.parametrize(("kind", "prefix", "name"), CASES)
def test_to_another_it_is_not_there_and_its_owner_may(parts: GatewayParts, kind: Kind, prefix: str, name: str) -> None:
    of_endpoint = kind is Kind.PULL_POINT and name == "Unsubscribe"
    path = bound(parts) if of_endpoint else made(parts, kind, pulled=name == "PullMessages")
    own_id = path.rpartition("/")[2]
    records, pulled = len(parts.control.records), len(parts.pull_log.records)
    sent = envelope(body(prefix, name, kind))
    theirs = parts.post(sent, path, authorization=BERT)
    missing = parts.post(sent, path.replace(own_id, "none"), authorization=BERT)
    assert (theirs.status, theirs.fault) == (missing.status, missing.fault) == (500, "ResourceUnknownFault")
    assert theirs.reason.replace(own_id, "none") == missing.reason
    assert (len(parts.control.records), len(parts.pull_log.records)) == (records, pulled), "and nothing has changed"
    assert parts.post(sent, path, authorization=ANNA).status in (200, 202)


@pytest.mark.parametrize("where", ["in the body", "in wsa:To"])
@pytest.mark.parametrize(
    ("kind", "prefix", "name"),
    [
        pytest.param(kind, prefix, name, id=f"{name} of a {kind.name.lower()}")
        for kind, names in (
            (
                Kind.SUBSCRIPTION,
                {"Renew", "Unsubscribe", "PauseSubscription", "ResumeSubscription", "SetTerminationTime", "Destroy"}
                | {"RotateSecret", "SetCredentials"},
            ),
            (Kind.REGISTRATION, {"DestroyRegistration"}),
        )
        for prefix, name in operations(kind)
        if name in names
    ],
)
def test_nor_by_way_of_the_brokers_address(parts: GatewayParts, kind: Kind, prefix: str, name: str, where: str) -> None:
    path = made(parts, kind)
    records = len(parts.control.records)

    def post(who: str) -> HttpAnswer:
        if where == "in the body":
            named = f"<wsnt:SubscriptionReference><wsa:Address>{BASE}{path}</wsa:Address></wsnt:SubscriptionReference>"
            return parts.post(envelope(body(prefix, name, kind, named)), authorization=who)
        header = addressing("urn:a", to=BASE + path)
        return parts.post(envelope(body(prefix, name, kind), header=header), authorization=who)

    assert post(BERT).fault == "ResourceUnknownFault"
    assert len(parts.control.records) == records
    assert post(ANNA).status == 200


def test_a_stranger_is_asked_who_it_is_first(parts: GatewayParts) -> None:
    path = made(parts, Kind.SUBSCRIPTION)
    for prefix, name in operations(Kind.SUBSCRIPTION):
        assert parts.post(envelope(body(prefix, name, Kind.SUBSCRIPTION)), path).status == 401


def test_publishing_at_anothers_registration_needs_the_right_to_publish(parts: GatewayParts) -> None:
    path = made(parts, Kind.REGISTRATION)
    gate = parts.gateway.gate
    assert gate is not None
    policy = read_policy(POLICY.replace('"anna", "bert"', '"anna"'), "policy")
    gate._policy = lambda: policy
    assert parts.post(envelope(notify(message("t:a"))), path, authorization=BERT).status == 403
    assert parts.notifications.accepted == []
    assert parts.post(envelope(notify(message("t:a"))), path, authorization=ANNA).status == 202
