"""Parts of a real engine that are stopped: each is detected, and the engine delivers again without intervention."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from arborcast.engine.monitoring.samples import Scrape
from arborcast.engine.monitoring.stack_monitor import get, role
from tests.support.command import Engine
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(900)]

# Short, but long enough that a busy part on a machine five times slower is not taken for a hung one.
SETTINGS = """
[stack]
hang_timeout_s = 12
job_hang_timeout_s = 20
start_timeout_s = 600
[gateway]
workers = 2
hang_timeout_s = 8
[dispatch]
hang_timeout_s = 8
task_slots = 2
"""

PARTS = ("kafka", "gateway", "dispatch", "console")

# For detections of twenty seconds, and starts of ten, on an idle machine.
PATIENCE_S = 400


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for this module; the last test stops it."""
    engine = Engine(tmp_path_factory.mktemp("engine"))
    config = engine.home / "settings.toml"
    config.write_text(SETTINGS)
    try:
        engine.up("--config", str(config))
        yield engine
    finally:
        engine.down()


@pytest.fixture(scope="module")
def receiver(engine: Engine) -> Iterator[Receiver]:
    with Receiver() as receiver:
        engine.run("subscribe", "hung//.", "--to", receiver.url("/hung"))
        yield receiver


def part(engine: Engine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.status()["parts"][name]
    return found


def of_the_job(engine: Engine) -> dict[str, list[psutil.Process]]:
    """The job's processes: `jvm`, `driver`, `daemon` and `workers`."""
    leader = part(engine, "dispatch")["pid"]
    found: dict[str, list[psutil.Process]] = {"jvm": [], "driver": [], "daemon": [], "workers": []}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader:
                kind = role("dispatch", process.cmdline()).removeprefix("dispatch-")
                found["daemon" if kind == "workers" and process.ppid() == leader else kind].append(process)
    return found


def delivers(engine: Engine, receiver: Receiver, what: str) -> None:
    """A new message is delivered, with repeated publications until the gateway accepts one."""

    def published() -> bool:
        return engine.run("publish", "hung/a", "-", input=f"<x>{what}</x>", check=False).returncode == 0

    wait_until(published, f"{what} is accepted", timeout_s=PATIENCE_S)
    wait_until(
        lambda: any(what.encode() in one.body for one in receiver.requests),
        f"{what} is delivered",
        timeout_s=PATIENCE_S,
    )


def stop(*processes: psutil.Process) -> None:
    for process in processes:
        process.suspend()
        wait_until(lambda process=process: process.status() == psutil.STATUS_STOPPED, "it is stopped")  # type: ignore[misc]  # mypy infers no lambda with a default


def killed(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_stopped_workers_are_replaced_and_no_other_process(engine: Engine, receiver: Receiver) -> None:
    delivers(engine, receiver, "before")
    metrics = f"{engine.status()['addresses']['metrics']}/metrics"
    gateway = psutil.Process(part(engine, "gateway")["pid"])
    stopped = [gateway.children()[0], *of_the_job(engine)["workers"]]
    stop(*stopped)
    delivers(engine, receiver, "without-workers")
    wait_until(lambda: all(map(killed, stopped)), "all of them are killed", timeout_s=PATIENCE_S)
    wait_until(lambda: len(gateway.children()) == 2, "the gateway has two workers again", timeout_s=PATIENCE_S)

    daemon: list[psutil.Process] = []

    def stopped_daemon() -> bool:
        daemon[:] = of_the_job(engine)["daemon"]
        with contextlib.suppress(psutil.NoSuchProcess):  # just replaced by Spark
            stop(*daemon)
            return bool(daemon)
        return False

    wait_until(stopped_daemon, "the daemon is stopped", timeout_s=PATIENCE_S)
    wait_until(lambda: all(map(killed, daemon)), "the daemon is killed", timeout_s=PATIENCE_S)
    for worker in of_the_job(engine)["workers"]:
        worker.kill()
    delivers(engine, receiver, "without-daemon")

    def counted() -> dict[str, float]:
        now = Scrape.of(get(metrics, timeout=60).decode())
        return {name: now.sum(f"arborcast_{name}_hung_workers_total") for name in ("gateway", "dispatch")}

    # Spark may have ended some of the idle workers before; at least one had a task.
    wait_until(lambda: counted()["gateway"] == 1 and counted()["dispatch"] >= 2, "counted")
    assert {name: one["restarts"] for name, one in engine.status()["parts"].items()} == dict.fromkeys(PARTS, 0)
    log = (engine.home / "log" / "dispatch.log").read_text()
    assert log.count("and was killed; Spark replaces it") == counted()["dispatch"]


@pytest.mark.parametrize("others", [("kafka", "jvm"), ("gateway", "driver")], ids="+".join)
def test_a_part_that_is_stopped_is_restarted(engine: Engine, receiver: Receiver, others: tuple[str, str]) -> None:
    """Two at a time: Kafka and the job's JVM; the parent of the gateway's workers and the job's driver."""
    own, of_job = others
    before = engine.status()["parts"]
    stopped = [psutil.Process(before[own]["pid"]), *of_the_job(engine)[of_job]]
    assert len(stopped) == 2
    stop(*stopped)
    wait_until(
        lambda: part(engine, own)["silent_s"] > 0 or killed(stopped[0]), "its silence is noticed", timeout_s=PATIENCE_S
    )
    # Commands do not wait for them in the meantime.
    engine.run("top", "--once", check=False)
    asked = {check["name"]: check["level"] for check in json.loads(engine.run("doctor", "--json", check=False).stdout)}
    assert "engine" in asked, "doctor ends while a part hangs"

    def back(name: str) -> bool:
        now = part(engine, name)
        return bool(now["hangs"] > before[name]["hangs"] and now["state"] == "ready" and not now["silent_s"])

    for name in (own, "dispatch"):
        wait_until(lambda name=name: back(name), f"{name} is back", timeout_s=PATIENCE_S)  # type: ignore[misc]  # mypy infers no lambda with a default
        assert "did not answer for" in part(engine, name)["last_exit"]
        assert "is stopped) and was killed" in part(engine, name)["last_exit"]
    delivers(engine, receiver, f"after-{own}")
    shown = engine.run("status").stdout
    assert f"{own} was restarted once; last time it did not answer for" in shown
    metrics = Scrape.of(get(f"{engine.status()['addresses']['metrics']}/metrics", timeout=60).decode())
    assert metrics.by("arborcast_part_hangs_total", "part")[own] == 1


def test_down_does_not_wait_for_a_stopped_process(engine: Engine) -> None:
    status = engine.status()
    job = of_the_job(engine)
    stop(*job["driver"], *job["jvm"], *(psutil.Process(status["parts"][name]["pid"]) for name in ("kafka", "gateway")))
    stop(psutil.Process(status["pid"]))
    engine.down()
    assert engine.processes() == []
