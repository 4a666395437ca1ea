"""Protected pushes: signed over the exact bytes, with credentials, and never with anything that begins a new header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import SecretError, SignatureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.signatures import check
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import HIDDEN, Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath

KEYS = KeyRing({"k1": b"k" * 32})
NEW, OLD = b"n" * 32, b"o" * 24
NOW = 1_800_000_000.75
BASIC = b"Basic dXNlcjpoZW1saWdoIQ=="


def subscription(consumer: str = "https://consumer/", **changes: Any) -> Subscription:
    return Subscription("sub-1", EndpointReference(consumer), **changes)


def protected(target: Subscription, *secrets: tuple[bytes, int | None], **more: Any) -> Subscription:
    context = target.sealing_context()
    sealed = tuple(SigningSecret(KEYS.seal(key, context), until_ms) for key, until_ms in secrets)
    return msgspec.structs.replace(target, protection=Protection(sealed, **more))


def notification(name: str = "n1", payload: bytes = b"<x/>") -> Notification:
    return Notification(name, TopicPath("a/b"), payload, 0)


def vault(settings: SecretSettings | None = None) -> Vault:
    return Vault(settings or SecretSettings(), KEYS)


def pushed(target: Subscription, *names: str, attempt: int = 1, now_s: float = NOW) -> PushRequest:
    return Envelope(target, vault()).request([notification(name) for name in names or ("n1",)], attempt, now_s)


def accepted_by(request: PushRequest, *keys: bytes, now_s: float = NOW) -> None:
    check(keys, {name.lower(): value for name, value in request.headers}, request.body, now_s)


@pytest.mark.parametrize("form", ["notify", "raw", "legacy"])
def test_a_push_is_signed_over_the_bytes_that_leave(form: Any) -> None:
    request = pushed(protected(subscription(form=form), (NEW, None)))
    accepted_by(request, NEW)
    with pytest.raises(SignatureError):
        check([NEW], {k.lower(): v for k, v in request.headers}, request.body + b" ", NOW)
    assert dict(request.headers)["webhook-timestamp"] == "1800000000"


def test_every_attempt_is_signed_anew_under_the_same_id() -> None:
    target = protected(subscription(), (NEW, None))
    first, later = pushed(target), pushed(target, attempt=2, now_s=NOW + 3_600)
    accepted_by(later, NEW, now_s=NOW + 3_600)
    assert dict(first.headers)["webhook-id"] == dict(later.headers)["webhook-id"]
    assert dict(first.headers)["webhook-signature"] != dict(later.headers)["webhook-signature"]


def test_an_id_stands_for_one_set_of_messages_to_one_subscription() -> None:
    target = protected(subscription(), (NEW, None))
    other = protected(msgspec.structs.replace(subscription(), id="sub-2"), (NEW, None))
    ids = {dict(each.headers)["webhook-id"] for each in (pushed(target), pushed(target, "n1", "n2"), pushed(other))}
    assert len(ids) == 3
    assert not any("." in each for each in ids), "a dot ends the id in what is signed"


def test_while_a_secret_is_replaced_both_sign() -> None:
    target = protected(subscription(), (NEW, None), (OLD, int(NOW * 1000) + 1_000))
    during, after = pushed(target), pushed(target, now_s=NOW + 1)
    accepted_by(during, NEW)
    accepted_by(during, OLD)
    accepted_by(after, NEW, now_s=NOW + 1)
    with pytest.raises(SignatureError):
        accepted_by(after, OLD, now_s=NOW + 1)


def test_without_protection_nothing_is_added_and_no_key_is_needed() -> None:
    names = {name for name, _ in Envelope(subscription()).request([notification()], 1).headers}
    assert not {name for name in names if name.startswith("webhook-") or name == "Authorization"}
    assert vault().guard(subscription()) is None


def test_an_unprotected_push_never_leaves_instead() -> None:
    target = protected(subscription(), (NEW, None))
    with pytest.raises(SecretError, match="has no keys to open"):
        Envelope(target)
    with pytest.raises(SecretError, match="not in the key file"):
        Envelope(target, Vault(SecretSettings(), KeyRing({"k2": b"k" * 32})))
    moved = msgspec.structs.replace(target, consumer=EndpointReference("https://evil/"))
    with pytest.raises(SecretError, match="another context"):
        Envelope(moved, vault())


def test_credentials_travel_in_their_header_and_show_nowhere_else() -> None:
    target = subscription()
    target = protected(target, authorization=KEYS.seal(BASIC, target.sealing_context()))
    envelope = Envelope(target, vault())
    request = envelope.request([notification()], 1)
    assert dict(request.headers)["Authorization"] == BASIC.decode()
    assert not {name for name, _ in request.headers if name.startswith("webhook-")}
    for shown in (repr(request), repr(envelope), repr(target), str(vars(envelope)["_guard"])):
        assert "dXNlcj" not in shown


def test_what_a_receiver_sends_back_of_them_is_hidden() -> None:
    target = subscription()
    target = protected(target, authorization=KEYS.seal(BASIC, target.sealing_context()))
    redact = Envelope(target, vault()).redact
    token = BASIC.partition(b" ")[2]
    assert redact(b"you sent " + BASIC + b", no") == b"you sent " + HIDDEN + b", no"
    assert redact(b"token " + token) == b"token " + HIDDEN
    assert redact(b"cut " + token[:9]) == b"cut " + HIDDEN
    assert redact(b"nothing of it") == b"nothing of it"
    assert redact(b"user: the password hemligh! is wrong") == b"user: the password " + HIDDEN + b" is wrong"
    assert redact(b"wrong: hemli") == b"wrong: " + HIDDEN
    assert Envelope(subscription()).redact(BASIC) == BASIC


@pytest.mark.parametrize(
    "value", [b"Basic x\r\nX-Evil: 1", b"Bearer a\nb", b"a\0b", b" a", "Bearer \u00e9".encode(), b"a  b"]
)
def test_stored_credentials_that_would_begin_another_header_are_refused(value: bytes) -> None:
    target = subscription()
    with pytest.raises(SecretError, match="not a valid value of an HTTP header"):
        Envelope(protected(target, authorization=KEYS.seal(value, target.sealing_context())), vault())


@given(st.text(max_size=40), st.lists(st.text(max_size=40), min_size=1, max_size=3), st.integers())
def test_no_value_of_any_header_can_hold_a_line_break(subscription_id: str, names: list[str], attempt: int) -> None:
    target = Subscription(subscription_id, EndpointReference("https://consumer/"), soap="1.2", addressing=True)
    target = protected(target, (NEW, None), authorization=KEYS.seal(BASIC, target.sealing_context()))
    request = Envelope(target, vault()).request([notification(name) for name in names], attempt, NOW)
    for name, value in request.headers:
        assert value.isascii(), name
        assert value.isprintable(), name


def test_a_client_certificate_is_shown_only_where_the_operator_allows(tmp_path: Path) -> None:
    (tmp_path / "plant.pem").write_text("PEM")
    (tmp_path / "plant.hosts").write_text("Partner.example\nother.example\n")
    settings = SecretSettings(client_certificates=str(tmp_path))

    def certificate(url: str, name: str, settings: SecretSettings = settings) -> str:
        target = protected(subscription(url), certificate=name)
        return Envelope(target, vault(settings)).request([notification()], 1).client_certificate

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
