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
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from tests.support.make import notification
from tests.support.sealed import KEYS, VAULT, protected

NEW, OLD = b"n" * 32, b"o" * 24
NOW = 1_800_000_000.75
BASIC = b"Basic dXNlcjpoZW1saWdoIQ=="


def subscription(consumer: str = "https://consumer/", **changes: Any) -> Subscription:
    return Subscription("sub-1", EndpointReference(consumer), **changes)


def pushed(target: Subscription, *names: str, attempt: int = 1, now_s: float = NOW) -> PushRequest:
    return Envelope(target, VAULT).request([notification(name) for name in names or ("n1",)], attempt, now_s)


def accepts(request: PushRequest, key: bytes, now_s: float = NOW, more: bytes = b"") -> bool:
    """Whether a receiver with this key accepts a push, with more bytes at its end."""
    try:
        check([key], {name.lower(): value for name, value in request.headers}, request.body + more, now_s)
    except SignatureError:
        return False
    return True


@pytest.mark.parametrize("form", ["notify", "raw", "legacy"])
def test_a_push_is_signed_over_the_bytes_that_leave(form: Any) -> None:
    target = protected(subscription(form=form), (NEW, None))
    first, later = pushed(target), pushed(target, attempt=2, now_s=NOW + 3_600)
    assert accepts(first, NEW)
    assert not accepts(first, NEW, more=b" ")
    assert accepts(later, NEW, NOW + 3_600), "each attempt has a signature of its own time"
    headers, again = dict(first.headers), dict(later.headers)
    assert headers["webhook-timestamp"] == "1800000000"
    assert headers["webhook-id"] == again["webhook-id"]
    assert headers["webhook-signature"] != again["webhook-signature"]


def test_an_id_stands_for_one_set_of_messages_to_one_subscription() -> None:
    target = protected(subscription(), (NEW, None))
    other = protected(msgspec.structs.replace(subscription(), id="sub-2"), (NEW, None))
    ids = {dict(each.headers)["webhook-id"] for each in (pushed(target), pushed(target, "n1", "n2"), pushed(other))}
    assert len(ids) == 3
    assert not any("." in each for each in ids), "a dot ends the id in what is signed"


def test_while_a_secret_is_replaced_both_sign() -> None:
    target = protected(subscription(), (NEW, None), (OLD, int(NOW * 1000) + 1_000))
    found = [accepts(pushed(target, now_s=now_s), key, now_s) for now_s in (NOW, NOW + 1) for key in (NEW, OLD)]
    assert found == [True, True, True, False]


def test_without_protection_nothing_is_added_and_no_key_is_needed() -> None:
    names = {name for name, _ in Envelope(subscription()).request([notification()], 1).headers}
    assert not {name for name in names if name.startswith("webhook-") or name == "Authorization"}
    assert VAULT.guard(subscription()) is None


def test_an_unprotected_push_never_leaves_instead() -> None:
    target = protected(subscription(), (NEW, None))
    moved = msgspec.structs.replace(target, consumer=EndpointReference("https://evil/"))
    other_keys = Vault(SecretSettings(), KeyRing({"k2": b"k" * 32}))
    for protecting, vault, why in (
        (target, None, "has no keys to open"),
        (target, other_keys, "not in the key file"),
        (moved, VAULT, "another context"),
    ):
        with pytest.raises(SecretError, match=why):
            Envelope(protecting, vault)


def test_credentials_are_in_their_header_and_nowhere_else() -> None:
    target = protected(subscription(), authorization=BASIC)
    envelope = Envelope(target, VAULT)
    request = envelope.request([notification()], 1)
    assert dict(request.headers)["Authorization"] == BASIC.decode()
    assert not {name for name, _ in request.headers if name.startswith("webhook-")}
    for shown in (repr(request), repr(envelope), repr(target), str(vars(envelope)["_guard"])):
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
    assert Envelope(protected(subscription(), authorization=BASIC), VAULT).redact(answer) == kept
    assert Envelope(subscription()).redact(answer) == answer


@pytest.mark.parametrize(
    "value", [b"Basic x\r\nX-Evil: 1", b"Bearer a\nb", b"a\0b", b" a", "Bearer \u00e9".encode(), b"a  b"]
)
def test_stored_credentials_that_would_begin_another_header_are_refused(value: bytes) -> None:
    with pytest.raises(SecretError, match="not a valid value of an HTTP header"):
        Envelope(protected(subscription(), authorization=value), VAULT)


@given(st.text(max_size=40), st.lists(st.text(max_size=40), min_size=1, max_size=3), st.integers())
def test_no_value_of_any_header_can_hold_a_line_break(subscription_id: str, names: list[str], attempt: int) -> None:
    target = Subscription(subscription_id, EndpointReference("https://consumer/"), soap="1.2", addressing=True)
    request = pushed(protected(target, (NEW, None), authorization=BASIC), *names, attempt=attempt)
    for name, value in request.headers:
        assert value.isascii(), name
        assert value.isprintable(), name


def test_a_client_certificate_is_shown_only_where_the_operator_allows(tmp_path: Path) -> None:
    (tmp_path / "plant.pem").write_text("PEM")
    (tmp_path / "plant.hosts").write_text("Partner.example\nother.example\n")
    allowing = SecretSettings(client_certificates=str(tmp_path))

    def certificate(url: str, name: str, settings: SecretSettings = allowing) -> str:
        target = protected(subscription(url), certificate=name)
        return Envelope(target, Vault(settings, KEYS)).request([notification()], 1).client_certificate

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
