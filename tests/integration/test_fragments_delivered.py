"""Messages in parts from an old publisher to all kinds of subscribers: two real gateways, Kafka, Spark, listeners."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle

import pytest

from arborcast.client import Client, LegacyClient
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.dispatch.tables import INCOMPLETE
from tests.support import legacy_messages as legacy
from tests.support.dispatch_job import RunningJob, wait_for_rows
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PART = 3_000


class Got:
    """Messages of a listener."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.listener = Listener(self.messages.append)

    def wait_for(self, count: int) -> list[str]:
        wait_until(lambda: len(self.messages) >= count, f"{count} messages")
        return sorted(each.payload.decode() for each in self.messages)


Engine = tuple[GatewayRun, GatewayRun, RunningJob, Got]
"""With the events of an incomplete message."""


@pytest.fixture(scope="module")
def engine(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Two gateways for this module; each test has separate topics. The parts of the incomplete message are sent first:
    the other tests run until its time-out, which is long for a busy machine."""
    more, folder, events = "[fragments]\ntimeout_s = 30\n", tmp_path_factory.mktemp("fragments"), Got()
    with (
        gateway_run(folder / "a", job.settings.kafka, more=more) as one,
        gateway_run(folder / "b", job.settings.kafka, more=more) as other,
        events.listener,
        Client(one.broker) as new,
    ):
        new.subscribe("a:system/fragments//.", to=events.listener.url, namespaces={"a": "urn:arborcast"})
        for gateway, number in ((one, 0), (other, 3)):
            text = legacy.notify("lost:parts", "<half", f"1-1-0-{number}", "me:7")
            assert "success!" in legacy.post(f"{gateway.base}/wsnprocess/", text).text
        yield one, other, job, events


def content(parts: int) -> str:
    return f"<m n='{parts}'>{'é<v>some words</v>'.ljust(60) * (PART * parts // 70)}</m>"


@pytest.mark.parametrize("alone", [False, True])
def test_each_subscriber_gets_the_whole_message_once(engine: Engine, alone: bool) -> None:
    one, other, *_ = engine
    topic = f"parts{alone:d}"
    whole, in_parts, modern = Got(), Got(), Got()
    with (
        whole.listener,
        in_parts.listener,
        modern.listener,
        LegacyClient(one.base) as old,
        Client(other.broker) as new,
    ):
        old.subscribe(topic, to=whole.listener.url)
        old.subscribe(topic, to=in_parts.listener.url, fragment_bytes=1_000)
        new.subscribe(f"{topic}//.", to=modern.listener.url)
        point = new.create_pull_point()
        new.subscribe(f"{topic}//.", to=point)
        contents = [content(parts) for parts in (1, 2, 5, 10, 100)]
        texts = []
        for number, each in enumerate(contents):
            texts += legacy.in_parts(topic, each, PART, alone=alone, identification=f"{topic}:{number}")
        random.Random(5).shuffle(texts)
        for gateway, text in zip(cycle((one, other)), texts, strict=False):
            assert "success!" in legacy.post(f"{gateway.base}/wsnprocess/", text).text
            if not alone and random.Random(len(text)).random() < 0.1:
                assert "success!" in legacy.post(f"{other.base}/wsnprocess/", text).text
        expected = sorted(contents)
        assert whole.wait_for(5) == expected
        assert in_parts.wait_for(5) == expected
        assert modern.wait_for(5) == expected
        assert all(each.topic == topic for each in modern.messages)
        pulled: list[str] = []

        def all_pulled() -> bool:
            # A few at a time: the parts of a message are in different answers.
            fetched = new.get_messages(point, 7, wait_s=1)
            pulled.extend((it.file.read() if it.file else it.payload).decode() for it in fetched)
            for message in fetched:
                if message.file:
                    message.file.close()
            return len(pulled) >= 5

        wait_until(all_pulled, lambda: f"{len(pulled)} pulled")
        assert sorted(pulled) == expected


def test_an_incomplete_message_is_an_event_and_a_row(engine: Engine) -> None:
    *_, job, events = engine
    (event,) = events.wait_for(1)
    for words in ('kind="fragments-incomplete"', ">me:7<", "<Received>0 3</Received>", "<Missing>1-2 4-</Missing>"):
        assert words in event
    (row,) = wait_for_rows(job.settings, INCOMPLETE, bool)
    found = {name: row[name] for name in ("identification", "topic", "reason", "received", "missing")}
    assert found == {
        "identification": "me:7",
        "topic": "lost/parts",
        "reason": "time",
        "received": "0 3",
        "missing": "1-2 4-",
    }
