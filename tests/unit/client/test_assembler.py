"""Parts on the receiver's side: pushes as brokers make them, joined by the listener."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.client.assembler import Assembler
from arborcast.client.listener import ListenerApp, ReceivedMessage
from arborcast.client.received import PartOf
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
    """Notifications of parts that may be delivered alone, as a gateway stores them: none of them is XML by itself."""
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
    async def all_of_them() -> list[int]:
        found = []
        for request in requests:
            headers = {name.lower(): value for name, value in request.headers}
            found.append((await app.handled(headers, request.body)).status)
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("package", ["", "0-0-1-0"])
def test_what_the_broker_cuts_the_listener_joins(package: str) -> None:
    got: list[ReceivedMessage] = []
    app = ListenerApp(got.append)
    made = pushes(subscriber(fragment_bytes=600), Notification("n", TopicPath("a"), CONTENT, 0, package=package))
    random.Random(1).shuffle(made)
    assert set(handle(app, [*made, *made[:2]])) == {202}
    assert [each.payload for each in got] == [READ]
    app.close()


@pytest.mark.parametrize("form", ["legacy", "notify", "raw"])
def test_parts_that_were_published_alone_are_joined_in_every_form(form: DeliveryForm) -> None:
    got: list[ReceivedMessage] = []
    app = ListenerApp(got.append)
    made = pushes(subscriber(form), *published("<x>some words, and more</x>", 7))
    other = pushes(subscriber(form), *published("<y>another</y>", 7, "me:2"))
    handle(app, [each for pair in zip(made, other, strict=False) for each in pair] + made[len(other) :])
    assert sorted(each.payload for each in got) == [b"<x>some words, and more</x>", b"<y>another</y>"]
    app.close()


def test_several_in_one_push_beside_messages_that_are_none() -> None:
    got: list[ReceivedMessage] = []
    app = ListenerApp(got.append)
    whole = Notification("w", TopicPath("b"), b"<whole/>", 0)
    handle(app, [Envelope(subscriber("notify")).request([whole, *published("<x>abc</x>", 4)], 1)])
    assert [each.payload for each in got] == [b"<whole/>", b"<x>abc</x>"]
    assert got[1].topic == "a"
    app.close()


def test_parts_are_handed_over_apart_where_that_is_wanted() -> None:
    got: list[ReceivedMessage] = []
    app = ListenerApp(got.append, parts="apart")
    handle(app, pushes(subscriber(), *published("<x>abc</x>", 4)))
    assert [each.payload for each in got] == [b"<x>a", b"bc</", b"x>"]
    assert got[2].part == PartOf("me:1", Fragment(True, False, True, 2), b"x>", "s")


def test_a_message_that_was_not_taken_is_given_again_with_its_last_part() -> None:
    got: list[ReceivedMessage] = []

    def refuses(message: ReceivedMessage) -> None:
        got.append(message)
        if len(got) == 1:
            raise ValueError("not now")

    app = ListenerApp(refuses)
    made = pushes(subscriber(), *published("<x>abc</x>", 4))
    assert handle(app, made) == [202, 202, 500]
    assert handle(app, [made[-1], made[-1]]) == [202, 202]
    assert [each.payload for each in got] == [b"<x>abc</x>"] * 2
    app.close()


def part(number: int, content: bytes, more: bool = True, name: str = "i") -> ReceivedMessage:
    return ReceivedMessage(b"", part=PartOf(name, Fragment(True, more, True, number), content))


def joined(assembler: Assembler, *parts: ReceivedMessage) -> list[ReceivedMessage]:
    found = []
    for each in parts:
        with assembler.joined(each) as whole:
            if whole is not None:
                found.append(whole)
    return found


def read(file: IO[bytes] | None) -> bytes:
    assert file is not None
    with file:
        return file.read()


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.randoms(), st.integers(0, 100))
def test_shuffled_and_repeated_parts_make_the_whole_once(
    contents: list[bytes], chance: random.Random, memory_bytes: int
) -> None:
    assembler = Assembler(memory_bytes=memory_bytes)
    parts = [part(number, content, number < len(contents) - 1) for number, content in enumerate(contents)]
    order = parts + chance.choices(parts, k=3)
    chance.shuffle(order)
    (whole,) = joined(assembler, *order)
    assert (whole.payload if whole.file is None else read(whole.file)) == b"".join(contents)
    assert (whole.file is not None) == (len(b"".join(contents)) > memory_bytes)
    assert assembler.open == 0
    assembler.close()


def test_a_large_message_is_a_file_and_never_in_memory(tmp_path: Path) -> None:
    assembler = Assembler(memory_bytes=1_000, folder=str(tmp_path))
    parts = [part(number, b"%04d" % number, number < 999) for number in range(1_000)]
    (whole,) = joined(assembler, *reversed(parts))
    assert whole.payload == b""
    assert read(whole.file) == b"".join(b"%04d" % number for number in range(1_000))
    assembler.close()
    assert list(tmp_path.iterdir()) == []


def test_what_lacks_parts_is_given_up_and_said(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    assembler = Assembler(timeout_s=30, max_open=2, max_bytes=100, clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        joined(assembler, part(0, b"x"), part(2, b"x"))
        now = 30.0
        joined(assembler, part(0, b"x", name="j"))
        assert (assembler.open, assembler.given_up) == (1, 1)
        assert "'i' is given up: it has the parts 0 2, missing are 1 3-" in caplog.text
        joined(assembler, part(0, b"x", name="k"), part(0, b"x", name="l"), part(0, b"x", name="m"))
        assert (assembler.open, assembler.given_up) == (3, 2), "the next part finds one too many"
        assert not joined(assembler, part(1, b"x" * 100, name="m"))
        assert assembler.open == 1
    assembler.close()


def test_a_broker_that_counts_from_anew_begins_a_new_message() -> None:
    assembler = Assembler()
    assert not joined(assembler, part(0, b"old"), part(1, b"old"))
    (whole,) = joined(assembler, part(0, b"new"), part(1, b"er", more=False))
    assert whole.payload == b"newer"
    assembler.close()


def test_a_message_whose_part_cannot_be_stored_is_given_up_and_never_joined(tmp_path: Path) -> None:
    assembler = Assembler(memory_bytes=1_000, folder=str(tmp_path))

    def take(number: int, content: bytes, last: bool = False) -> bytes | None:
        fragment = Fragment(True, not last, True, number)
        with assembler.joined(ReceivedMessage(b"", part=PartOf("me:1", fragment, content))) as joined:
            return None if joined is None else joined.payload

    assert take(0, b"a" * 500) is None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match="large"):
            take(1, b"b" * 5_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (assembler.open, assembler.given_up) == (0, 1)
    assert take(1, b"b" * 5_000) is None
    assert take(2, b"c", last=True) is None, "the first part is missing"
    assembler.close()
