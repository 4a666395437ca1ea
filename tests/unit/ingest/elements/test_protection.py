"""Secrets that subscribers set: sealed before they are stored, told once, changed over without a gap."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from arborcast.core.errors import SignatureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.signatures import check, key_of, new_secret
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.namespaces import ARBORCAST_POLICY
from arborcast.topic_model.records import control
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import START, GatewayParts, HttpAnswer

KEYS = KeyRing({"k1": b"k" * 32})
GIVEN = new_secret()
HTTPS = "https://consumer.example/"
NOW_S = START.timestamp()


def gateway(settings: SecretSettings | None = None) -> GatewayParts:
    parts = GatewayParts()
    parts.gateway.protector = Protector(settings or SecretSettings(), KEYS)
    return parts


def policy(content: str) -> str:
    return f'<wsnt:SubscriptionPolicy xmlns:p="{ARBORCAST_POLICY}">{content}</wsnt:SubscriptionPolicy>'


def signing(secret: str = "") -> str:
    return policy(f"<p:Signing><p:Secret>{secret}</p:Secret></p:Signing>" if secret else "<p:Signing/>")


def subscribe(parts: GatewayParts, more: str, to: str = HTTPS, soap_version: str = "1.1") -> HttpAnswer:
    return parts.post(soap.envelope(soap.subscribe(to, soap.topic_expression("a"), more=more), soap_version))


def operation(parts: GatewayParts, name: str, content: str = "", attributes: str = "") -> HttpAnswer:
    body = f'<p:{name} xmlns:p="{ARBORCAST_POLICY}" {attributes}>{content}</p:{name}>'
    return parts.post(soap.envelope(body), f"/wsn/subscriptions/{only(parts).id}")


def only(parts: GatewayParts) -> Subscription:
    (found,) = parts.table.subscriptions()
    return found


def signed_by(parts: GatewayParts, secret: str, later_s: float = 0) -> bool:
    notification = Notification("n1", TopicPath("a"), b"<x/>", 0)
    request = Envelope(only(parts), Vault(SecretSettings(), KEYS)).request([notification], 1, NOW_S + later_s)
    try:
        headers = {name.lower(): value for name, value in request.headers}
        check([key_of(secret)], headers, request.body, NOW_S + later_s)
    except SignatureError:
        return False
    return True


def authorization(parts: GatewayParts) -> str | None:
    notification = Notification("n1", TopicPath("a"), b"<x/>", 0)
    request = Envelope(only(parts), Vault(SecretSettings(), KEYS)).request([notification], 1)
    return dict(request.headers).get("Authorization")


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_secret_that_we_make_is_told_in_the_answer_and_nowhere_else(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts = gateway()
    with caplog.at_level(logging.DEBUG):
        answer = subscribe(parts, signing(), soap_version=version)
    secret = answer.text("Secret")
    assert answer.status == 200
    assert secret is not None
    assert secret.startswith("whsec_")
    assert signed_by(parts, secret)
    assert_kept_secret(parts, secret, caplog.text)
    properties = parts.post(
        soap.envelope('<r:GetResourcePropertyDocument xmlns:r="http://docs.oasis-open.org/wsrf/rp-2"/>'),
        f"/wsn/subscriptions/{only(parts).id}",
    )
    assert properties.status == 200
    assert secret.encode() not in properties.body


def assert_kept_secret(parts: GatewayParts, secret: str, log: str) -> None:
    """Neither the log, nor the control records, nor any repr shows it."""
    shown = [log, repr(only(parts)), repr(parts.control.records)]
    shown += [str(control.encode(record)) for record in parts.control.records]
    for text in shown:
        assert secret not in text
        assert secret.removeprefix("whsec_") not in text


def test_a_secret_that_is_given_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    parts = gateway()
    with caplog.at_level(logging.DEBUG):
        answer = subscribe(parts, signing(GIVEN))
    assert answer.text("Secret") is None
    assert signed_by(parts, GIVEN)
    assert_kept_secret(parts, GIVEN, caplog.text)
    (value,) = [
        control.encode(record)[1] for record in parts.control.records if isinstance(record, control.SubscriptionRecord)
    ]
    assert json.loads(value or b"")["record"]["subscription"]["protection"]["secrets"][0]["sealed"].startswith("k1:")


def test_subscribing_again_changes_the_secret_of_the_same_subscription() -> None:
    parts = gateway()
    subscribe(parts, signing(GIVEN))
    before = only(parts)
    subscribe(parts, signing(GIVEN))
    assert only(parts) == before, "the same again is a repetition"
    subscribe(parts, "")
    assert only(parts) == before, "one that says nothing of it leaves it"
    other = subscribe(parts, signing()).text("Secret") or ""
    assert signed_by(parts, other)
    assert signed_by(parts, GIVEN, later_s=86_399)
    assert not signed_by(parts, GIVEN, later_s=86_400)
    for _ in range(10):
        subscribe(parts, signing())
    protection = only(parts).protection
    assert protection is not None
    assert len(protection.secrets) == 4, "a client in a loop does not fill the record"


def test_rotation() -> None:
    parts = gateway()
    subscribe(parts, signing(GIVEN))
    answer = operation(parts, "RotateSecret", attributes='Overlap="PT1H"')
    fresh = answer.text("Secret") or ""
    assert answer.text("OldUntil") == "2026-01-01T01:00:00Z"
    assert signed_by(parts, fresh)
    assert signed_by(parts, GIVEN, later_s=3_599)
    assert not signed_by(parts, GIVEN, later_s=3_600)

    given = new_secret()
    answer = operation(parts, "RotateSecret", f"<p:Secret>{given}</p:Secret>", 'Overlap="PT0S"')
    assert answer.text("Secret") is None
    assert answer.text("OldUntil") is None
    assert signed_by(parts, given)
    assert not signed_by(parts, fresh)

    assert operation(parts, "RotateSecret", attributes='Overlap="soon"').fault == "Client"
    assert operation(parts, "RotateSecret", attributes='Overlap="P50Y"').text("OldUntil") == "2027-01-02T00:00:00Z"


def test_credentials() -> None:
    parts = gateway()
    basic = "<p:Basic><p:User>user</p:User><p:Password>p\u00e4ss: word</p:Password></p:Basic>"
    subscribe(
        parts, policy(f"<p:Signing><p:Secret>{GIVEN}</p:Secret></p:Signing><p:Credentials>{basic}</p:Credentials>")
    )
    assert authorization(parts) == "Basic dXNlcjpww6Rzczogd29yZA=="
    assert_kept_secret(parts, "p\u00e4ss", "")
    assert_kept_secret(parts, "dXNlcjpww6Rzczogd29yZA==", "")

    assert operation(parts, "SetCredentials", "<p:Bearer> abc.DEF-_~+/== </p:Bearer>").status == 200
    assert authorization(parts) == "Bearer abc.DEF-_~+/=="
    assert signed_by(parts, GIVEN), "signing is another matter"
    assert operation(parts, "SetCredentials").status == 200
    assert authorization(parts) is None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("<p:Signing><p:Secret>whsec_short</p:Secret></p:Signing>", "Client"),
        ("<p:Signing><p:Secret/></p:Signing>", "Client"),
        ("<p:Credentials><p:Basic><p:User>a:b</p:User></p:Basic></p:Credentials>", "Client"),
        ("<p:Credentials><p:Basic><p:Password>hemlig</p:Password></p:Basic></p:Credentials>", "Client"),
        (
            "<p:Credentials><p:Basic><p:User>a</p:User><p:Password>hem&#10;lig</p:Password></p:Basic></p:Credentials>",
            "Client",
        ),
        ("<p:Credentials><p:Bearer>hemlig&#13;&#10;X-Evil: 1</p:Bearer></p:Credentials>", "Client"),
        ("<p:Credentials><p:Bearer/></p:Credentials>", "Client"),
        ("<p:Credentials><p:Bearer>a</p:Bearer><p:Basic><p:User>a</p:User></p:Basic></p:Credentials>", "Client"),
        (f"<p:Credentials><p:Bearer>hemlig{'a' * 9_000}</p:Bearer></p:Credentials>", "Client"),
        (
            "<p:Credentials><p:ClientCertificate>x</p:ClientCertificate></p:Credentials>",
            "UnsupportedPolicyRequestFault",
        ),
        ("<p:Unheard/>", "UnrecognizedPolicyRequestFault"),
    ],
)
def test_what_is_refused_says_why_without_quoting_it(content: str, fault: str) -> None:
    parts = gateway()
    answer = subscribe(parts, policy(content))
    assert answer.fault == fault
    assert b"hemlig" not in answer.body
    assert parts.control.records == []


def test_credentials_are_not_sent_in_the_clear_unless_the_operator_says_so() -> None:
    wanted = policy("<p:Credentials><p:Bearer>abc</p:Bearer></p:Credentials>")
    parts = gateway()
    answer = subscribe(parts, wanted, "http://consumer.example/")
    assert (answer.fault, parts.control.records) == ("UnsupportedPolicyRequestFault", [])
    assert "https" in answer.reason
    parts = gateway(SecretSettings(credentials_over_http=True))
    assert subscribe(parts, wanted, "http://consumer.example/").status == 200


def test_where_nothing_can_be_kept_nothing_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = GatewayParts()
    parts.gateway.protector = Protector(SecretSettings(key_file=str(tmp_path / "absent")))
    answer = subscribe(parts, signing())
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert "absent" not in answer.reason, "where our files are is nobody's business"
    assert "arborcast keys new" in caplog.text
    assert parts.control.records == []


def test_an_unsigned_subscription_is_signed_from_a_rotation_on_and_strangers_change_nothing() -> None:
    parts = gateway()
    body = f'<p:RotateSecret xmlns:p="{ARBORCAST_POLICY}"/>'
    assert parts.post(soap.envelope(body), "/wsn/subscriptions/unknown").fault == "ResourceUnknownFault"
    assert parts.post(soap.envelope(body)).fault == "ResourceUnknownFault"
    point = parts.post(soap.envelope("<wsnt:CreatePullPoint/>")).text("Address") or ""
    before = len(parts.control.records)
    assert subscribe(parts, signing(), point).fault == "UnsupportedPolicyRequestFault"
    assert len(parts.control.records) == before
    subscribe(parts, "")
    assert only(parts).protection is None
    assert signed_by(parts, operation(parts, "RotateSecret").text("Secret") or "")
