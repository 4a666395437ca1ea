"""Protected pushes: a signature over the exact bytes, credentials, no header injection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from arborcast.core.errors import SecretError, SignatureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.signatures import check
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import HIDDEN, SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from tests.support.make import notification
from tests.support.sealed import KEYS, SECRET_OPENER, protected

NEW, OLD = b"n" * 32, b"o" * 24
NOW = 1_800_000_000.75
BASIC = b"Basic dXNlcjpoZW1saWdoIQ=="


def subscription(consumer: str = "https://consumer/", **changes: Any) -> Subscription:
    return Subscription("sub-1", EndpointReference(consumer), **changes)


def pushed(target: Subscription, *names: str, attempt: int = 1, now_s: float = NOW) -> PushRequest:
    return Envelope(target, SECRET_OPENER).request([notification(name) for name in names or ("n1",)], attempt, now_s)


def accepts(request: PushRequest, key: bytes, now_s: float = NOW, more: bytes = b"") -> bool:
    """Whether a receiver with this key accepts the push with `more` appended to its body."""
    try:
        check([key], {name.lower(): value for name, value in request.headers}, request.body + more, now_s)
    except SignatureError:
        return False
    return True


@pytest.mark.parametrize("form", ["notify", "raw", "legacy"])
def test_the_signature_covers_the_sent_bytes(form: Any) -> None:
    target = protected(subscription(form=form), (NEW, None))
    first, later = pushed(target), pushed(target, attempt=2, now_s=NOW + 3_600)
    assert accepts(first, NEW)
    assert not accepts(first, NEW, more=b" ")
    assert accepts(later, NEW, NOW + 3_600), "each attempt is signed with its time"
    headers, again = dict(first.headers), dict(later.headers)
    assert headers["webhook-timestamp"] == "1800000000"
    assert headers["webhook-id"] == again["webhook-id"]
    assert headers["webhook-signature"] != again["webhook-signature"]


def test_webhook_id_depends_on_messages_and_subscription() -> None:
    target = protected(subscription(), (NEW, None))
    other = protected(msgspec.structs.replace(subscription(), id="sub-2"), (NEW, None))
    ids = {dict(each.headers)["webhook-id"] for each in (pushed(target), pushed(target, "n1", "n2"), pushed(other))}
    assert len(ids) == 3
    assert not any("." in each for each in ids), "a dot separates the fields of the signed text"


def test_both_secrets_sign_during_a_replacement() -> None:
    target = protected(subscription(), (NEW, None), (OLD, int(NOW * 1000) + 1_000))
    found = [accepts(pushed(target, now_s=now_s), key, now_s) for now_s in (NOW, NOW + 1) for key in (NEW, OLD)]
    assert found == [True, True, True, False]


def test_unprotected_pushes_need_no_key() -> None:
    names = {name for name, _ in Envelope(subscription()).request([notification()], 1).headers}
    assert not {name for name in names if name.startswith("webhook-") or name == "Authorization"}
    assert SECRET_OPENER.open(subscription()) is None


def test_no_unprotected_push_if_the_secret_is_unreadable() -> None:
    target = protected(subscription(), (NEW, None))
    moved = msgspec.structs.replace(target, consumer=EndpointReference("https://evil/"))
    other_keys = SecretOpener(SecretSettings(), KeyRing({"k2": b"k" * 32}))
    for protecting, opener, why in (
        (target, None, "has no keys to open"),
        (target, other_keys, "not in the key file"),
        (moved, SECRET_OPENER, "another context"),
    ):
        with pytest.raises(SecretError, match=why):
            Envelope(protecting, opener)


def test_credentials_are_in_their_header_only() -> None:
    target = protected(subscription(), authorization=BASIC)
    envelope = Envelope(target, SECRET_OPENER)
    request = envelope.request([notification()], 1)
    assert dict(request.headers)["Authorization"] == BASIC.decode()
    assert not {name for name, _ in request.headers if name.startswith("webhook-")}
    for shown in (repr(request), repr(envelope), repr(target), str(vars(envelope)["_secrets"])):
        assert "dXNlcj" not in shown


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"you sent " + BASIC + b", no", b"you sent " + HIDDEN + b", no"),
        (b"token dXNlcjpoZW1saWdoIQ==", b"token " + HIDDEN),
        (b"cut dXNlcjpoZ", b"cut " + HIDDEN),
        (b"nothing of it", b"nothing of it"),
        (b"user: the password hemligh! is wrong", b"user: the password " + HIDDEN + b" is wrong"),
        (b"wrong: hemli", b"wrong: " + HIDDEN),
    ],
)
def test_credentials_in_an_answer_are_hidden(answer: bytes, kept: bytes) -> None:
    assert Envelope(protected(subscription(), authorization=BASIC), SECRET_OPENER).redact(answer) == kept
    assert Envelope(subscription()).redact(answer) == answer


@pytest.mark.parametrize(
    "value", [b"Basic x\r\nX-Evil: 1", b"Bearer a\nb", b"a\0b", b" a", "Bearer \u00e9".encode(), b"a  b"]
)
def test_credentials_with_line_breaks_are_refused(value: bytes) -> None:
    with pytest.raises(SecretError, match="not a valid value of an HTTP header"):
        Envelope(protected(subscription(), authorization=value), SECRET_OPENER)


def test_client_certificates_are_for_allowed_endpoints_only(tmp_path: Path) -> None:
    (tmp_path / "plant.pem").write_text("PEM")
    (tmp_path / "plant.hosts").write_text("Partner.example\nother.example\n")
    allowing = SecretSettings(client_certificates=str(tmp_path))

    def certificate(url: str, name: str, settings: SecretSettings = allowing) -> str:
        target = protected(subscription(url), certificate=name)
        return Envelope(target, SecretOpener(settings, KEYS)).request([notification()], 1).client_certificate

    assert certificate("https://partner.example:8443/x", "plant") == str(tmp_path / "plant.pem")
    for url, name in (
        ("https://evil.example/", "plant"),
        ("http://partner.example/", "plant"),
        ("https://partner.example/", "absent"),
        ("https://partner.example/", "../plant"),
        ("https://partner.example/", "plant.pem"),
    ):
        with pytest.raises(SecretError):
            certificate(url, name)
    with pytest.raises(SecretError, match="client_certificates"):
        certificate("https://partner.example/", "plant", SecretSettings())
