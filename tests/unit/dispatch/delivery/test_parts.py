"""Large messages in parts for old subscribers: several pushes, one delivery."""

from __future__ import annotations

import gc
import weakref
from unittest.mock import Mock

import pytest
from lxml import etree

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.pushes import Pusher
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.packages import Fragment, read_package_header, unwrap_part
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryForm,
    DeliveryPolicy,
    EndpointReference,
    Subscription,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_transport import FakeTransport

XML = b"<alarm at='1'>" + b"<v>R&amp;D \xc3\xa9 &#13;\r\n&lt;</v><![CDATA[ & ]]>" * 100 + b"</alarm>"


def old(fragment_bytes: int = 0, form: DeliveryForm = "legacy") -> Subscription:
    policy = DeliveryPolicy(fragment_bytes=fragment_bytes) if fragment_bytes else DEFAULT_POLICY
    return Subscription("s", EndpointReference("http://old/"), form=form, policy=policy)


def message(payload: bytes = XML, package: str = "", split_bytes: int = 0) -> Notification:
    return Notification("n", TopicPath("all/alarm"), payload, 0, package=package, split_bytes=split_bytes)


def requests(subscription: Subscription, notification: Notification) -> list[PushRequest]:
    return list(Envelope(subscription).requests([notification], 1, 0.0))


def read(request: PushRequest) -> str:
    """The text of a push, as an old receiver reads it."""
    return etree.fromstring(request.body).findtext(".//{*}notificationProcess") or ""


WHOLE = read(requests(old(), message())[0])


@pytest.mark.parametrize("limit", [500, 700, 3_000])
@pytest.mark.parametrize("requested_by", ["subscriber", "topic"])
def test_joined_parts_equal_the_whole_message(limit: int, requested_by: str) -> None:
    subscription = old(limit if requested_by == "subscriber" else 0)
    made = requests(subscription, message(split_bytes=limit if requested_by == "topic" else 0))
    assert len(made) > 1
    joined = ""
    for number, request in enumerate(made):
        text = read(request)
        assert len(text.encode()) <= limit
        part = unwrap_part(text)
        assert part is not None
        fragment, identification, content = part
        assert fragment == Fragment(True, number < len(made) - 1, False, number)
        assert identification == "arborcast:n"
        assert "<wsnt:Topic Dialect=" in text
        assert ">all:alarm</wsnt:Topic>" in text
        joined += content
    assert joined == WHOLE
    # A receiver that drops duplicates by the id must not drop parts.
    assert [dict(each.headers)["Arborcast-Notification-Id"] for each in made] == [f"n.{i}" for i in range(len(made))]


def test_headers_of_independent_parts() -> None:
    made = requests(old(600), message(package="0-0-1-0"))
    assert "".join(map(read, made)) == WHOLE
    headers = [dict(each.headers)["Arborcast-Package"] for each in made]
    assert read_package_header(headers[1]) == (Fragment(True, True, True, 1), "arborcast:n")


@pytest.mark.parametrize(
    ("subscription", "notification"),
    [
        (old(), message()),
        (old(3_000), message(b"<x/>")),
        (old(500, "notify"), message(split_bytes=500)),
        (old(500, "raw"), message(split_bytes=500)),
        (old(500), message(package="1-1-1-4 me:1")),
    ],
)
def test_messages_that_are_not_split(subscription: Subscription, notification: Notification) -> None:
    assert len(requests(subscription, notification)) == 1


def test_a_published_part_keeps_its_package_header() -> None:
    part = message(wrap(" lon ", {}), "1-1-1-4 me, 1")
    for form in ("legacy", "notify", "raw"):
        (request,) = requests(old(form=form), part)
        assert dict(request.headers)["Arborcast-Package"] == "1-1-1-4;me%2C%201"
    assert read(requests(old(), part)[0]) == " lon ", "blanks at a cut belong to the message"
    several = Envelope(old(form="notify")).request([message(b"<x/>"), part], 1)
    assert dict(several.headers)["Arborcast-Package"] == "-,1-1-1-4;me%2C%201"
    assert b'package="1-1-1-4;me%2C%201"' in several.body
    whole = Envelope(old(form="notify")).request([message(b"<x/>", "0-0-1-0")], 1)
    assert "Arborcast-Package" not in dict(whole.headers)
    assert b"package=" not in whole.body


