"""From the logs to receivers and to a row in the table: real Kafka, real Spark, real HTTP, real Delta."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from lxml import etree

from arborcast.core.errors import SignatureError
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.core.security.signatures import check
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.subscriptions import DeliveryPolicy, Protection, SigningSecret, XPathFilter
from tests.support.dispatch_job import Logs, Own, subscription
from tests.support.receiver import Received, Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module", params=["realtime", "batch"])
def mode(request: pytest.FixtureRequest) -> object:
    return request.param


def wait_for_ids(receiver: Receiver, path: str, expected: int) -> list[str]:
    wait_until(lambda: len(receiver.names(path)) >= expected, lambda: f"{expected} at {path}: {receiver.names(path)}")
    return receiver.names(path)


def test_a_notification_reaches_subscribers_and_is_a_row(own: Own, receiver: Receiver) -> None:
    own.subscribe("exact", receiver.url("/exact"), "{urn:t}a/b")
    own.subscribe("subtree", receiver.url("/subtree"), "{urn:t}a//.", soap="1.2")
    own.subscribe("other", receiver.url("/other"), "{urn:t}c")
    sent = own.notify("{urn:t}a/b", b'<p:hello xmlns:p="urn:p">w\xc3\xb6rld</p:hello>')
    (exact,) = receiver.wait_for(1, "/exact")
    (subtree,) = receiver.wait_for(1, "/subtree")
    rows = own.attempts(2)

    assert exact.headers["content-type"] == "text/xml; charset=utf-8"
    assert subtree.headers["content-type"].startswith("application/soap+xml")
    for request, name in ((exact, "exact"), (subtree, "subtree")):
        assert request.headers["arborcast-notification-id"] == sent
        assert request.headers["arborcast-subscription"] == own.name(name)
        assert "wörld".encode() in request.body
    assert not receiver.received("/other")
    assert {(row["subscription"], row["notification"], row["state"], row["status"], row["number"]) for row in rows} == {
        ("exact", sent, "delivered", 202, 1),
        ("subtree", sent, "delivered", 202, 1),
    }
    assert all(row["accepted_at"] <= row["started_at"] for row in rows)


def test_a_job_continues_in_order_and_shares_pushes(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a//.")
    own.subscribe("raw", receiver.url("/raw"), "a/x", form="raw")
    sent: dict[str, list[str]] = {"a/x": [own.notify("a/x")], "a/y": []}
    receiver.wait_for(1, "/s")
    receiver.wait_for(1, "/raw")
    own.job.stop()
    for number in range(200):
        topic = "a/x" if number % 3 else "a/y"
        sent[topic].append(own.notify(topic))
    own.job.start()
    arrived = wait_for_ids(receiver, "/s", 201)
    raw = wait_for_ids(receiver, "/raw", len(sent["a/x"]))
    rows = own.attempts(201 + len(raw))

    for topic in sent:
        assert [each for each in arrived if each in sent[topic]] == sent[topic], "nothing lost, nothing twice"
    assert raw == sent["a/x"]
    assert sorted(row["notification"] for row in rows if row["subscription"] == "s") == sorted(arrived)
    assert len(receiver.received("/s")) < 50, "waiting messages share pushes"
    assert len(receiver.received("/raw")) == len(raw), "raw pushes carry one message each"


KEY = b"a key of thirty-two bytes, whole"
TOKEN = b"Bearer hemlig-token-of-the-receiver"


def test_credentials_of_signed_pushes_are_in_no_table(own: Own, receiver: Receiver) -> None:
    home = own.job.settings.home
    add_key(Path(own.job.settings.secrets.key_file), "k1")
    keys = KeyFile(Path(own.job.settings.secrets.key_file))
    context = subscription(own.name("signed"), receiver.url("/signed"), own.topic("{urn:t}a")).sealing_context()
    protection = Protection((SigningSecret(keys.seal(KEY, context)),), keys.seal(TOKEN, context))
    own.subscribe("signed", receiver.url("/signed"), "{urn:t}a", protection=protection)
    own.subscribe("plain", receiver.url("/plain"), "{urn:t}a")
    own.notify("{urn:t}a")
    (pushed,) = receiver.wait_for(1, "/signed")
    (plain,) = receiver.wait_for(1, "/plain")
    rows = own.attempts(2)

    check([KEY], pushed.headers, pushed.body, time.time())
    with pytest.raises(SignatureError):
        check([KEY], pushed.headers, pushed.body + b" ", time.time())
    assert pushed.headers["authorization"] == TOKEN.decode()
    assert not {"webhook-id", "webhook-signature", "authorization"} & set(plain.headers)
    assert {row["state"] for row in rows} == {"delivered"}
    for file in filter(Path.is_file, home.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # the job deletes files at the same time
            content = file.read_bytes()
            assert KEY not in content
            assert TOKEN.partition(b" ")[2] not in content, file


def test_a_damaged_record_is_skipped_and_a_large_one_passes(own: Own, job_logs: Logs, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    job_logs.raw(b"this is not a notification")
    payload = b"<x>" + b"y" * 3_000_000 + b"</x>"
    sent = own.notify("a", payload)
    (request,) = receiver.wait_for(1, "/s")
    assert receiver.names("/s") == [sent]
    assert payload in request.body


def test_a_missed_deadline_and_its_end_are_reported(own: Own, receiver: Receiver) -> None:
    policy = DeliveryPolicy(deadline_ms=1_000)
    wanted = XPathFilter(XPATH_1, "false() or name(/*) = 'x'")
    own.subscribe("asks", receiver.url("/asks"), "dl//.", form="raw", policy=policy, content=(wanted,))
    own.subscribe("asks-not", receiver.url("/asks-not"), "dl//.", form="raw")
    first = own.notify("dl/a", b"<x/>")

    def kinds() -> list[str]:
        events = map(event, receiver.received("/asks"))
        return ["x" if each is None else each.get("kind", "") for each in events]

    receiver.wait_for(2, "/asks")
    assert kinds() == ["x", "deadline-missed"]
    missed = event(receiver.received("/asks")[1])
    assert missed is not None
    assert int(missed.get("since", "")) <= int(missed.get("at", "")) - 1_000
    own.notify("dl/b", b"<y/>")  # it does not match

    def is_met() -> bool:
        # A match reported after its deadline ends no silence: on a busy machine the first one may be late.
        own.notify("dl/b", b"<x/>")
        return "deadline-met" in kinds()

    wait_until(is_met, "the notice that a message has matched again", every_s=0.2)
    assert wait_for_ids(receiver, "/asks-not", 3)[0] == first
    assert not any(event(each) is not None for each in receiver.received("/asks-not"))


def event(request: Received) -> etree._Element | None:
    """Notifications of the engine itself."""
    return etree.fromstring(request.body).find(".//{urn:arborcast}Event")
