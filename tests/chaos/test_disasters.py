"""Single disasters: files torn by a crash, a full disk, a clock that jumps. The
engine recovers by itself, and no acknowledged message is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from benchmarks.storms import outage
from benchmarks.storms.disk import Filling, small_disk
from tests.support.broker import new_broker, notifications_in, settings_for
from tests.support.dispatch_job import Logs, logs, subscription
from tests.support.dispatch_process import DispatchProcess, running_job
from tests.support.gateway_process import gateway_run
from tests.support.process import killed, running
from tests.support.receiver import Receiver
from tests.support.shifted_clock import Clock
from tests.support.soap_messages import MEDIA_TYPES, envelope, message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.kafka]

HOUR_S = 3600


class Publishing:
    """Sends Notify requests in closed loop until it is stopped."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted: list[bytes] = []
        self.refused: list[requests.Response] = []

    def __enter__(self) -> Publishing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a request is not answered at all"

    def _run(self) -> None:
        number = 0
        with requests.Session() as session:
            while not self._stop.wait(0.002):
                number += 1
                body = envelope(f"<wsnt:Notify>{message('a/b', f'<n>{number}</n>')}</wsnt:Notify>")
                answer = session.post(self._broker, data=body, headers={"Content-Type": MEDIA_TYPES["1.1"]}, timeout=30)
                if answer.status_code == 202:
                    self.accepted.append(f">{number}<".encode())
                else:
                    self.refused.append(answer)


def assert_told_and_kept(publishing: Publishing, kafka: KafkaSettings) -> None:
    """Each refused message had an error, and the accepted ones are in the log, in order."""
    for answer in publishing.refused:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) > 0
        assert "Fault" in answer.text
    kept = [each.payload for each in notifications_in(kafka)]
    numbers = [b">" + payload.partition(b">")[2].partition(b"<")[0] + b"<" for payload in kept]
    missing = set(publishing.accepted) - set(numbers)
    assert not missing, f"{len(missing)} of {len(publishing.accepted)} accepted ones are not in the log"
    known = set(publishing.accepted)
    assert [number for number in dict.fromkeys(numbers) if number in known] == publishing.accepted


@contextmanager
def own_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small disk; skips without the right to mount one."""
    with small_disk(folder, megabytes) as disk:
        if disk is None:
            pytest.skip("only root may mount a disk to fill")
        yield disk


def test_a_full_disk_under_the_broker_loses_no_202(tmp_path: Path) -> None:
    """Kafka exits when it cannot write; its supervisor restarts it until there is space."""
    with own_disk(tmp_path / "disk", 128) as disk, running(new_broker)(disk / "kafka") as broker:
        kafka = settings_for(broker)
        with gateway_run(tmp_path / "gateway", kafka) as gateway, Publishing(gateway.broker) as publishing:
            wait_until(lambda: len(publishing.accepted) > 100, "a hundred are accepted")
            filling = Filling(disk)
            filling.fill()
            wait_until(lambda: bool(publishing.refused), "a publisher is refused")
            filling.remove()
            broker.kill()
            broker.start()
            before = len(publishing.accepted)
            wait_until(lambda: len(publishing.accepted) > before + 100, "the gateway comes back by itself")
        assert_told_and_kept(publishing, kafka)


@pytest.mark.stack
def test_a_broker_that_does_not_answer_for_a_while(tmp_path: Path) -> None:
    result = outage.run_kafka(tmp_path, seconds=15)

    assert result.well, f"{result}\n{result.findings.describe()}"
    assert result.accepted > 1
    assert result.refused, "no 202 while nothing can be stored"


@contextmanager
def receiving() -> Iterator[tuple[Receiver, Receiver]]:
    """A working receiver, and one that fails at first, so that messages are parked."""
    with Receiver() as well, Receiver() as failing:
        failing.behave("/in", "status/500")
        yield well, failing


def ids(receiver: Receiver) -> set[str]:
    return {
        name
        for request in receiver.requests
        if request.behaviour != "status/500"
        for name in request.headers["arborcast-notification-id"].split(",")
    }


def subscribe_both(log: Logs, well: Receiver, failing: Receiver) -> None:
    log.subscribe(subscription("well", well.url("/in"), "a//."), subscription("failing", failing.url("/in"), "a//."))


QUICK: dict[str, str | int | float] = {
    "retry.first_wait_s": 0.2,
    "retry.longest_wait_s": 1.0,
    "retry.first_probe_s": 0.2,
    "retry.longest_probe_s": 1.0,
    "retry.retransmissions": 100,
}


def assert_all_is_well(kafka: KafkaSettings, accepted: set[str], *receivers: Receiver) -> None:
    for receiver in receivers:
        receiver.behave("/in", "")
        wait_until(lambda: accepted <= ids(receiver), "everything accepted has arrived")  # noqa: B023  # called at once
    wait_until(lambda: not audit(kafka, 0, patience_s=1).totals.pending, "nothing waits any more")
    report = audit(kafka, 0, deep=True, order=True)
    assert report.balanced, report.problems


def tear(file: Path) -> None:
    """Cut the file to its first half, as a loss of power does without a flush."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def last(folder: Path) -> Path:
    """The newest file."""
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


