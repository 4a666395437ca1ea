"""Subscriptions of framed connections: acknowledgement, windows, and memory for messages."""

from __future__ import annotations

import weakref
from datetime import datetime, timedelta
from typing import Any

import pytest

from arborcast.client.framed import Connection, Message, Outgoing
from arborcast.ingest.framed import subscriptions
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.state.pull_queues import MessageClaim, PullQueues
from arborcast.topic_model.records.control import ending
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import frames, times
from arborcast.wire.frames import FrameKind
from tests.support.framed import Connects, FramedEdge, client, deliver, element, framed_edge, stored
from tests.support.gateway_parts import changed_elsewhere_first, only_subscription
from tests.support.waiting import wait_until


def nothing_waits(edge: FramedEdge) -> bool:
    return not edge.parts.pull_log.store.ids()


def test_messages_are_deleted_when_acknowledged(edge: FramedEdge, connection: Connection) -> None:
    got: list[Message] = []
    consumer = connection.session().consumer("a//.", got.append, delivery={"Priority": "3"}, types=["{urn:m}x"])
    subscription = only_subscription(edge.parts)
    assert subscription.id == subscription.pull_point == consumer.subscription
    assert (subscription.policy.priority, subscription.types) == (3, ("{urn:m}x",))
    deliver(edge, consumer.subscription, stored("a/b", "<x>1</x>", "n1"), stored("a/b", "<x>2</x>", "n2"))
    wait_until(lambda: len(got) == 2)
    assert got == [Message(b"<x>1</x>", "a/b", "n1"), Message(b"<x>2</x>", "a/b", "n2")]
    wait_until(lambda: nothing_waits(edge))
    # Text and properties are unchanged.
    connection.session().producer("a").send(Outgoing("4 < 5", {"unit": "bar", "empty": ""}, is_text=True))
    (sent,) = edge.parts.notifications.accepted
    deliver(edge, consumer.subscription, stored("a", sent.payload.decode(), sent.id, sent.producer.decode()))
    wait_until(lambda: len(got) == 3)
    assert got[2] == Message(b"4 < 5", "a", sent.id, {"unit": "bar", "empty": ""}, is_text=True)
    consumer.unsubscribe()
    assert list(edge.parts.table.subscriptions()) == []


def test_a_message_with_a_failed_handler_is_redelivered_alone(edge: FramedEdge, connection: Connection) -> None:
    got: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        got.append((message.id, message.attempt))
        if message.id == "n2" and message.attempt == 1:
            raise ValueError("not yet")

    consumer = connection.session().consumer("a", handle)
    deliver(edge, consumer.subscription, *(stored("a", "<x/>", f"n{number}") for number in (1, 2, 3)))
    wait_until(lambda: ("n2", 2) in got)
    wait_until(lambda: nothing_waits(edge))
    assert sorted(got) == [("n1", 1), ("n2", 1), ("n2", 2), ("n3", 1)]


def test_only_durable_subscriptions_outlive_their_connection(edge: FramedEdge) -> None:
    with client(edge).connection() as connection:
        connection.session().consumer("a", print)
        durable = connection.session().consumer("a", print, name="archive").subscription
        assert len(list(edge.parts.table.subscriptions())) == 2
    wait_until(lambda: [each.id for each in edge.parts.table.subscriptions()] == [durable])
    with client(edge).connection() as connection:
        assert connection.session().consumer("b//.", print, name="archive").subscription == durable
        assert [each.text for each in only_subscription(edge.parts).topics] == ["b//."]


def test_a_new_durable_subscription_gets_no_messages_of_an_ended_one_with_its_name(edge: FramedEdge) -> None:
    body, parts = frames.SubscribeBody("a", name="archive"), edge.parts

    async def subscribe() -> Subscription:
        return await subscriptions.subscribe(parts.gateway, body, None, "")

    async def end_elsewhere() -> None:
        await parts.control.commit(ending(first.id, "unsubscribed", 1))

    first = edge.on_loop(subscribe)
    deliver(edge, first.id, stored("a", "<x/>", "n1"))
    edge.on_loop(end_elsewhere)
    assert edge.on_loop(subscribe).id == first.id
    assert nothing_waits(edge)


