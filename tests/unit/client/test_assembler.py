"""Parts of messages at the receiver: pushes as brokers make them, joined by the listener."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.client import assembler as assembler_module
from arborcast.client import received
from arborcast.client.assembler import Assembler, _Spool
from arborcast.client.calls import Calls
from arborcast.client.listener import ListenerApp, ReceivedMessage
from arborcast.client.received import ReceivedPart
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.packages import Fragment
from arborcast.topic_model.subscriptions import DeliveryForm, DeliveryPolicy, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

CONTENT = b"<alarm>" + b"<v>R&amp;D \xc3\xa9</v>" * 100 + b"</alarm>"
READ = CONTENT.replace(b"&amp;", b"&")


def subscriber(form: DeliveryForm = "legacy", fragment_bytes: int = 0, name: str = "s") -> Subscription:
    policy = DeliveryPolicy(fragment_bytes=fragment_bytes)
    return Subscription(name, EndpointReference("http://here/"), form=form, policy=policy)


def pushes(subscription: Subscription, *notifications: Notification) -> list[PushRequest]:
    """One after the other, as the broker makes them."""
    envelope = Envelope(subscription)
    return [each for one in notifications for each in envelope.requests([one], 1, 0.0)]


def published(content: str, size: int, name: str = "me:1") -> list[Notification]:
    """Notifications of parts that may be delivered separately, as a gateway stores them: a single part is no XML."""
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    return [
        Notification(
            f"n{number}",
            TopicPath("a"),
            wrap(piece.replace("<", "&lt;").replace(">", "&gt;"), {}),
            0,
            package=f"{Fragment(True, number < len(pieces) - 1, True, number)} {name}",
        )
        for number, piece in enumerate(pieces)
    ]


def handle(app: ListenerApp, requests: Sequence[PushRequest]) -> list[int]:
    async def status_of(request: PushRequest) -> int:
        headers = {name.lower(): value for name, value in request.headers}
        return (await app.handled(headers, request.body)).status

    return [asyncio.run(status_of(each)) for each in requests]


@pytest.fixture
def got() -> list[ReceivedMessage]:
    return []


@pytest.fixture
def app(got: list[ReceivedMessage]) -> Iterator[ListenerApp]:
    made = ListenerApp(got.append)
    yield made
    made.close()


@pytest.mark.parametrize("package", ["", "0-0-1-0"])
def test_parts_of_the_broker_are_joined(package: str, app: ListenerApp, got: list[ReceivedMessage]) -> None:
    made = pushes(subscriber(fragment_bytes=600), Notification("n", TopicPath("a"), CONTENT, 0, package=package))
    random.Random(1).shuffle(made)
    assert set(handle(app, [*made, *made[:2]])) == {202}
    assert [each.payload for each in got] == [READ]


@pytest.mark.parametrize("form", ["legacy", "notify", "raw"])
def test_parts_of_publishers_are_joined(form: DeliveryForm, app: ListenerApp, got: list[ReceivedMessage]) -> None:
    made = pushes(subscriber(form), *published("<x>some words, and more</x>", 7))
    other = pushes(subscriber(form), *published("<y>another</y>", 7, "me:2"))
    handle(app, [each for pair in zip(made, other, strict=False) for each in pair] + made[len(other) :])
    assert sorted(each.payload for each in got) == [b"<x>some words, and more</x>", b"<y>another</y>"]


def test_parts_beside_whole_messages_in_one_push(app: ListenerApp, got: list[ReceivedMessage]) -> None:
    whole = Notification("w", TopicPath("b"), b"<whole/>", 0)
    handle(app, [Envelope(subscriber("notify")).request([whole, *published("<x>abc</x>", 4)], 1)])
    assert [(each.payload, each.topic) for each in got] == [(b"<whole/>", "b"), (b"<x>abc</x>", "a")]


def test_parts_may_be_delivered_separately(got: list[ReceivedMessage]) -> None:
    handle(ListenerApp(got.append, parts="apart"), pushes(subscriber(), *published("<x>abc</x>", 4)))
    assert [each.payload for each in got] == [b"<x>a", b"bc</", b"x>"]
    assert got[2].part == ReceivedPart("me:1", Fragment(True, False, True, 2), b"x>", "s")


def test_a_refused_message_is_repeated_with_its_last_part() -> None:
    received = Mock(side_effect=[ValueError("not now"), None])
    app = ListenerApp(received)
    made = pushes(subscriber(), *published("<x>abc</x>", 4))
    assert handle(app, [*made, made[-1], made[-1]]) == [202, 202, 500, 202, 202]
    assert [message.payload for (message,), _ in received.call_args_list] == [b"<x>abc</x>"] * 2
    app.close()


def part(number: int, content: bytes, more: bool = True, name: str = "i") -> ReceivedMessage:
    return ReceivedMessage(b"", part=ReceivedPart(name, Fragment(True, more, True, number), content))


def joined(assembler: Assembler, *parts: ReceivedMessage) -> list[ReceivedMessage]:
    found = []
    for each in parts:
        with assembler.joined(each) as whole:
            found += [] if whole is None else [whole]
    return found


def content(message: ReceivedMessage) -> bytes:
    if message.file is None:
        return message.payload
    assert message.payload == b""
    with message.file:
        return message.file.read()


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.randoms(), st.integers(0, 100))
def test_shuffled_and_repeated_parts(contents: list[bytes], chance: random.Random, memory_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assembler = Assembler(memory_bytes=memory_bytes, folder=folder)
        parts = [part(number, each, number < len(contents) - 1) for number, each in enumerate(contents)]
        order = parts + chance.choices(parts, k=3)
        chance.shuffle(order)
        (whole,) = joined(assembler, *order)
        assert (whole.file is not None) == (len(b"".join(contents)) > memory_bytes)
        assert content(whole) == b"".join(contents)
        assert assembler.open == 0
        assembler.close()
        assert list(Path(folder).iterdir()) == []


def test_incomplete_messages_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    assembler = Assembler(timeout_s=30, max_open=2, max_bytes=100, clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        joined(assembler, part(0, b"x"), part(2, b"x"))
        now = 30.0
        joined(assembler, part(0, b"x", name="j"))
        assert (assembler.open, assembler.given_up) == (1, 1)
        assert "'i' is given up: it has the parts 0 2, missing are 1 3-" in caplog.text
        joined(assembler, *(part(0, b"x", name=name) for name in "klm"))
        assert (assembler.open, assembler.given_up) == (3, 2), "one message too many"
        assert not joined(assembler, part(1, b"x" * 100, name="m"))
        assert assembler.open == 1
    assembler.close()


def test_all_incomplete_messages_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(assembler_module, "_MOST_IN_MEMORY", 3)
    assembler = Assembler(memory_bytes=100, max_open_bytes=500, folder=str(tmp_path), clock=lambda: now)
    for number in range(20):
        now += 1
        assert not joined(assembler, part(0, b"x" * 90, name=str(number)))
        # One part is added above the limit, and the oldest message is given up before the next one.
        assert assembler.open == min(number + 1, 6)
        assert sum(spool.size for spool in assembler._spools.values() if not spool.on_disk) <= 300
    (whole,) = joined(assembler, part(1, b"y", more=False, name="19"))
    assert whole.payload == b"x" * 90 + b"y"
    assert not joined(assembler, part(1, b"y", more=False, name="13")), "it was given up"
    assembler.close()


def test_the_first_part_again_begins_a_new_message() -> None:
    assembler = Assembler()
    assert not joined(assembler, part(0, b"old"), part(1, b"old"))
    (whole,) = joined(assembler, part(0, b"new"), part(1, b"er", more=False))
    assert whole.payload == b"newer"
    assembler.close()


def test_fetched_messages_are_returned_if_a_part_cannot_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ReceivedMessage(b"<whole/>")
    fetched = [whole, part(0, b"a"), whole]
    monkeypatch.setattr(received, "messages", lambda _reply: fetched)
    calls = Calls("http://b/")
    monkeypatch.setattr(_Spool, "add", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert calls.get_messages("http://b/pull").read(None) == fetched
    calls.assembler.close()


def test_a_message_on_a_full_disk_is_given_up(tmp_path: Path) -> None:
    assembler = Assembler(memory_bytes=1_000, folder=str(tmp_path))
    assert not joined(assembler, part(0, b"a" * 500))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            joined(assembler, part(1, b"b" * 5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (assembler.open, assembler.given_up) == (0, 1)
    # Its first part is missing from now on.
    assert not joined(assembler, part(1, b"b" * 5_000), part(2, b"c", more=False))
    assembler.close()
