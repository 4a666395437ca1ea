"""The address for a later result in a push, and what its answer means then."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.security.keyring import KeyRing, add_key
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Promise, read_promise
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryForm,
    DeliveryPolicy,
    EndpointReference,
    Subscription,
)
from arborcast.topic_model.topics import TopicPath

KEYS = KeyRing({"k": b"k" * 32})
VAULT = Vault(SecretSettings(), KEYS)
NOW_MS = 1_700_000_000_000
LATER = PushResult(202, later=True, duration_s=0.01)


def subscription(
    form: DeliveryForm = "notify",
    address: str = "https://gw/base/wsn/subscriptions/s%201",
    policy: DeliveryPolicy = DEFAULT_POLICY,
) -> Subscription:
    return Subscription("s 1", EndpointReference("http://r/"), address=address, form=form, policy=policy)


def notification(name: str) -> Notification:
    return Notification(name, TopicPath("a"), b"<x/>", NOW_MS)


def request(target: Subscription, vault: Vault | None = VAULT, callback_s: float = 60.0) -> PushRequest:
    messages = [notification("n1"), notification("n2")] if target.form == "notify" else [notification("n1")]
    return Envelope(target, vault, callback_s).request(messages, 1, NOW_MS / 1000, push="p-1")


@pytest.mark.parametrize(("form", "messages"), [("notify", 2), ("raw", 1), ("legacy", 1)])
def test_each_form_of_push_names_an_address_of_the_gateway_that_the_subscription_is_managed_at(
    form: DeliveryForm, messages: int
) -> None:
    made = request(subscription(form))
    headers = dict(made.headers)
    assert headers["Arborcast-Push"] == "p-1"
    base, _, promise = headers["Arborcast-Callback"].rpartition("/")
    assert base == "https://gw/base/results"
    assert read_promise(promise, KEYS) == Promise("s 1", "p-1", NOW_MS, NOW_MS + 60_000, messages)
    assert made.result_by_ms == NOW_MS + 60_000


@pytest.mark.parametrize(
    ("target", "vault", "callback_s"),
    [
        (subscription(), VAULT, 0.0),
        (subscription(), None, 60.0),
        (subscription(address=""), VAULT, 60.0),
        (subscription(policy=DeliveryPolicy(reliability="timely")), VAULT, 60.0),
        (subscription(address="http://another.broker/subscription?id=1"), VAULT, 60.0),
        (subscription(), Vault(SecretSettings(key_file="there/is/none")), 60.0),
    ],
    ids=["switched off", "no vault", "no manager", "timely", "foreign manager", "no keys"],
)
def test_where_it_cannot_be_used_it_is_not_there(target: Subscription, vault: Vault | None, callback_s: float) -> None:
    made = request(target, vault, callback_s)
    assert not {"Arborcast-Callback", "Arborcast-Push"} & dict(made.headers).keys()
    assert made.result_by_ms == 0


def test_the_keys_are_those_of_the_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.core.security.keyring._CHECK_INTERVAL_S", 0.0)
    file = tmp_path / "keys"
    vault = Vault(SecretSettings(key_file=str(file)))
    envelope = Envelope(subscription("raw"), vault, 60.0)
    assert envelope.request([notification("n")], 1, push="p").result_by_ms == 0
    add_key(file, "k1")
    made = envelope.request([notification("n")], 1, push="p")
    promise = dict(made.headers)["Arborcast-Callback"].rpartition("/")[2]
    assert read_promise(promise, vault.keys).push == "p"


@pytest.mark.parametrize(
    ("result", "by_ms", "error", "delivered", "taken"),
    [
        (LATER, NOW_MS, "later", False, True),
        (LATER, 0, "", True, True),
        (PushResult(202), NOW_MS, "", True, True),
        (PushResult(500), NOW_MS, "server-error", False, False),
    ],
)
def test_what_an_answer_means(result: PushResult, by_ms: int, error: str, delivered: bool, taken: bool) -> None:
    outcome = classify(result, by_ms)
    assert (outcome.error, outcome.delivered, outcome.taken) == (error, delivered, taken)
    assert not outcome.blames_message
    assert not outcome.endpoint_unreachable
