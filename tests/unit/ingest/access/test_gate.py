"""Through the application: credentials, rights, and refusals that change nothing."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.policy import read_policy
from arborcast.ingest.access.settings import AccessSettings, TlsSettings
from arborcast.ingest.access.username_token import UsernameToken
from arborcast.ingest.access.users import FailedLogins, Users
from arborcast.ingest.access.users_file import User
from arborcast.ingest.framed import subscriptions as framed
from arborcast.ingest.operations.onvif import TDS
from arborcast.ingest.operations.pull_points import open_pull_point
from arborcast.wire.errors import IdentitiesUnavailable, NotAuthenticated
from arborcast.wire.frames import SubscribeBody
from tests.support import guarded_gateway, soap_messages
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.guarded_gateway import (
    ANNA,
    BERT,
    OLGA,
    Clock,
    at,
    basic,
    digest,
    guarded,
    nothing_happened,
    quick_hash,
    token,
    users_in,
)
from tests.support.soap_messages import XPATH_1, envelope, message, notify, register, subscribe, topic, topic_expression


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parts(tmp_path: Path, clock: Clock) -> GatewayParts:
    return guarded(tmp_path, clock)


def encoded(credentials: bytes) -> str:
    return f"Basic {base64.b64encode(credentials).decode()}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        *(basic("anna", password) for password in ("pb", "", "pä", "pa\u0000")),
        *(basic(name, "pa") for name in ("nobody", "", "änna", "\u202eanna")),
        *(encoded(text) for text in (b"anna", b"\xff:\xff", b"anna\r\nX: y:pa")),
        encoded(b"anna:p\xe4"),  # Latin-1 instead of UTF-8
        encoded(b"anna:" + b"p" * 200_000),
        encoded(b"a" * 200_000 + b":pa"),
        f"{ANNA}ä",
        f"{ANNA}, {ANNA}",
        *("Basic", "Basic !!!", "Basic ä:ö", "Bearer abc", "Digest username=anna", "anna:pa", "?"),
    ],
)
def test_wrong_http_credentials(parts: GatewayParts, header: str | None) -> None:
    for body in (notify(), subscribe()):
        answer = parts.post(envelope(body), **({} if header is None else {"authorization": header}))
        assert (answer.status, answer.fault) == (401, "FailedAuthentication")
        assert answer.headers[b"www-authenticate"] == b'Basic realm="arborcast", charset="UTF-8"'
    assert nothing_happened(parts)


def test_two_kinds_of_credentials_are_refused(parts: GatewayParts) -> None:
    for header, headers in (
        ("", {"authorization": ANNA, "Authorization": BERT}),
        (token("anna", "pa"), {"authorization": basic("a", "b")}),
    ):
        body = envelope(notify(message("t:a")), header=header)
        assert asyncio.run(parts.request("POST", "/wsn/NotificationBroker", body, headers)).status == 401
    assert nothing_happened(parts)


def test_pages_for_all_and_pages_for_users(parts: GatewayParts) -> None:
    assert parts.get("/health/live").status == 200
    assert parts.get("/wsn/NotificationBroker?wsdl").status != 401
    for page, status in (("/metrics", 200), ("/status.json", 404)):
        assert parts.get(page).status == 401  # an unknown client address
        assert asyncio.run(parts.request("GET", page, headers={"authorization": OLGA})).status == status
    parts.obstacle = "the control log is not read: Kafka at kafka-1:9092 does not answer"
    assert parts.get("/health/ready").body == b"the control log is not read\n"


def test_pages_without_the_directory_of_users(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(*_: object) -> None:
        raise IdentitiesUnavailable("users cannot be looked up now", 5.0)

    monkeypatch.setattr(Users, "check", check)
    answer = asyncio.run(parts.request("GET", "/metrics", headers={"authorization": OLGA}))
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"5")


async def test_clients_are_authenticated_before_the_expression_of_a_stream_is_read(parts: GatewayParts) -> None:
    for user, status in (("", 401), (basic("anna", "wrong"), 401), (ANNA, 400)):
        headers = {"authorization": user} if user else {}
        assert (await parts.hang_up_after_the_head("/events/a||b", headers)).status == status, user


async def test_the_status_of_a_pull_point_is_for_its_owner_and_managers(parts: GatewayParts) -> None:
    """The id of a durable framed subscription follows from its owner and its name."""
    assert parts.gateway.gate is not None
    anna = await parts.gateway.gate.acting("anna")
    assert anna is not None
    caller = parts.gateway.gate.again(anna)
    durable = await framed.subscribe(parts.gateway, SubscribeBody("{urn:t}a//.", "archive"), caller, anna.client)
    created = await open_pull_point(parts.gateway, "archive", "anna", provisional=False)
    for identifier in (durable.id, created.rpartition("/")[2]):
        page = f"/status.json?pull_point={identifier}"
        for user, status in ((ANNA, 200), (OLGA, 200), (BERT, 404)):
            assert (await parts.request("GET", page, headers={"authorization": user})).status == status, user


@pytest.mark.parametrize(
    ("client", "server", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),  # the supervisor, if the gateway listens only on this address
        ("2001:db8::7", "2001:db8::7", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("2001:db8::8", "2001:db8::7", False),
        ("192.0.2.8", "127.0.0.1", False),
    ],
)
async def test_local_requests_need_no_credentials(parts: GatewayParts, client: str, server: str, local: bool) -> None:
    gate = parts.gateway.gate
    assert gate is not None
    scope = {"client": (client, 1), "server": (server, 2), "headers": []}
    if local:
        await gate.check_page(scope)
    else:
        with pytest.raises(NotAuthenticated):
            await gate.check_page(scope)
        await gate.check_page({**scope, "headers": [(b"authorization", ANNA.encode())]})


# UsernameTokens of WS-Security.


def sent(parts: GatewayParts, header: str, soap: str = "1.1") -> HttpAnswer:
    return parts.post(envelope(notify(message("t:a")), soap, header))


def test_username_tokens(parts: GatewayParts, clock: Clock) -> None:
    assert sent(parts, token("bert", "pb"), "1.2").status == 202
    assert sent(parts, token("anna", "pa", created=at(-10))).status == 202
    two_names = token("anna", "pa", more="<w:Username>olga</w:Username>")
    assert sent(parts, two_names).status == 202, "the first user name counts"
    assert sent(parts, token("anna", "pb", more="<w:Password>pa</w:Password>")).fault == "FailedAuthentication"
    for value in ("4;annapa", "anna:pa", "annapa"):
        answer = parts.post(envelope(notify(message("t:a"))), authorization=f"Basic {value}")
        assert answer.status == 401, "no cache hit for Basic credentials"
    assert sent(parts, digest("anna", "pa")).status == 202
    again = sent(parts, digest("anna", "pa"))
    assert (again.status, again.fault, "used before" in again.reason) == (500, "FailedAuthentication", True)
    assert sent(parts, digest("anna", "pa", nonce=b"n2")).status == 202
    clock.now += 301
    assert sent(parts, digest("anna", "pa")).fault == "MessageExpired"
    assert len(parts.notifications.accepted) == 5


def test_onvif_clients_read_the_clock_before_they_authenticate(parts: GatewayParts) -> None:
    def answer(name: str, header: str = "") -> HttpAnswer:
        return parts.post(envelope(f'<d:{name} xmlns:d="{TDS}"/>', "1.2", header), "/onvif/device_service")

    for name in ("GetSystemDateAndTime", "GetServices", "GetCapabilities"):
        assert [answer(name, header).status for header in ("", digest("anna", "pa", seconds=-400))] == [200, 200]
    assert answer("GetDeviceInformation").fault == "FailedAuthentication"
    payload = f'<d:GetSystemDateAndTime xmlns:d="{TDS}"/>'.encode()
    assert parts.post(payload, "/publish/{urn:t}a", content_type="text/xml").status == 401
    assert nothing_happened(parts)


@pytest.mark.parametrize(
    ("created", "status"),
    [
        ("2023-11-14T22:13:20", 202),
        ("2023-11-14T22:13:20.123456789Z", 202),
        ("2023-11-15T00:13:20+02:00", 202),
        ("2023-11-14T22:18:20.0Z", 202),
        ("2023-11-14T22:18:20.1Z", 500),
        ("2023-11-14T22:13:20+02:00", 500),
        ("0001-01-01T00:00:00+14:00", 500),
    ],
)
def test_creation_times_of_tokens(parts: GatewayParts, created: str, status: int) -> None:
    for _ in range(2):  # the second time from the cache
        answer = sent(parts, token("anna", "pa", created=created))
        assert answer.status == status
        assert status == 202 or answer.fault == "MessageExpired"


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        *((token(*wrong), "FailedAuthentication") for wrong in (("anna", "pb"), ("nobody", "pa"))),
        (token("anna", "pa", created=at(-400)), "MessageExpired"),
        *((digest(*wrong), "FailedAuthentication") for wrong in (("anna", "pb"), ("nobody", "pa"), ("nobody", ""))),
        # A digest requires the password in clear text, which is not stored for bert.
        *((digest("bert", password), "FailedAuthentication") for password in ("pb", "")),
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
def test_refused_username_tokens(parts: GatewayParts, header: str, fault: str) -> None:
    answer = sent(parts, header)
    assert (answer.status, answer.fault) == (500, fault)
    assert b">pa<" not in answer.body
    assert nothing_happened(parts)


def test_guesses_of_digests_are_limited(tmp_path: Path, clock: Clock) -> None:
    users, parts = users_in(tmp_path, failed_logins=FailedLogins(3, 300, clock)), GatewayParts()
    parts.gateway.gate = Gate(None, Authenticator(AccessSettings(methods="token"), users, clock))
    assert [sent(parts, digest("anna", str(guess))).status for guess in range(5)] == [500] * 3 + [429] * 2


def test_a_wrong_digest_costs_no_lookup(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time would show whether a user exists, and each guess would cost a directory search."""
    monkeypatch.setattr(Users, "find", lambda *_: pytest.fail("looked up"))
    for name in ("anna", "nobody"):
        assert sent(parts, digest(name, "wrong")).fault == "FailedAuthentication"


