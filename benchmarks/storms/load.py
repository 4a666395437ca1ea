"""Publishers and pulling clients of a storm, in threads of its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import requests

from arborcast.client import Client, ClientError, Retries
from benchmarks.storms.record import Accepted, Arrival, append, arrival_in
from tests.support.soap_messages import MEDIA_TYPES, envelope, message

_TIMEOUT_S = 20.0
_PULLED_AT_ONCE = 200

POISON = "poison"


class Publisher:
    """Publishes on one topic, one message after the other. `poisoned` of a hundred contain the text that some receivers
    refuse; one of ten is reliable."""

    def __init__(self, gateway: str, topic: str, per_second: float, poisoned: int = 2) -> None:
        self._broker = f"{gateway}/wsn/NotificationBroker"
        self._topic = topic
        self._pause_s = 1 / per_second
        self._poisoned = poisoned
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publish-{topic}", daemon=True)
        self.accepted: list[Accepted] = []
        self.refused: dict[str, int] = {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; returns after the last answer."""
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)
        assert not self._thread.is_alive(), "a request was never answered"

    def accepted_since(self, since: float) -> Iterator[Accepted]:
        """The accepted messages that were sent since then, the last one first."""
        return takewhile(lambda each: each.at >= since, reversed(self.accepted))

    def _run(self) -> None:
        number = 0
        with requests.Session() as session:
            while not self._stop.wait(self._pause_s):
                number += 1
                mark = f"{self._topic.replace('/', '-')}-{number}"
                extra = POISON if number % 100 < self._poisoned else "x"
                reliable = number % 10 == 0
                policy = '<p:Publication xmlns:p="urn:arborcast:policy" Reliable="true"/>' * reliable
                body = f'<wsnt:Notify>{message(self._topic, f"""<m mark="{mark}">{extra}</m>""")}{policy}</wsnt:Notify>'
                sent = time.time()
                try:
                    answer = session.post(
                        self._broker,
                        data=envelope(body),
                        headers={"Content-Type": MEDIA_TYPES["1.1"]},
                        timeout=_TIMEOUT_S,
                    )
                    what = str(answer.status_code)
                except requests.RequestException as error:
                    # Without an answer nothing is promised: it may arrive or not.
                    what = type(error).__name__
                if what == "202":
                    self.accepted.append(Accepted(mark, self._topic, sent, time.time(), reliable))
                else:
                    self.refused[what] = self.refused.get(what, 0) + 1


class Puller:
    """Fetches from a pull point continuously, and records the arrivals."""

    def __init__(self, gateway: str, pull_point: str, name: str, file: Path) -> None:
        self._gateway = gateway
        self._pull_point = pull_point
        self._name = name
        self._file = file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pull", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        file = self._file.with_name(f"{self._file.stem}-{self._name}.jsonl")
        with Client(self._gateway, timeout_s=(2.0, _TIMEOUT_S), retries=Retries(attempts=3)) as client:
            while not self._stop.is_set():
                try:
                    messages = client.get_messages(self._pull_point, _PULLED_AT_ONCE, wait_s=1.0)
                except ClientError:
                    self._stop.wait(0.2)
                    continue
                if messages:
                    marks = tuple(_mark(each.payload) for each in messages)
                    now = time.time()
                    append(file, Arrival(self._name, now, marks, 1, "", now))


def _mark(payload: bytes) -> str:
    return payload.partition(b'mark="')[2].partition(b'"')[0].decode("ascii")


class Arrivals:
    """New arrivals at one receiver, in the file of all arrivals."""

    def __init__(self, file: Path, publishers: Sequence[Publisher], receiver: str) -> None:
        self._file = file
        self._publishers = publishers
        self._receiver = receiver
        self._read = 0

    def first(self, since: float, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> float | None:
        """The time of the first arrival of a message that was sent since then; None without one in this time."""
        deadline = time.monotonic() + seconds
        later: list[Arrival] = []
        while True:
            meanwhile()
            later += [each for each in self._new() if each.at >= since and each.receiver == self._receiver]
            marks = {each.mark for publisher in self._publishers for each in publisher.accepted_since(since)}
            times = [each.at for each in later if not marks.isdisjoint(each.marks)]
            if times:
                return min(times)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)

    def _new(self) -> Iterator[Arrival]:
        with self._file.open(encoding="utf-8") as lines:
            lines.seek(self._read)
            while (line := lines.readline()).endswith("\n"):
                self._read = lines.tell()
                yield arrival_in(line)