def test_the_window_and_the_number_of_unacknowledged_messages(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_MOST_UNANSWERED", 150)
    raw = dial(edge)
    deliver(edge, raw.subscribe("a", window=2), *(stored("a", "<x/>", f"n{number}") for number in range(5)))
    first, second = raw.read(), raw.read()
    assert raw.is_alive(), "no third message"
    for each in (second, first):
        raw.send(frames.encode(FrameKind.ACK, each.correlation))
    assert raw.read().kind == FrameKind.MESSAGE
    raw = dial(edge)
    subscription = raw.subscribe("b", window=10_000)
    deliver(edge, subscription, *(stored("b", "<x/>", f"m{number}") for number in range(400)))
    some = [raw.read() for _ in range(200)]
    assert raw.is_alive(), "no further message"
    raw.send(b"".join(frames.encode(FrameKind.ACK, each.correlation) for each in some))
    assert [raw.read().kind for _ in range(200)] == [FrameKind.MESSAGE] * 200
    deliver(edge, raw.subscribe("c"), stored("c", "<x/>", "o1"))
    assert raw.is_alive(), "the other subscription has too many unanswered ones"
    raw.send(frames.encode(FrameKind.UNSUBSCRIBE, 9, frames.UnsubscribeBody(subscription)))
    assert {raw.read().kind, raw.read().kind} == {FrameKind.RECEIPT, FrameKind.MESSAGE}


def test_bytes_of_unacknowledged_messages(edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers of a client are slower than its connection: it has a window of large messages in memory."""
    monkeypatch.setattr(subscriptions, "_AT_ONCE", 1)
    monkeypatch.setattr(subscriptions, "_WINDOW_BYTES", 2_500)
    raw = dial(edge)
    large = element(1_000).decode()
    deliver(edge, raw.subscribe("a", window=100), *(stored("a", large, f"n{number}") for number in range(5)))
    some = [raw.read() for _ in range(3)]
    assert raw.is_alive(), "no fourth message"
    raw.send(frames.encode(FrameKind.ACK, some[0].correlation))
    some.append(raw.read())
    raw.send(frames.encode(FrameKind.REFUSE, some[1].correlation, frames.RefuseBody("busy")))
    some.append(raw.read())
    assert [each.kind for each in some] == [FrameKind.MESSAGE] * 5


def test_a_sent_message_does_not_stay_in_the_memory_until_the_next_one(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, take = list[weakref.ref[MessageClaim]](), PullQueues.take

    async def noted(*args: Any, **options: Any) -> MessageClaim:
        claimed = await take(*args, **options)
        claims.append(weakref.ref(claimed))
        return claimed

    monkeypatch.setattr(PullQueues, "take", noted)
    raw = dial(edge)
    deliver(edge, raw.subscribe("a"), stored("a", "<x/>", "n1"))
    raw.send(frames.encode(FrameKind.ACK, raw.read().correlation))
    wait_until(lambda: nothing_waits(edge))
    wait_until(lambda: [each() for each in claims] == [None])


def test_unreadable_messages_are_settled(
    edge: FramedEdge, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[str] = []
    consumer = connection.session().consumer("a", lambda message: got.append(message.id))
    long, deep = "xmlns " * 60_000, "<x>" * 256 + "</x>" * 256  # two of these exceed the limits of a request
    large = [stored("a", text, f"n{n}") for n, text in enumerate((f"<x>{long}</x>", deep, f"<x>{long}</x>"), 1)]
    others = StoredMessage(b"<nothing/>", "n4"), stored("a//", "<x/>", "n5"), stored("a", "<x/>", "n6")
    deliver(edge, consumer.subscription, *large, *others)
    wait_until(lambda: got == ["n1", "n3", "n6"])
    wait_until(lambda: nothing_waits(edge))
    assert (edge.server.counts.unreadable, caplog.text.count("cannot be read")) == (3, 3)
    deliver(edge, consumer.subscription, stored("a", deep, "n7"))
    wait_until(lambda: edge.server.counts.unreadable == 4 and nothing_waits(edge))
    assert not connection.lost.is_set()


def test_a_claim_is_returned_at_once_if_sending_fails(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = dial(edge)
    name = raw.subscribe("a", "archive")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("arborcast.ingest.framed.subscriptions.message_of", fail)
    deliver(edge, name, stored("a", "<x/>", "n1"))
    assert raw.ends()
    wait_until(lambda: edge.parts.pull_log.store.waiting(name) == 1 and not edge.parts.pull_log.store.claims)


def test_a_subscription_is_renewed_while_its_client_has_no_room(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that takes more than an hour for a message would lose the subscription."""
    monkeypatch.setattr(subscriptions, "_RENEW_S", 0)
    monkeypatch.setattr(subscriptions, "_WAIT_S", 0.01)
    raw = dial(edge)
    name = raw.subscribe("a", window=1)
    deliver(edge, name, stored("a", "<x/>", "n1"), stored("a", "<x/>", "n2"))
    first = raw.read()

    async def later() -> None:
        edge.parts.now += timedelta(minutes=45)

    def ends() -> datetime:
        return times.from_ms(only_subscription(edge.parts).terminates_ms or 0)

    for _ in range(2):
        edge.on_loop(later)
        wait_until(lambda: ends() == edge.parts.now + timedelta(hours=1))
    assert raw.is_alive(), "no further message"
    raw.send(frames.encode(FrameKind.ACK, first.correlation))
    assert frames.read_body(raw.read(), frames.MessageBody).id == "n2"


def test_a_subscription_is_renewed_after_a_suspension_of_the_machine(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock has not counted that time: the expired subscription missed notifications for half an hour."""
    monkeypatch.setattr(subscriptions, "_WAIT_S", 0.01)
    raw = dial(edge)
    raw.subscribe("a")
    expired = only_subscription(edge.parts).terminates_ms or 0

    async def resumed() -> None:
        edge.parts.now += timedelta(minutes=90)

    edge.on_loop(resumed)
    wait_until(lambda: (only_subscription(edge.parts).terminates_ms or 0) > expired)
    assert only_subscription(edge.parts).terminates_ms == times.to_ms(edge.parts.now + timedelta(hours=1))


def test_a_subscription_that_another_gateway_ends_while_it_is_renewed(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_WAIT_S", 0.01)
    raw = dial(edge)
    raw.subscribe("a")

    async def later() -> None:
        changed_elsewhere_first(monkeypatch, edge.parts, lambda each: ending(each.id, "unsubscribed", 1))
        edge.parts.now += timedelta(minutes=45)

    edge.on_loop(later)
    assert raw.error().code == "SubscriptionEnded"
    assert raw.is_alive()


def test_messages_to_clients_that_do_not_read_are_in_the_budget_of_all_requests(dial: Connects) -> None:
    with framed_edge(inflight_bytes=16 * 1024 * 1024) as edge:
        silent, other = dial(edge), dial(edge)
        name, sent = silent.subscribe("a", window=10_000), 0
        large = f"<x>{'y' * 3_500_000}</x>"
        while not edge.server.unread:
            deliver(edge, name, stored("a", large, f"n{sent}"))
            sent += 1
        wait_until(lambda: edge.inflight.taken > 2 * len(large))
        # Half of the budget is for messages.
        deliver(edge, other.subscribe("b"), stored("b", large, "waits"))
        assert other.is_alive(), "no message"
        for _ in range(sent):
            assert silent.read().kind == FrameKind.MESSAGE
        assert frames.read_body(other.read(), frames.MessageBody).id == "waits"
        wait_until(lambda: edge.inflight.taken == 0)


def test_small_messages_do_not_wait_for_the_memory_for_requests(dial: Connects) -> None:
    with framed_edge(inflight_bytes=16 * 1024 * 1024) as edge:

        async def take_most() -> None:
            assert edge.inflight.take(Reservation(edge.inflight), 9 * 1024 * 1024)

        edge.on_loop(take_most)
        raw, small = dial(edge), element(1_000).decode()
        deliver(edge, raw.subscribe("a", window=1_000), *(stored("a", small, f"n{number}") for number in range(200)))
        received = [frames.read_body(raw.read(), frames.MessageBody).id for _ in range(200)]
        assert received == [f"n{number}" for number in range(200)]
