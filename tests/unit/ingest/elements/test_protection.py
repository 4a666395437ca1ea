"""Secrets set by subscribers: sealed before they are stored, returned once, rotated without a gap."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from arborcast.core.errors import SignatureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.signatures import check, key_of, new_secret
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.namespaces import ARBORCAST_POLICY
from arborcast.topic_model.records import control
from arborcast.topic_model.records.control import SubscriptionRecord
from tests.support import make
from tests.support import soap_messages as soap
from tests.support.gateway_parts import START, GatewayParts, HttpAnswer, only_subscription

KEYS = KeyRing({"k1": b"k" * 32})
GIVEN = new_secret()
NOW_S = START.timestamp()
HTTPS = "https://consumer.example/"


def gateway(settings: SecretSettings | None = None) -> GatewayParts:
    parts = GatewayParts()
    parts.gateway.protector = Protector(settings or SecretSettings(), KEYS)
    return parts


SIGNING = "<p:Signing/>"
SIGNING_WITH_GIVEN = f"<p:Signing><p:Secret>{GIVEN}</p:Secret></p:Signing>"


def subscribe(parts: GatewayParts, policy: str, to: str = HTTPS, version: str = "1.1") -> HttpAnswer:
    return parts.post(soap.envelope(soap.subscribe(to, soap.topic_expression("a"), policy=policy), version))


def operation(parts: GatewayParts, name: str, content: str = "", attributes: str = "") -> HttpAnswer:
    body = f'<p:{name} xmlns:p="{ARBORCAST_POLICY}" {attributes}>{content}</p:{name}>'
    return parts.post(soap.envelope(body), f"/wsn/subscriptions/{only_subscription(parts).id}")


def push(parts: GatewayParts, later_s: float = 0) -> PushRequest:
    opener = SecretOpener(SecretSettings(), KEYS)
    return Envelope(only_subscription(parts), opener).request([make.notification()], 1, NOW_S + later_s)


def signed_by(parts: GatewayParts, secret: str, later_s: float = 0) -> bool:
    request = push(parts, later_s)
    try:
        headers = {name.lower(): value for name, value in request.headers}
        check([key_of(secret)], headers, request.body, NOW_S + later_s)
    except SignatureError:
        return False
    return True


def authorization(parts: GatewayParts) -> str | None:
    return dict(push(parts).headers).get("Authorization")


def assert_kept_secret(parts: GatewayParts, secret: str, log: str = "") -> None:
    """The secret is in no log, control record or repr."""
    shown = [log, repr(only_subscription(parts)), repr(parts.control.records)]
    shown += [str(control.encode(record)) for record in parts.control.records]
    assert not [text for text in shown if secret in text or secret.removeprefix("whsec_") in text]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
@pytest.mark.parametrize("given", ["", GIVEN], ids=["made", "given"])
def test_only_generated_secrets_are_in_the_answer(version: str, given: str, caplog: pytest.LogCaptureFixture) -> None:
    parts = gateway()
    with caplog.at_level(logging.DEBUG):
        answer = subscribe(parts, SIGNING_WITH_GIVEN if given else SIGNING, version=version)
    assert answer.status == 200
    assert (answer.text("Secret") is None) == bool(given)
    secret = given or answer.text("Secret") or ""
    assert secret.startswith("whsec_")
    assert signed_by(parts, secret)
    assert_kept_secret(parts, secret, caplog.text)
    properties = parts.post(soap.envelope(soap.PROPERTY_DOCUMENT), f"/wsn/subscriptions/{only_subscription(parts).id}")
    assert properties.status == 200
    assert secret.encode() not in properties.body
    (value,) = [control.encode(each)[1] for each in parts.control.records if isinstance(each, SubscriptionRecord)]
    assert json.loads(value or b"")["record"]["subscription"]["protection"]["secrets"][0]["sealed"].startswith("k1:")


def test_subscribing_again_changes_the_secret() -> None:
    parts = gateway()
    subscribe(parts, SIGNING_WITH_GIVEN)
    before = only_subscription(parts)
    for policy in (SIGNING_WITH_GIVEN, ""):
        subscribe(parts, policy)
        assert only_subscription(parts) == before
    other = subscribe(parts, SIGNING).text("Secret") or ""
    assert signed_by(parts, other)
    assert (signed_by(parts, GIVEN, later_s=86_399), signed_by(parts, GIVEN, later_s=86_400)) == (True, False)
    for _ in range(10):
        subscribe(parts, SIGNING)
    protection = only_subscription(parts).protection
    assert protection is not None
    assert len(protection.secrets) == 4, "bounded for a client in a loop"


def test_rotation() -> None:
    parts = gateway()
    subscribe(parts, SIGNING_WITH_GIVEN)
    answer = operation(parts, "RotateSecret", attributes='Overlap="PT1H"')
    fresh = answer.text("Secret") or ""
    assert answer.text("OldUntil") == "2026-01-01T01:00:00Z"
    assert signed_by(parts, fresh)
    assert (signed_by(parts, GIVEN, later_s=3_599), signed_by(parts, GIVEN, later_s=3_600)) == (True, False)

    given = new_secret()
    answer = operation(parts, "RotateSecret", f"<p:Secret>{given}</p:Secret>", 'Overlap="PT0S"')
    assert (answer.text("Secret"), answer.text("OldUntil")) == (None, None)
    assert (signed_by(parts, given), signed_by(parts, fresh)) == (True, False)

    assert operation(parts, "RotateSecret", attributes='Overlap="soon"').fault == "Client"
    assert operation(parts, "RotateSecret", attributes='Overlap="P50Y"').text("OldUntil") == "2027-01-02T00:00:00Z"


def test_rotation_without_a_secret_or_a_subscription() -> None:
    parts = gateway()
    body = soap.envelope(f'<p:RotateSecret xmlns:p="{ARBORCAST_POLICY}"/>')
    for path in ("/wsn/subscriptions/unknown", "/wsn/NotificationBroker"):
        assert parts.post(body, path).fault == "ResourceUnknownFault"
    subscribe(parts, "")
    assert only_subscription(parts).protection is None
    assert signed_by(parts, operation(parts, "RotateSecret").text("Secret") or "")


def test_credentials() -> None:
    parts = gateway()
    basic = "<p:Basic><p:User>user</p:User><p:Password>p\u00e4ss: word</p:Password></p:Basic>"
    subscribe(parts, SIGNING_WITH_GIVEN + credentials(basic))
    assert authorization(parts) == "Basic dXNlcjpww6Rzczogd29yZA=="
    assert_kept_secret(parts, "p\u00e4ss")
    assert_kept_secret(parts, "dXNlcjpww6Rzczogd29yZA==")
    assert operation(parts, "SetCredentials", "<p:Bearer> abc.DEF-_~+/== </p:Bearer>").status == 200
    assert authorization(parts) == "Bearer abc.DEF-_~+/=="
    assert signed_by(parts, GIVEN), "signing is independent"
    assert operation(parts, "SetCredentials").status == 200
    assert authorization(parts) is None


def credentials(content: str) -> str:
    return f"<p:Credentials>{content}</p:Credentials>"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("<p:Signing><p:Secret>whsec_short</p:Secret></p:Signing>", "Client"),
        ("<p:Signing><p:Secret/></p:Signing>", "Client"),
        (credentials("<p:Basic><p:User>a:b</p:User></p:Basic>"), "Client"),
        (credentials("<p:Basic><p:Password>hemlig</p:Password></p:Basic>"), "Client"),
        (credentials("<p:Basic><p:User>a</p:User><p:Password>hem&#10;lig</p:Password></p:Basic>"), "Client"),
        (credentials("<p:Bearer>hemlig&#13;&#10;X-Evil: 1</p:Bearer>"), "Client"),
        (credentials("<p:Bearer/>"), "Client"),
        (credentials("<p:Bearer>a</p:Bearer><p:Basic><p:User>a</p:User></p:Basic>"), "Client"),
        (credentials(f"<p:Bearer>hemlig{'a' * 9_000}</p:Bearer>"), "Client"),
        (credentials("<p:ClientCertificate>x</p:ClientCertificate>"), "UnsupportedPolicyRequestFault"),
        ("<p:Unheard/>", "UnrecognizedPolicyRequestFault"),
    ],
)
def test_a_refusal_does_not_quote_secrets(content: str, fault: str) -> None:
    parts = gateway()
    answer = subscribe(parts, content)
    assert (answer.fault, parts.control.records) == (fault, [])
    assert b"hemlig" not in answer.body


def test_refused_protection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Credentials without TLS, unless permitted; secrets of a pull point; any protection without a key file."""
    in_the_clear, http = credentials("<p:Bearer>abc</p:Bearer>"), "http://consumer.example/"
    parts = gateway()
    answer = subscribe(parts, in_the_clear, http)
    assert (answer.fault, "https" in answer.reason) == ("UnsupportedPolicyRequestFault", True)
    assert parts.control.records == []
    point = parts.post(soap.envelope("<wsnt:CreatePullPoint/>")).text("Address") or ""
    assert subscribe(parts, SIGNING, point).fault == "UnsupportedPolicyRequestFault"
    assert len(parts.control.records) == 1
    assert subscribe(gateway(SecretSettings(credentials_over_http=True)), in_the_clear, http).status == 200

    parts.gateway.protector = Protector(SecretSettings(key_file=str(tmp_path / "absent")))
    answer = subscribe(parts, SIGNING)
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert "absent" not in answer.reason, "clients do not learn file names"
    assert "arborcast keys new" in caplog.text
    assert len(parts.control.records) == 1