# Rights.


def path_in(answer: HttpAnswer) -> str:
    return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


def created(parts: GatewayParts, user: str, name: str = "") -> str:
    attribute = f' pullPointQueueName="{name}"' if name else ""
    body = envelope(f"<wsnt:CreatePullPoint{attribute}/>")
    return path_in(parts.post(body, "/wsn/CreatePullPoint", authorization=user))


def test_owners_of_subscriptions_and_pull_points(parts: GatewayParts) -> None:
    def subscribed(user: str) -> str:
        return path_in(parts.post(envelope(subscribe(filters=topic_expression("t:a//."))), authorization=user))

    assert subscribed(ANNA) != subscribed(BERT)
    assert subscribed(ANNA) == subscribed(ANNA)
    mine = created(parts, ANNA, "mine")
    assert created(parts, ANNA, "mine") == mine != created(parts, BERT, "mine")
    body = envelope(subscribe(f"http://127.0.0.1:8080{mine}", topic_expression("t:a//.")))
    refused = parts.post(body, authorization=BERT)
    assert (refused.fault, "that does not exist" in refused.reason) == ("SubscribeCreationFailedFault", True)
    assert parts.post(body, authorization=ANNA).status == 200


TRIGGER = (
    f"<p:CreateTrigger xmlns:p='urn:arborcast:policy' Name='t%d'><wsnt:Filter>{topic_expression('t:a/on')}"
    f"</wsnt:Filter><p:Publish>{topic('t:a/to')}</p:Publish></p:CreateTrigger>"
)