@pytest.mark.spark
def test_files_torn_by_a_crash_are_mended(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    with (
        receiving() as (well, failing),
        logs(kafka_settings) as log,
        running_job(tmp_path, kafka_settings, {**QUICK, "dispatch.mode": "batch"}) as job,
    ):
        subscribe_both(log, well, failing)
        accepted = {log.notify("a/b") for _ in range(50)}
        wait_until(lambda: ids(well) == accepted, "the first fifty")
        job.kill()
        # More than one crash damages.
        for kind in ("offsets", "commits"):
            tear(last(tmp_path / "checkpoints" / "push" / kind))
        for file in (tmp_path / "parked").iterdir():
            file.write_bytes(b"\0" * 20_000)
        job.start()
        accepted |= {log.notify("a/b") for _ in range(50)}
        assert_all_is_well(kafka_settings, accepted, well, failing)
        assert "it is rebuilt from the log" in job.log(100_000)


@pytest.mark.spark
def test_a_full_disk_stops_nothing_for_good(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    """Checkpoints, tables and the parked log on a small disk that fills up under load."""
    with (
        own_disk(tmp_path / "disk", 64) as disk,
        killed(DispatchProcess(disk, kafka_settings, {**QUICK, "tables.path": str(disk / "tables")})) as job,
        receiving() as (well, failing),
        logs(kafka_settings) as log,
    ):
        job.start()
        subscribe_both(log, well, failing)
        accepted = {log.notify("a/b") for _ in range(20)}
        wait_until(lambda: ids(well) == accepted, "the first twenty")
        filling = Filling(disk)
        filling.fill()
        for _ in range(100):
            accepted.add(log.notify("a/b"))
            time.sleep(0.05)
        filling.remove()
        accepted |= {log.notify("a/b") for _ in range(20)}
        assert_all_is_well(kafka_settings, accepted, well, failing)


@pytest.mark.spark
def test_a_clock_that_is_wrong_by_an_hour_and_is_put_right(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two runs of the job its clock jumps an hour ahead, then back: no message is lost, expires or is repeated,
    new ones are delivered at once, and retries that were due by the clock ahead do not wait for an hour.

    Only the clock of its Python processes is changed, which is the one that decides about retries; neither the JVM's
    nor Kafka's is.
    """
    clock = Clock(tmp_path / "clock", monkeypatch)
    with (
        receiving() as (well, failing),
        logs(kafka_settings) as log,
        running_job(tmp_path / "job", kafka_settings, QUICK) as job,
    ):
        subscribe_both(log, well, failing)
        accepted = set()
        for shift in (HOUR_S, 0):
            accepted |= {log.notify("a/b") for _ in range(10)}
            wait_until(lambda: accepted <= ids(well), "they have arrived")  # noqa: B023  # called at once
            before = len(failing.requests)
            wait_until(lambda: len(failing.requests) > before, "the other one is tried again")  # noqa: B023  # called at once
            job.kill()
            clock.put(shift)
            job.start()
        before = len(failing.requests)
        wait_until(lambda: len(failing.requests) > before, "the other one is tried again")
        accepted |= {log.notify("a/b") for _ in range(10)}
        wait_until(lambda: accepted <= ids(well), "everything has arrived where all was well")
        report = audit(kafka_settings, 0, deep=True, order=True)
        assert report.balanced, report.problems
        totals = report.totals
        assert (totals.dead, totals.expired, totals.cancelled, totals.dropped) == (0, 0, 0, 0)
        assert totals.delivered + totals.pending == 2 * len(accepted)