def pushed(transport: FakeTransport, subscription: Subscription) -> list[tuple[Push, Outcome]]:
    ended: list[tuple[Push, Outcome]] = []
    pusher = Pusher(transport)
    unmade = pusher.begin(subscription, [message()], 1, 0, Envelope, lambda *each: ended.append(each))
    if unmade is not None:
        return [unmade]
    while transport.in_flight:
        assert not ended
        assert transport.in_flight == 1, "one part at a time"
        transport.drive(0.0)
    return ended


def test_parts_are_pushed_in_sequence_with_one_outcome() -> None:
    transport = FakeTransport(lambda _: PushResult(202, duration_s=0.5))
    ((push, outcome),) = pushed(transport, old(1_000))
    assert outcome.delivered
    assert len(transport.sent) == len(requests(old(1_000), message())) > 2
    assert push.result.duration_s == 0.5 * len(transport.sent)


def test_pushes_in_flight_are_bounded_in_bytes() -> None:
    transport, ended = FakeTransport(), []
    pusher = Pusher(transport)
    large = message(b"<x>" + b"y" * 4 * 1024 * 1024 + b"</x>")
    while pusher.has_room(256):
        assert pusher.begin(old(form="raw"), [large], 1, 0, Envelope, lambda *each: ended.append(each)) is None
    assert transport.in_flight == 16
    transport.drive(0.0)
    assert pusher.has_room(256)
    while transport.in_flight:
        transport.drive(0.0)
    assert len(ended) == 16
    for _ in range(255):
        pusher.begin(old(form="raw"), [message(b"<x/>")], 1, 0, Envelope, lambda *_: None)
    assert pusher.has_room(256)
    assert not pusher.has_room(255)


def test_no_parts_are_sent_after_a_refused_one() -> None:
    transport = FakeTransport(lambda _: PushResult(503 if len(transport.sent) == 2 else 202))
    ((_, outcome),) = pushed(transport, old(1_000))
    assert (outcome.status, outcome.delivered, len(transport.sent)) == (503, False, 2)


def test_a_too_large_wrapper_is_an_error_of_the_envelope() -> None:
    transport = FakeTransport()
    long = Subscription("s", EndpointReference("http://old/"), form="legacy", policy=DeliveryPolicy(fragment_bytes=300))
    ((_, outcome),) = pushed(transport, long)
    assert (outcome.error, outcome.hopeless, transport.sent) == ("envelope", True, [])
    assert "the wrapper of a part has" in outcome.detail


def test_without_memory_for_an_envelope_its_messages_are_retried() -> None:
    begun = Pusher(FakeTransport()).begin(old(), [message()], 1, 0, Mock(side_effect=MemoryError), lambda *_: None)
    assert begun is not None
    outcome = begun[1]
    assert (outcome.error, outcome.detail, outcome.hopeless) == ("internal", "MemoryError", False)


@pytest.mark.parametrize("subscription", [old(), old(1_000)], ids=["whole", "in parts"])
def test_a_push_is_freed_at_its_end(subscription: Subscription) -> None:
    """Its bodies do not wait for the garbage collector, whose thresholds count objects, not bytes."""
    transport = FakeTransport()
    pusher = Pusher(transport)

    def begin() -> weakref.ref[object]:
        def finished(push: Push, outcome: Outcome) -> None:
            assert outcome.delivered

        assert pusher.begin(subscription, [message()], 1, 0, Envelope, finished) is None
        return weakref.ref(finished)

    gc.disable()
    try:
        push = begin()
        assert push() is not None
        while transport.in_flight:
            transport.drive(0.0)
        assert push() is None
    finally:
        gc.enable()