BY_XPATH = subscribe(
    filters=topic_expression("t:a//.") + f'<wsnt:TopicExpression Dialect="{XPATH_1}">//x%d</wsnt:TopicExpression>'
)


@pytest.mark.parametrize(
    ("limit", "body", "path"),
    [
        ("pull_points", "<wsnt:CreatePullPoint/>", "/wsn/CreatePullPoint"),
        ("registrations", register("t:a"), "/wsn/NotificationBroker"),
        ("triggers", TRIGGER, "/wsn/NotificationBroker"),
        ("xpath_expressions", BY_XPATH, "/wsn/NotificationBroker"),
    ],
)
def test_no_owner_has_more_than_its_share(parts: GatewayParts, limit: str, body: str, path: str) -> None:
    parts.have_topics("{urn:t}a/to")
    limits: dict[str, Any] = {limit: 4}
    parts.gateway.settings = dataclasses.replace(parts.gateway.settings, share_per_owner=50, **limits)
    numbers = iter(range(10))

    def post(user: str) -> HttpAnswer:
        return parts.post(envelope(body.replace("%d", str(next(numbers)))), path, authorization=user)

    first = post(ANNA)
    assert [first.status, post(ANNA).status] == [200, 200]
    assert "gateway.share_per_owner allows 2" in post(ANNA).reason
    assert [post(BERT).status, post(BERT).status] == [200, 200], "the rest is for other owners"
    if limit == "pull_points":
        assert parts.post(envelope("<wsnt:DestroyPullPoint/>"), path_in(first), authorization=ANNA).status == 200
        assert post(ANNA).status == 200


