"""Receivers that take a push and say later how it ended: a whole engine in both gears, and the client's listener."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import requests

from arborcast.client import Client
from arborcast.client.later import Later
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.client.values import Delivery
from tests.support.command import Engine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack]

# Long enough for what is to be said in time on a busy machine.
CALLBACK_S = 120

SETTINGS = """
[dispatch]
gear = "{gear}"
[push]
callback_s = {callback_s}
[retry]
first_wait_s = 0.2
jitter = 0.0
[tables]
interval_s = 0.3
"""


@pytest.fixture(scope="module", params=["batch", pytest.param("realtime", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    settings = folder / "settings.toml"
    settings.write_text(SETTINGS.format(gear=request.param, callback_s=CALLBACK_S))
    engine = Engine(folder / "home")
    try:
        engine.up("--config", str(settings))
        yield engine
    finally:
        engine.down()


class Patient:
    """A subscriber that takes the first push of each message for later, and handles every further one at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken: dict[str, Later] = {}
        self.seen: list[tuple[str, int]] = []

    def received(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.seen.append((message.notification_id, message.attempt))
            if message.attempt == 1 and message.notification_id not in self.taken:
                self.taken[message.notification_id] = message.later()

    def of(self, notification: str) -> Later:
        wait_until(lambda: notification in self.taken, f"{notification} was pushed")
        return self.taken[notification]

    def attempts(self, notification: str) -> list[int]:
        return [attempt for name, attempt in self.seen if name == notification]


@contextmanager
def subscribed(engine: Engine, topic: str, *, strict: bool = False) -> Iterator[Patient]:
    """Each message travels alone: several in one push have one result."""
    patient = Patient()
    with Listener(patient.received) as listener, Client(engine.gateway) as client:
        subscription = client.subscribe(topic, to=listener.url, raw=True, delivery=Delivery(strict=strict))
        yield patient
        client.unsubscribe(subscription)


def publish(engine: Engine, topic: str) -> str:
    answer = requests.post(
        f"{engine.gateway}/publish/{topic}", b"<r/>", headers={"Content-Type": "text/xml"}, timeout=30
    )
    assert answer.status_code == 202, answer.text
    return answer.headers["Arborcast-Notification-Id"]


def story(engine: Engine, notification: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(engine.run_here("trace", notification, "--json", check=False).stdout or "{}")
    told: list[dict[str, Any]] = document.get("deliveries") or [{}]
    return told[0]


def driver_of(engine: Engine) -> int:
    """The process of the job's Python driver; spark-submit's own JVM names the same script."""
    (pid,) = [
        each.pid
        for each in engine.processes()
        if "python" in each.name() and any(word.endswith("dispatch_stream.py") for word in each.cmdline()[:3])
    ]
    return pid


def until_told(engine: Engine, notification: str, outcome: str) -> str:
    """What its trace says in the end: why, and all steps."""
    wait_until(lambda: story(engine, notification).get("outcome") == outcome, f"{notification} is {outcome}")
    return json.dumps(story(engine, notification))


def test_delivered_failed_and_refused(engine: Engine) -> None:
    topic = "later/ends"
    with subscribed(engine, topic) as patient:
        done, failed, refused = (publish(engine, topic) for _ in range(3))
        for each in (done, failed, refused):
            patient.of(each)
        assert "how it ended; else it is tried again" in until_told(engine, done, "waiting")

        patient.taken[done].delivered("printed")
        patient.taken[failed].failed("no paper")
        patient.taken[refused].refused("no such tray")

        assert "its receiver said so after" in (told := until_told(engine, done, "delivered"))
        assert "printed" in told
        assert "that it failed: no paper" in until_told(engine, failed, "delivered")
        assert "refuses it: no such tray" in until_told(engine, refused, "dead")
        assert [patient.attempts(each) for each in (done, failed, refused)] == [[1], [1, 2], [1]]
        audited = engine.run_here("audit", "--json", check=False)
        assert audited.returncode == 0, audited.stdout


def test_what_is_said_while_the_driver_is_away_counts_when_it_is_back(engine: Engine) -> None:
    topic = "later/away"
    with subscribed(engine, topic) as patient:
        done, failed = publish(engine, topic), publish(engine, topic)
        for each in (done, failed):
            patient.of(each)
        until_told(engine, failed, "waiting")

        driver = psutil.Process(driver_of(engine))
        os.kill(driver.pid, signal.SIGKILL)
        patient.taken[done].delivered("said to nobody")
        patient.taken[failed].failed("said to nobody")
        psutil.wait_procs([driver], timeout=60)

        assert "said to nobody" in until_told(engine, done, "delivered")
        assert "that it failed: said to nobody" in until_told(engine, failed, "delivered")
        assert (patient.attempts(done), patient.attempts(failed)) == ([1], [1, 2])


def test_in_strict_order_nothing_is_pushed_before_the_word_is_there(engine: Engine) -> None:
    topic = "later/strict"
    with subscribed(engine, topic, strict=True) as patient:
        first, second = publish(engine, topic), publish(engine, topic)
        later = patient.of(first)
        until_told(engine, first, "waiting")
        assert patient.attempts(second) == []
        later.delivered()
        patient.of(second).delivered()
        until_told(engine, second, "delivered")
        assert [name for name, _ in patient.seen] == [first, second]
