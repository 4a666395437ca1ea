"""Through the application: WS-Security's UsernameToken lets in, and a refusal changes nothing."""

from __future__ import annotations

import pytest

from arborcast.ingest.access.users import Users
from arborcast.topic_model.grants import Identity
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.guarded_gateway import (
    Clock,
    at,
    basic,
    digest,
    nothing_happened,
    token,
)
from tests.support.soap_messages import envelope, message, notify

pytestmark = pytest.mark.slow


def sent(parts: GatewayParts, header: str, soap: str = "1.1") -> HttpAnswer:
    return parts.post(envelope(notify(message("t:a")), soap, header))


def test_a_username_token_lets_in(parts: GatewayParts) -> None:
    assert sent(parts, token("anna", "pa")).status == 202
    assert sent(parts, token("bert", "pb"), "1.2").status == 202
    assert sent(parts, token("anna", "pa", created=at(-10))).status == 202
    assert sent(parts, digest("anna", "pa")).status == 202


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
def test_when_a_token_was_made_is_understood(parts: GatewayParts, created: str, status: int) -> None:
    for _ in range(2):  # the second time it is known already
        answer = sent(parts, token("anna", "pa", created=created))
        assert answer.status == status
        assert status == 202 or answer.fault == "MessageExpired"


def test_of_what_a_token_says_twice_the_first_counts(parts: GatewayParts) -> None:
    assert sent(parts, token("anna", "pa", more="<w:Username>olga</w:Username>")).status == 202
    assert sent(parts, token("anna", "pb", more="<w:Password>pa</w:Password>")).fault == "FailedAuthentication"


def test_a_token_in_clear_text_makes_no_basic_credentials(parts: GatewayParts) -> None:
    assert sent(parts, token("anna", "pa")).status == 202
    for value in ("4;annapa", "anna:pa", "annapa"):
        assert parts.post(envelope(notify(message("t:a"))), authorization=f"Basic {value}").status == 401


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


def test_nobody_is_looked_up_for_a_digest_that_is_wrong(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would show in the time who is there, and cost a directory a search for each guess."""
    asked: list[str] = []
    find = Users.find

    async def noted(users: Users, name: str) -> Identity | None:
        asked.append(name)
        return await find(users, name)

    monkeypatch.setattr(Users, "find", noted)
    for name in ("anna", "nobody"):
        answer = parts.post(envelope(notify(), header=digest(name, "wrong")))
        assert answer.fault == "FailedAuthentication"
    assert asked == []