def with_policy(parts: GatewayParts, text: str) -> None:
    policy = read_policy(text, "policy")
    assert parts.gateway.gate is not None
    parts.gateway.gate._policy = lambda: policy


def test_topics_without_rights_are_not_shown(parts: GatewayParts) -> None:
    parts.post(envelope(notify(message("t:a/b"))), authorization=ANNA)
    post = envelope(soap_messages.get_property("wstop:TopicSet"))
    assert parts.post(post, authorization=ANNA).root.find(".//{urn:t}a/b") is not None
    with_policy(parts, "")
    assert parts.post(post, authorization=ANNA).root.find(".//{urn:t}a") is None


@pytest.mark.parametrize(
    ("publishers", "user", "status"),
    [
        ((), ANNA, 202),
        (("anna",), ANNA, 202),
        (("anna", "group:operators"), BERT, 403),
        (("bert",), ANNA, 403),
        (("operators",), OLGA, 403),
        (("group:operators",), OLGA, 202),
        (("olga",), OLGA, 202),
    ],
)
def test_publishers_of_a_topic(parts: GatewayParts, publishers: tuple[str, ...], user: str, status: int) -> None:
    with_policy(parts, guarded_gateway.POLICY.replace('"bert"]', '"bert", "olga"]'))
    parts.have_topics("{urn:t}a/b", "{urn:t}c", publishers=publishers)
    # Together with a message to a topic without publishers: both are refused.
    answer = parts.post(envelope(notify(message("t:a/c"), message("t:a/b"))), authorization=user)
    assert (answer.status, len(parts.notifications.accepted)) == (status, 2 if status == 202 else 0)
    # The list of publishers adds no rights to the policy.
    assert parts.post(envelope(notify(message("t:c"))), authorization=user).status == 403


# Secrets.

SECRET = "correct-horse-battery"  # noqa: S105  # searched everywhere


def test_no_answer_and_no_log_shows_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    users, parts = users_in(tmp_path, User("anna", quick_hash(SECRET), clear=SECRET)), GatewayParts()
    parts.gateway.gate = Gate(None, Authenticator(AccessSettings(methods="basic, token"), users))
    right, wrong = basic("anna", SECRET), basic("bert", SECRET)
    requests = [
        (notify(), "", {"authorization": right}),
        (notify(), "", {"authorization": wrong}),
        (subscribe("nowhere"), "", {"authorization": right}),
        *((notify(), token("anna", password), {}) for password in (SECRET, f"{SECRET}!")),
        (notify(), token("anna", SECRET, kind="x"), {}),
        ("<no/>", token("anna", SECRET), {}),
    ]
    with caplog.at_level(logging.DEBUG):
        answers = [parts.post(envelope(body, header=header), **headers) for body, header, headers in requests]
    assert [answer.status for answer in answers][:2] == [202, 401]
    for text in (caplog.text, *(answer.body.decode() for answer in answers), parts.metrics.text()):
        assert not [each for each in (SECRET, right.split()[1], wrong.split()[1]) if each in text]


@pytest.mark.parametrize(
    "value",
    [
        User("anna", SECRET, clear=SECRET),
        UsernameToken("anna", SECRET, SECRET.encode()),
        TlsSettings("cert", key_password=SECRET),
        KafkaSettings(sasl_password=SECRET, ssl_key_password=SECRET),
    ],
)
def test_values_do_not_show_their_secrets(value: object) -> None:
    assert SECRET not in repr(value)
    assert SECRET not in f"{value}"
