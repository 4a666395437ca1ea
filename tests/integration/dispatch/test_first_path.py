"""From the logs to receivers and to a row in the table: real Kafka, real Spark, real HTTP, real Delta."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
import pytest
from lxml import etree
from pyspark import SparkContext
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError, SignatureError
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.core.security.signatures import check
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.matching.bases import BroadcastBases, FileBases
from arborcast.dispatch.matching.view import RoutingView, SharedView
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy, Protection, SigningSecret, XPathFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import Logs, Own, job_settings, running, subscription
from tests.support.held_port import HeldPort
from tests.support.receiver import Received, Receiver, refusing_url
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NS = {
    "s11": "http://schemas.xmlsoap.org/soap/envelope/",
    "s12": "http://www.w3.org/2003/05/soap-envelope",
    "wsnt": "http://docs.oasis-open.org/wsn/b-2",
    "wsa": "http://www.w3.org/2005/08/addressing",
}


@pytest.fixture(scope="module", params=["realtime", "batch"])
def gear(request: pytest.FixtureRequest) -> object:
    return request.param


def wait_for_ids(receiver: Receiver, path: str, expected: int) -> list[str]:
    wait_until(lambda: len(receiver.names(path)) >= expected, lambda: f"{expected} at {path}: {receiver.names(path)}")
    return receiver.names(path)


def test_notification_reaches_those_who_subscribed_and_becomes_a_row(own: Own, receiver: Receiver) -> None:
    own.subscribe("exact", receiver.url("/exact"), "{urn:t}a/b")
    own.subscribe("subtree", receiver.url("/subtree"), "{urn:t}a//.", soap="1.2")
    own.subscribe("other", receiver.url("/other"), "{urn:t}c")
    sent = own.notify("{urn:t}a/b", b'<p:hello xmlns:p="urn:p">w\xc3\xb6rld</p:hello>')
    (exact,) = receiver.wait_for(1, "/exact")
    (subtree,) = receiver.wait_for(1, "/subtree")
    rows = own.attempts(2)

    assert exact.headers["content-type"] == "text/xml; charset=utf-8"
    assert subtree.headers["content-type"].startswith("application/soap+xml")
    for request, soap, name in ((exact, "s11", "exact"), (subtree, "s12", "subtree")):
        assert request.headers["arborcast-notification-id"] == sent
        assert request.headers["arborcast-subscription"] == own.name(name)
        message = etree.fromstring(request.body).find(f"{soap}:Body/wsnt:Notify/wsnt:NotificationMessage", NS)
        assert message is not None
        manager = message.findtext("wsnt:SubscriptionReference/wsa:Address", namespaces=NS) or ""
        assert manager.endswith("/" + own.name(name))
        topic = message.find("wsnt:Topic", NS)
        assert topic is not None
        prefix, _, path = (topic.text or "").partition(":")
        assert f"{{{topic.nsmap[prefix]}}}{path}" == own.topic("{urn:t}a/b")
        assert message.findtext("wsnt:Message/{urn:p}hello", namespaces=NS) == "wörld"
    assert not receiver.received("/other")
    assert {(row["subscription"], row["notification"], row["state"], row["status"], row["number"]) for row in rows} == {
        ("exact", sent, "delivered", 202, 1),
        ("subtree", sent, "delivered", 202, 1),
    }
    assert all(row["accepted_at"] <= row["started_at"] for row in rows)


def test_subscription_takes_effect_with_the_next_notification_and_so_does_its_end(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    first = own.notify("a")
    receiver.wait_for(1, "/s")
    own.end("s")
    own.notify("a")
    own.subscribe("again", receiver.url("/again"), "b")
    third = own.notify("b")
    receiver.wait_for(1, "/again")

    assert receiver.names("/s") == [first]
    assert receiver.names("/again") == [third]


def test_failures_are_recorded_as_what_they_were_and_hurt_nobody_else(own: Own, receiver: Receiver) -> None:
    with refusing_url() as refused:
        own.subscribe("good", receiver.url("/good"), "a")
        own.subscribe("failing", receiver.url("/status/500"), "a")
        own.subscribe("gone", receiver.url("/status/410"), "a")
        own.subscribe("moved", receiver.url("/redirect"), "a")
        own.subscribe("hanging", receiver.url("/hang"), "a")
        own.subscribe("dropping", receiver.url("/drop"), "a")
        own.subscribe("refusing", refused, "a")
        own.subscribe("wrong", "ftp://127.0.0.1/", "a")
        own.notify("a")
        rows = own.attempts(8, of_batches=True)

    assert {row["subscription"]: (row["state"], row["error"], row["status"]) for row in rows} == {
        "good": ("delivered", "", 202),
        "failing": ("parked", "server-error", 500),
        "gone": ("cancelled", "client-error", 410),
        "moved": ("parked", "redirect", 307),
        "hanging": ("parked", "timeout", 0),
        "dropping": ("parked", "disconnected", 0),
        "refusing": ("parked", "connect", 0),
        "wrong": ("dead", "address", 0),
    }
    assert len(receiver.received("/good")) == 1


def test_a_job_goes_on_where_it_stopped_in_order_and_waiting_messages_share_a_push(
    own: Own, receiver: Receiver
) -> None:
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
    assert len(receiver.received("/s")) < 50, "messages that wait together travel together"
    assert len(receiver.received("/raw")) == len(raw), "raw pushes carry one message each"


def test_expired_subscriptions_get_nothing_and_what_paused_ones_miss_is_kept(own: Own, receiver: Receiver) -> None:
    own.subscribe("expired", receiver.url("/expired"), "a", terminates_ms=int(time.time() * 1000) - 1)
    own.subscribe("paused", receiver.url("/paused"), "a", paused=True)
    own.subscribe("good", receiver.url("/good"), "a")
    own.notify("a")
    receiver.wait_for(1, "/good")
    rows = own.attempts(2)

    assert {row["subscription"]: (row["state"], row["detail"]) for row in rows} == {
        "good": ("delivered", ""),
        "paused": ("parked", "the subscription is paused"),
    }
    assert [request.path for request in receiver.requests] == ["/good"]


def test_start_without_kafka_says_so_instead_of_hanging(spark: SparkSession, tmp_path: Path) -> None:
    held = HeldPort()
    nowhere = KafkaSettings(bootstrap_servers=f"127.0.0.1:{held.number}", request_timeout_s=1.0)

    with pytest.raises(InfrastructureError, match="Kafka"), running(spark, job_settings(tmp_path, nowhere)):
        pytest.fail("the job reported ready")


def test_content_and_producer_filters_decide_behind_the_topic(own: Own, receiver: Receiver) -> None:
    def condition(text: str) -> XPathFilter:
        return XPathFilter(XPATH_1, text, {"o": "urn:o"})

    own.subscribe("all", receiver.url("/all"), "a")
    own.subscribe("large", receiver.url("/large"), "a", content=(condition("@total > 100"),))
    own.subscribe("both", receiver.url("/both"), "a", content=(condition("@total > 100"), condition("o:express")))
    own.subscribe("produced", receiver.url("/produced"), "a", producer=(condition("*"),))
    own.subscribe("never", receiver.url("/never"), "a", content=(condition("o:line[count(@n + 1) = 1]"),))
    sent = [
        own.notify("a", f'<o:order xmlns:o="urn:o" total="{total}">{inside}</o:order>'.encode())
        for total, inside in ((5, ""), (500, "<o:line n='1'/>"), (900, "<o:express/>"))
    ]
    rows = own.attempts(6)

    assert receiver.names("/all") == sent
    assert receiver.names("/large") == sent[1:]
    assert receiver.names("/both") == sent[2:]
    assert not receiver.received("/produced"), "the publisher said nothing of itself"
    assert not receiver.received("/never"), "no answer is no match"
    assert len(rows) == 6


def test_what_is_for_one_subscription_is_pushed_to_no_other(own: Own, job_logs: Logs, receiver: Receiver) -> None:
    """As a new subscriber gets the current message of a topic."""
    topic = TopicPath(own.topic("a/b"))
    current = Notification(own.name("current"), topic, b"<x>1</x>", accepted_ms=int(time.time() * 1000))
    own.subscribe("old", receiver.url("/old"), "a//.")
    own.subscribe("new", receiver.url("/new"), "a//.")
    own.subscribe("elsewhere", receiver.url("/elsewhere"), "c")
    for only in ("new", "elsewhere"):
        key, value = notifications.encode(msgspec.structs.replace(current, only=own.name(only)))
        job_logs.raw(value, key)
    receiver.wait_for(1, "/new")
    last = own.notify("a/b")

    assert wait_for_ids(receiver, "/new", 2) == [current.id, last]
    assert wait_for_ids(receiver, "/old", 1) == [last]
    assert not receiver.received("/elsewhere"), "it is not subscribed to that topic"


KEY = b"a key of thirty-two bytes, whole"
TOKEN = b"Bearer hemlig-token-of-the-receiver"


def test_pushes_are_signed_and_carry_credentials_that_are_in_no_table(own: Own, receiver: Receiver) -> None:
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
        with contextlib.suppress(FileNotFoundError):  # the job goes on beside
            content = file.read_bytes()
            assert KEY not in content
            assert TOKEN.partition(b" ")[2] not in content, file


def test_record_that_cannot_be_read_is_skipped(own: Own, job_logs: Logs, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    job_logs.raw(b"this is not a notification")
    sent = own.notify("a")
    receiver.wait_for(1, "/s")

    assert receiver.names("/s") == [sent]


def matched_in_a_task(context: SparkContext, shared: SharedView) -> list[int]:
    """How many subscriptions to `a` the view has, seen from an executor."""
    topic = TopicPath("a")
    return context.parallelize([0], 1).map(lambda _: len(shared.open().view.match(topic))).collect()


@pytest.mark.parametrize("how", ["file", "broadcast"])
def test_view_is_sent_again_when_the_overlay_has_grown(
    spark: SparkSession, settings: JobSettings, receiver: Receiver, log: Logs, how: str
) -> None:
    context = spark.sparkContext
    bases = FileBases(settings.home / "bases") if how == "file" else BroadcastBases(context)
    view = RoutingView(settings.kafka, context, bases, min_overlay=3)
    first = view.refresh(120)
    assert view.refresh(120) == first, "nothing changed, nothing is sent"
    for number in range(8):
        log.subscribe(subscription(f"s{number}", receiver.url(f"/{number}"), "a"))
        shared = view.refresh(120)
        assert matched_in_a_task(context, shared) == [number + 1]
    base = wait_until(lambda: (now := view.refresh(120).base) != first.base and now, "a new base")
    shared = view.refresh(120)
    assert shared.base == base, "nothing changed, nothing is sent"
    assert matched_in_a_task(context, shared) == [8]
    view.close()


def test_large_notification_passes(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    payload = b"<x>" + b"y" * 3_000_000 + b"</x>"
    own.notify("a", payload)
    (request,) = receiver.wait_for(1, "/s")

    assert payload in request.body


def test_a_subscriber_is_told_when_nothing_comes_and_when_something_does_again(own: Own, receiver: Receiver) -> None:
    policy = DeliveryPolicy(deadline_ms=1_000)
    wanted = XPathFilter(XPATH_1, "false() or name(/*) = 'x'")
    own.subscribe("asks", receiver.url("/asks"), "dl//.", form="raw", policy=policy, content=(wanted,))
    own.subscribe("asks-not", receiver.url("/asks-not"), "dl//.", form="raw")
    first = own.notify("dl/a", b"<x/>")

    def kinds(count: int) -> list[str]:
        events = map(event, receiver.wait_for(count, "/asks"))
        return ["x" if each is None else each.get("kind", "") for each in events]

    assert kinds(2) == ["x", "deadline-missed"]
    missed = event(receiver.received("/asks")[1])
    assert missed is not None
    assert int(missed.get("since", "")) <= int(missed.get("at", "")) - 1_000
    own.notify("dl/b", b"<y/>")  # it does not match
    own.notify("dl/b", b"<x/>")
    assert sorted(kinds(4)[2:4]) == ["deadline-met", "x"]
    assert wait_for_ids(receiver, "/asks-not", 3)[0] == first
    assert [event(each) for each in receiver.received("/asks-not")] == [None] * 3


def event(request: Received) -> etree._Element | None:
    """Notifications of the engine's own."""
    return etree.fromstring(request.body).find(".//{urn:arborcast}Event")
