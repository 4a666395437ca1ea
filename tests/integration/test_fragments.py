"""Messages in parts through two gateways over one Kafka are assembled once, also after a kill of one gateway."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
import requests

from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.records import fragments
from arborcast.topic_model.records.notifications import Notification
from tests.support import legacy_messages as legacy
from tests.support.broker import BrokerProcess, notifications_in, records_in, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka]

PART = 300

Pair = tuple[GatewayRun, GatewayRun]


@pytest.fixture
def pair(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Pair]:
    more = "[fragments]\ntimeout_s = 5\n"
    with (
        gateway_run(tmp_path / "a", kafka_settings, more=more) as one,
        gateway_run(tmp_path / "b", kafka_settings, more=more) as other,
    ):
        yield one, other


def content(parts: int, seed: int) -> str:
    """Content that makes this many parts, the last of them short."""
    chance = random.Random(seed)
    text = f"<m n='{seed}'>"
    while len(text) < PART * (parts - 1):
        text += chance.choice(("abcdefgh", "&amp;", "é告", "<x/>", "<y>zz</y>"))
    return f"{text}</m>"


def send(gateways: Iterator[GatewayRun], text: str) -> None:
    """Send through the running gateways in turn until one accepts it, as a publisher does."""

    def taken() -> bool:
        try:
            answer = legacy.post(f"{next(gateways).base}/wsnprocess/", text)
        except requests.RequestException:
            return False
        assert answer.status_code == 503 or (answer.status_code == 200 and "success!" in answer.text), answer.text
        return answer.status_code == 200

    wait_until(taken, "a gateway takes it", every_s=0.1)


def stored(kafka: KafkaSettings, topic: str) -> list[Notification]:
    """The notifications accepted on a topic, each id once."""
    return list({each.id: each for each in notifications_in(kafka) if each.topic == topic}.values())


def wait_for(kafka: KafkaSettings, topic: str, count: int) -> list[Notification]:
    wait_until(lambda: len(stored(kafka, topic)) >= count, f"{count} on {topic}", every_s=0.2)
    return stored(kafka, topic)


@pytest.mark.long
def test_a_gateway_completes_the_message_of_a_killed_one(kafka_settings: KafkaSettings, pair: Pair) -> None:
    """Its publisher ends, too: a message that is complete in the log is still assembled."""
    chance = random.Random(7)
    rounds = 4
    for number in range(rounds):
        one, other = pair if number % 2 else pair[::-1]
        *parts, last = legacy.in_parts("dying", content(5, number), PART, identification=f"me:{number}")
        for part in parts:
            send(cycle([one]), part)
        sender = threading.Thread(target=_try, args=(one, last))
        sender.start()
        time.sleep(chance.random() * 0.01)
        one.kill()
        sender.join()
        # The last part may be in the log or not: a publisher that continues sends it again.
        if not _is_logged(kafka_settings, f"me:{number}"):
            send(cycle([other]), last)
        wait_for(kafka_settings, "dying", number + 1)
        one.start()
    whole = [unwrap(each.payload).decode() for each in stored(kafka_settings, "dying")]
    assert sorted(whole) == sorted(content(5, number) for number in range(rounds))


def _try(gateway: GatewayRun, text: str) -> None:
    with contextlib.suppress(requests.RequestException):
        legacy.post(f"{gateway.base}/wsnprocess/", text)


def records(kafka: KafkaSettings) -> list[fragments.FragmentRecord]:
    return [fragments.decode(record.key, record.value) for record in records_in(kafka, "fragments")]


def _is_logged(kafka: KafkaSettings, identification: str) -> bool:
    last = [each for each in records(kafka) if isinstance(each, fragments.StoredPart) and each.last]
    return any(each.identification == identification for each in last)


@pytest.mark.long
def test_sixty_megabytes_with_a_larger_limit(tmp_path: Path, own_broker: BrokerProcess) -> None:
    """`fragments.max_bytes` at 64 MiB: larger messages are refused with the name of the setting."""
    kafka = dataclasses.replace(settings_for(own_broker), max_record_bytes=102_000_000)
    more = "[fragments]\nmax_bytes = 67_108_864\n"
    with gateway_run(tmp_path / "large", kafka, more=more, max_unacknowledged_bytes=160 * 1024 * 1024) as run:
        piece = "<p>" + "x" * 2_000_000 + "</p>"
        for number in range(30):
            send(cycle([run]), legacy.notify("large", piece, f"1-{number < 29:d}-0-{number}", "large:1"))
        (whole,) = stored(kafka, "large")
        assert unwrap(whole.payload) == piece.encode() * 30
        for number in range(33):
            send(cycle([run]), legacy.notify("large", piece, f"1-1-0-{number}", "large:2"))
        answer = legacy.post(f"{run.base}/wsnprocess/", legacy.notify("large", piece, "1-0-0-33", "large:2"))
        assert answer.status_code == 500
        assert "fragments.max_bytes is 67108864" in answer.text
