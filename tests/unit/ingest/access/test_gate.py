"""Through the application: who gets in, what one may do, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ingest.access.authenticator import Authenticator
from ingest.access.errors import NotAuthenticated
from ingest.access.gate import Gate
from ingest.access.passwords import hash_password
from ingest.access.policy import read_policy
from ingest.access.settings import AccessSettings
from ingest.access.users import FileUsers, Users
from ingest.access.users_file import User, write_users
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.soap_messages import envelope, message, notify, subscribe, topic, topic_expression
from topic_model.records import TopicPolicy, TopicRecord
from topic_model.topics import TopicPath

WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
PROFILE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0"

POLICY = """
[namespaces]
t = "urn:t"
[[allow]]
do = ["publish", "subscribe"]
topics = ["t:a//."]
users = ["anna", "bert"]
[[allow]]
do = ["manage"]
topics = ["//."]
groups = ["operators"]
"""
NOW = 1_700_000_000.0


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parts(tmp_path: Path, clock: Clock) -> GatewayParts:
    users = [
        User("anna", hash_password("pa", log_n=4), clear="pa"),
        User("bert", hash_password("pb", log_n=4)),
        User("olga", hash_password("po", log_n=4), frozenset({"operators"})),
    ]
    write_users({user.name: user for user in users}, tmp_path / "users.toml")
    asked = Users(FileUsers(tmp_path / "users.toml"), remember_s=60, failures_per_minute=50)
    authenticator = Authenticator(AccessSettings(methods="basic, token"), asked, clock)
    policy = read_policy(POLICY, "policy")
    made = GatewayParts()
    made.gateway.gate = Gate(None, authenticator, lambda: policy)
    return made


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


ANNA, BERT, OLGA = basic("anna", "pa"), basic("bert", "pb"), basic("olga", "po")


def nothing_happened(parts: GatewayParts) -> bool:
    return not parts.notifications.accepted and not parts.control.records


@pytest.mark.parametrize(
    "header",
    [
        None,
        basic("anna", "pb"),
        basic("anna", ""),
        basic("nobody", "pa"),
        basic("", ""),
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"anna").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Basic " + base64.b64encode(b"anna:p\xe4").decode(),  # Latin-1, where UTF-8 was asked for
        "Basic " + base64.b64encode("anna:pä".encode()).decode(),
        "Basic " + base64.b64encode("anna:pa\u0000".encode()).decode(),
        "Basic " + base64.b64encode("änna:pa".encode()).decode(),
        "Basic " + base64.b64encode("\u202eanna:pa".encode()).decode(),
        "Basic " + base64.b64encode(b"anna\r\nX: y:pa").decode(),
        "Basic " + base64.b64encode(b"anna:" + b"p" * 200_000).decode(),
        "Basic " + base64.b64encode(b"a" * 200_000 + b":pa").decode(),
        "Basic ä:ö",
        "Basic " + base64.b64encode(b"anna:pa").decode() + "ä",
        "Basic " + base64.b64encode(b"anna:pa").decode() + ", Basic " + base64.b64encode(b"anna:pa").decode(),
        "Bearer abc",
        "Digest username=anna",
        "anna:pa",
        "?",
    ],
)
@pytest.mark.parametrize("body", [notify(), subscribe()])
def test_who_does_not_prove_who_it_is_changes_nothing(parts: GatewayParts, header: str | None, body: str) -> None:
    answer = parts.post(envelope(body), **({} if header is None else {"authorization": header}))
    assert answer.status == 401 or (header is None and answer.status == 401)
    assert answer.headers[b"www-authenticate"] == b'Basic realm="arborcast", charset="UTF-8"'
    assert answer.fault == "FailedAuthentication"
    assert nothing_happened(parts)


def test_the_fault_is_in_the_version_of_the_request(parts: GatewayParts) -> None:
    refused = parts.post(
        envelope(notify(), "1.2"), authorization=basic("a", "b"), content_type="application/soap+xml; charset=utf-8"
    )
    assert b"http://www.w3.org/2003/05/soap-envelope" in refused.body
    assert refused.fault == "FailedAuthentication"


def test_two_authorization_headers_are_none(parts: GatewayParts) -> None:
    import asyncio

    headers = {"authorization": ANNA, "Authorization": BERT}
    answer = asyncio.run(parts.request("POST", "/wsn/NotificationBroker", envelope(notify()), headers))
    assert answer.status == 401
    assert nothing_happened(parts)


def test_publishing_where_it_is_allowed(parts: GatewayParts) -> None:
    assert parts.post(envelope(notify(message("t:a/b"))), authorization=ANNA).status == 202
    accepted = len(parts.notifications.accepted)
    answer = parts.post(envelope(notify(message("t:a/b"), message("t:c"))), authorization=ANNA)
    assert answer.status == 403
    assert "anna may not publish to {urn:t}c" in answer.reason
    assert len(parts.notifications.accepted) == accepted
    assert "{urn:t}c" not in parts.table.topics


def test_subscribing_where_it_is_allowed(parts: GatewayParts) -> None:
    assert parts.post(envelope(subscribe(filters=topic_expression("t:a//."))), authorization=ANNA).status == 200
    records = len(parts.control.records)
    for filters in (topic_expression("t:*"), topic_expression("t:c"), None):
        answer = parts.post(envelope(subscribe(filters=filters)), authorization=ANNA)
        assert answer.fault == "SubscribeCreationFailedFault"
        assert "anna may not subscribe to all of" in answer.reason
    assert len(parts.control.records) == records


def subscribed(parts: GatewayParts, who: str) -> str:
    answer = parts.post(envelope(subscribe(filters=topic_expression("t:a//."))), authorization=who)
    return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


@pytest.mark.parametrize(
    "body",
    [
        "<wsnt:Renew><wsnt:TerminationTime>PT1H</wsnt:TerminationTime></wsnt:Renew>",
        "<wsnt:PauseSubscription/>",
        "<wsnt:ResumeSubscription/>",
        "<wsnt:Unsubscribe/>",
        '<r:GetResourcePropertyDocument xmlns:r="http://docs.oasis-open.org/wsrf/rp-2"/>',
        '<r:Destroy xmlns:r="http://docs.oasis-open.org/wsrf/rl-2"/>',
        '<p:PullMessages xmlns:p="http://www.onvif.org/ver10/events/wsdl"/>',
    ],
)
def test_to_others_a_subscription_is_not_there(parts: GatewayParts, body: str) -> None:
    path = subscribed(parts, ANNA)
    assert parts.table.get(path.rpartition("/")[2]).owner == "anna"  # type: ignore[union-attr]  # it is there
    records = len(parts.control.records)
    theirs = parts.post(envelope(body), path, authorization=BERT)
    missing = parts.post(envelope(body), "/wsn/subscriptions/none", authorization=BERT)
    assert theirs.fault == missing.fault == "ResourceUnknownFault"
    assert theirs.reason.replace(path.rpartition("/")[2], "none") == missing.reason
    assert len(parts.control.records) == records


def test_owner_and_operator_may_end_it(parts: GatewayParts) -> None:
    for who in (ANNA, OLGA):
        assert parts.post(envelope("<wsnt:Unsubscribe/>"), subscribed(parts, ANNA), authorization=who).status == 200


def test_equal_subscriptions_of_two_owners_are_two(parts: GatewayParts) -> None:
    assert subscribed(parts, ANNA) != subscribed(parts, BERT)
    assert subscribed(parts, ANNA) == subscribed(parts, ANNA)


def test_one_owner_may_have_so_many(parts: GatewayParts) -> None:
    parts.gateway.settings = dataclasses.replace(parts.gateway.settings, subscriptions_per_owner=2)

    def ask(number: int, who: str = ANNA) -> HttpAnswer:
        body = subscribe(to=f"http://127.0.0.1:9/{number}", filters=topic_expression("t:a//."))
        return parts.post(envelope(body), authorization=who)

    first = ask(1)
    assert [first.status, ask(2).status] == [200, 200]
    assert ask(1).status == 200, "the same again is no third"
    answer = ask(3)
    assert answer.fault == "SubscribeCreationFailedFault"
    assert "'anna' has 2 subscriptions, and 2 may be" in answer.reason
    assert ask(3, BERT).status == 200, "nobody pays for another"

    path = (first.text("Address") or "").removeprefix("http://127.0.0.1:8080")
    assert parts.post(envelope("<wsnt:Unsubscribe/>"), path, authorization=ANNA).status == 200
    assert ask(3).status == 200


def created(parts: GatewayParts, who: str, name: str = "") -> str:
    attribute = f' pullPointQueueName="{name}"' if name else ""
    answer = parts.post(envelope(f"<wsnt:CreatePullPoint{attribute}/>"), "/wsn/CreatePullPoint", authorization=who)
    return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


@pytest.mark.parametrize("body", ["<wsnt:GetMessages/>", "<wsnt:DestroyPullPoint/>", notify()])
def test_to_others_a_pull_point_is_not_there(parts: GatewayParts, body: str) -> None:
    path = created(parts, ANNA)
    assert parts.post(envelope(body), path, authorization=BERT).fault == "ResourceUnknownFault"
    assert parts.post(envelope(body), path, authorization=ANNA).status in (200, 202)


def test_a_pull_points_name_belongs_to_its_owner(parts: GatewayParts) -> None:
    assert created(parts, ANNA, "mine") == created(parts, ANNA, "mine")
    assert created(parts, ANNA, "mine") != created(parts, BERT, "mine")


def test_nobody_fills_the_pull_point_of_another(parts: GatewayParts) -> None:
    path = created(parts, ANNA)
    body = envelope(subscribe(f"http://127.0.0.1:8080{path}", topic_expression("t:a//.")))
    refused = parts.post(body, authorization=BERT)
    assert refused.fault == "SubscribeCreationFailedFault"
    assert "that is not there" in refused.reason
    assert parts.post(body, authorization=ANNA).status == 200


def registered(parts: GatewayParts, who: str, name: str = "t:a") -> HttpAnswer:
    br = "http://docs.oasis-open.org/wsn/br-2"
    named = topic(name).replace("wsnt:Topic", "br:Topic")
    return parts.post(
        envelope(f'<br:RegisterPublisher xmlns:br="{br}">{named}</br:RegisterPublisher>'), authorization=who
    )


def test_registering_for_what_one_may_publish_and_ending_only_ones_own(parts: GatewayParts) -> None:
    assert registered(parts, ANNA, "t:c").fault == "PublisherRegistrationRejectedFault"
    assert not parts.control.records
    assert registered(parts, ANNA).status == 200
    (one,) = parts.registrations
    assert one.owner == "anna"
    path = f"/wsn/registrations/{one.id}"
    destroy = envelope('<br:DestroyRegistration xmlns:br="http://docs.oasis-open.org/wsn/br-2"/>')
    assert parts.post(destroy, path, authorization=BERT).fault == "ResourceUnknownFault"
    assert parts.post(destroy, path, authorization=ANNA).status == 200


def test_topics_that_one_may_not_use_are_not_told(parts: GatewayParts) -> None:
    parts.post(envelope(notify(message("t:a/b"))), authorization=ANNA)
    ask = envelope(
        '<r:GetResourceProperty xmlns:r="http://docs.oasis-open.org/wsrf/rp-2"'
        ' xmlns:s="http://docs.oasis-open.org/wsn/t-1">s:TopicSet</r:GetResourceProperty>'
    )
    assert b"<b " in parts.post(ask, authorization=ANNA).body or b"b" in parts.post(ask, authorization=ANNA).body
    shown = parts.post(ask, authorization=ANNA).root.find(".//{urn:t}a/b")
    assert shown is not None
    policy = read_policy("", "policy")
    assert parts.gateway.gate is not None
    parts.gateway.gate._policy = lambda: policy
    assert parts.post(ask, authorization=ANNA).root.find(".//{urn:t}a") is None


def test_the_current_message_is_for_those_who_may_subscribe(parts: GatewayParts) -> None:
    body = envelope(f"<wsnt:GetCurrentMessage>{topic('t:c')}</wsnt:GetCurrentMessage>")
    assert parts.post(body, authorization=ANNA).status == 403


def test_the_older_envelope_asks_too(parts: GatewayParts) -> None:
    text = f"<wsnt:Notify xmlns:wsnt='http://docs.oasis-open.org/wsn/b-2'>{message('c')}</wsnt:Notify>"
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    body = envelope(f'<o:WsnProcess xmlns:o="http://org.apache.servicemix.application">{escaped}</o:WsnProcess>')
    assert parts.post(body, "/wsnprocess").status == 401
    assert parts.post(body, "/wsnprocess", authorization=ANNA).status == 403
    assert nothing_happened(parts)


def token(name: str, password: str, *, nonce: str = "", created: str = "", kind: str = "Text", more: str = "") -> str:
    return (
        f'<w:Security xmlns:w="{WSSE}" xmlns:u="{WSU}" s:mustUnderstand="1"><w:UsernameToken>'
        f'<w:Username>{name}</w:Username><w:Password Type="{PROFILE}#Password{kind}">{password}</w:Password>'
        f"{f'<w:Nonce>{nonce}</w:Nonce>' if nonce else ''}{f'<u:Created>{created}</u:Created>' if created else ''}"
        f"{more}</w:UsernameToken></w:Security>"
    )


def at(seconds: float, now: float = NOW) -> str:
    return (datetime.fromtimestamp(now, UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def digest(name: str, password: str, *, nonce: bytes = b"n1", seconds: float = 0.0, now: float = NOW) -> str:
    created = at(seconds, now)
    value = hashlib.sha1(nonce + created.encode() + password.encode()).digest()  # noqa: S324  # the profile's
    encoded = base64.b64encode(value).decode()
    return token(name, encoded, nonce=base64.b64encode(nonce).decode(), created=created, kind="Digest")


def sent(parts: GatewayParts, header: str, soap: str = "1.1") -> HttpAnswer:
    return parts.post(envelope(notify(message("t:a")), soap, header))


def test_a_username_token_lets_in(parts: GatewayParts) -> None:
    assert sent(parts, token("anna", "pa")).status == 202
    assert sent(parts, token("bert", "pb"), "1.2").status == 202
    assert sent(parts, token("anna", "pa", created=at(-10))).status == 202
    assert sent(parts, digest("anna", "pa")).status == 202


def test_a_digest_is_taken_once(parts: GatewayParts, clock: Clock) -> None:
    assert sent(parts, digest("anna", "pa")).status == 202
    again = sent(parts, digest("anna", "pa"))
    assert (again.status, again.fault) == (500, "FailedAuthentication")
    assert "used before" in again.reason
    assert sent(parts, digest("anna", "pa", nonce=b"n2")).status == 202
    clock.now += 301
    late = sent(parts, digest("anna", "pa"))
    assert late.fault == "MessageExpired"
    assert len(parts.notifications.accepted) == 2


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (token("anna", "pb"), "FailedAuthentication"),
        (token("nobody", "pa"), "FailedAuthentication"),
        (token("anna", "pa", created=at(-400)), "MessageExpired"),
        (digest("anna", "pb"), "FailedAuthentication"),
        (digest("nobody", "pa"), "FailedAuthentication"),
        (digest("nobody", ""), "FailedAuthentication"),
        # Whose password is not known in clear text, cannot come with a digest, nor with that of an empty password.
        (digest("bert", "pb"), "FailedAuthentication"),
        (digest("bert", ""), "FailedAuthentication"),
        (digest("anna", "pa", seconds=400), "MessageExpired"),
        (digest("anna", "pa", seconds=-400), "MessageExpired"),
        (token("anna", "YQ==", kind="Digest"), "InvalidSecurityToken"),
        (token("anna", "YQ==", nonce="YQ==", kind="Digest"), "InvalidSecurityToken"),
        (token("anna", "YQ==", nonce="???", created=at(0), kind="Digest"), "InvalidSecurityToken"),
        (token("anna", "pa", created="yesterday"), "InvalidSecurityToken"),
        (token("anna", "pa", created="2023-99-99T00:00:00Z"), "InvalidSecurityToken"),
        (token("", "pa"), "InvalidSecurityToken"),
        (token("anna", "pa", kind="Hint"), "UnsupportedSecurityToken"),
        (token("anna", "pa") + token("bert", "pb"), "InvalidSecurity"),
    ],
)
def test_tokens_that_let_nobody_in(parts: GatewayParts, header: str, fault: str) -> None:
    answer = sent(parts, header)
    assert (answer.status, answer.fault) == (500, fault)
    assert b">pa<" not in answer.body
    assert nothing_happened(parts)


def test_wrong_http_credentials_are_not_made_good_by_a_token(parts: GatewayParts) -> None:
    answer = parts.post(envelope(notify(message("t:a")), header=token("anna", "pa")), authorization=basic("a", "b"))
    assert answer.status == 401
    assert nothing_happened(parts)


def test_nobody_guesses_for_long(parts: GatewayParts) -> None:
    statuses = [sent(parts, token("anna", str(guess))).status for guess in range(60)]
    assert statuses[:50] == [500] * 50
    assert statuses[50:] == [429] * 10
    assert nothing_happened(parts)


def test_health_and_descriptions_are_for_everybody(parts: GatewayParts) -> None:
    assert parts.get("/health/live").status == 200
    assert parts.get("/wsn/NotificationBroker?wsdl").status != 401


def test_metrics_are_for_this_machine_and_for_users(parts: GatewayParts) -> None:
    import asyncio

    assert parts.get("/metrics").status == 401  # from nowhere that is known
    assert asyncio.run(parts.request("GET", "/metrics", headers={"authorization": OLGA})).status == 200


def test_without_a_gate_nobody_is_asked() -> None:
    parts = GatewayParts()
    assert parts.post(envelope(notify(), header=token("x", "y")), authorization=basic("a", "b")).status == 202


@pytest.mark.parametrize(
    ("publishers", "who", "status"),
    [
        ((), ANNA, 202),
        (("anna",), ANNA, 202),
        (("anna", "group:operators"), BERT, 403),
        (("bert",), ANNA, 403),
        (("operators",), OLGA, 403),
        (("group:operators",), OLGA, 202),
        # A topic's list allows nobody more than the policy does.
        (("olga",), OLGA, 202),
    ],
)
def test_a_topic_may_name_its_publishers(
    parts: GatewayParts, publishers: tuple[str, ...], who: str, status: int
) -> None:
    policy = read_policy(POLICY.replace('"bert"]', '"bert", "olga"]'), "policy")
    assert parts.gateway.gate is not None
    parts.gateway.gate._policy = lambda: policy
    path = TopicPath("{urn:t}a/b")
    parts.table.apply(TopicRecord(path, policy=TopicPolicy(publishers=publishers)))
    # Beside one that anybody may publish to: all of it is refused.
    answer = parts.post(envelope(notify(message("t:a/c"), message("t:a/b"))), authorization=who)
    assert answer.status == status
    assert len(parts.notifications.accepted) == (2 if status == 202 else 0)


def test_the_topics_list_does_not_open_what_the_policy_keeps_closed(parts: GatewayParts) -> None:
    path = TopicPath("{urn:t}c")
    parts.table.apply(TopicRecord(path, policy=TopicPolicy(publishers=("anna",))))
    answer = parts.post(envelope(notify(message("t:c"))), authorization=ANNA)
    assert (answer.status, parts.notifications.accepted) == (403, [])


@pytest.mark.parametrize(
    ("client", "server", "seen"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),  # the supervisor, where the gateway listens on this address alone
        ("2001:db8::7", "2001:db8::7", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("2001:db8::8", "2001:db8::7", False),
        ("192.0.2.8", "127.0.0.1", False),
    ],
)
def test_who_this_machine_is(parts: GatewayParts, client: str, server: str, seen: bool) -> None:
    gate = parts.gateway.gate
    assert gate is not None
    scope = {"client": (client, 1), "server": (server, 2), "headers": []}
    if seen:
        asyncio.run(gate.look(scope))
    else:
        with pytest.raises(NotAuthenticated):
            asyncio.run(gate.look(scope))
        asyncio.run(gate.look({**scope, "headers": [(b"authorization", ANNA.encode())]}))


def test_nobody_is_looked_up_for_a_digest_that_is_wrong(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would show in the time who is there, and cost a directory a search for each guess."""
    asked: list[str] = []
    find = Users.find
    monkeypatch.setattr(Users, "find", lambda self, name: asked.append(name) or find(self, name))
    for name in ("anna", "nobody"):
        answer = parts.post(envelope(notify(), header=digest(name, "wrong")))
        assert answer.fault == "FailedAuthentication"
    assert asked == []
