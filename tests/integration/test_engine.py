"""The whole embedded engine, as users run it: commands, real Kafka, real Spark, real subscribers, kills."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from lxml import etree

from arborcast.cli.reference import metric_names
from arborcast.engine.monitoring.samples import Scrape
from tests.support.command import COMMAND, Engine
from tests.support.console_engine import ConsoleEngine
from tests.support.forked_command import forked_command
from tests.support.gateway_process import ROOT
from tests.support.held_port import HeldPort
from tests.support.receiver import Received, Receiver
from tests.support.soap_messages import MEDIA_TYPES, WSNT, envelope, message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.ldap]

PARTS = ("kafka", "gateway", "dispatch", "console")

OF_PUSHES = (
    *("arborcast_delivery_seconds_count", "arborcast_push_seconds_count", "arborcast_push_bytes_total"),
    "arborcast_dispatch_notifications_total",
)


@pytest.fixture
def engine(console_engine: ConsoleEngine) -> Engine:
    """Shared with tests of the console."""
    return console_engine.engine


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The PATH of scripts."""
    with forked_command(tmp_path_factory.mktemp("c")) as folder:
        yield f"{folder}:{Path(COMMAND).parent}:{os.environ['PATH']}"


def run_script(program: str, environment: dict[str, str], **more: Any) -> str:
    """The output of a script, which must succeed."""
    command = ["/bin/bash", "-euo", "pipefail", "-c", program]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=450, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def post(engine: Engine, body: str, soap: str = "1.1", address: str | None = None) -> requests.Response:
    return requests.post(
        address or engine.broker,
        data=envelope(body, soap),
        headers={"Content-Type": MEDIA_TYPES[soap]},
        timeout=60,
    )


def notify(engine: Engine, topic: str, text: str, soap: str = "1.1") -> None:
    response = post(engine, f"<wsnt:Notify>{message(topic, f'<x>{text}</x>')}</wsnt:Notify>", soap)
    assert response.status_code == 202, response.text


def pushed(request: Received) -> list[tuple[str, str]]:
    """(topic, payload text) of each message in a push, read with lxml alone."""
    root = etree.fromstring(request.body)
    found = []
    for each in root.iter(f"{{{WSNT}}}NotificationMessage"):
        payload = each.find(f"{{{WSNT}}}Message")
        assert payload is not None
        found.append(((each.findtext(f"{{{WSNT}}}Topic") or "").strip(), "".join(map(str, payload.itertext()))))
    return found


def everything_pushed(receiver: Receiver, path: str) -> list[str]:
    return [text for request in receiver.requests if request.path == path for _, text in pushed(request)]


def test_the_python_of_the_readme(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (code,) = [each for each in blocks if "Queue" in each]
    assert "timeout=30" in code
    code = code.replace("http://127.0.0.1:8080", engine.gateway).replace("timeout=30", "timeout=300")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "building/floor-1/temperature <reading xmlns='urn:my'>21.5</reading>\n"


def test_the_tutorial(engine: Engine, commands: str) -> None:
    """Each block of commands as printed, one after the other, in one shell; the engine already runs."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    start, listen, *blocks, stop = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert "arborcast up --detach" in start
    assert stop.split() == ["arborcast", "down"]
    port = HeldPort()
    program = "\n".join(blocks).replace("http://127.0.0.1:8080", engine.gateway).replace("9999", str(port.number))
    listening = engine.start(*shlex.split(listen)[1:])
    assert listening.stderr is not None
    assert "listening to building//." in listening.stderr.readline()
    printed = run_script(program, engine.environment({"PATH": commands}))
    received, _ = listening.communicate(timeout=300)
    assert "21.5" in received
    assert "celsius" in printed.partition("wsnt:Notify")[2], "the receiver of the page got the message"
    assert "all accounted for" in printed
    listed = engine.run_here("subscriptions", "list", "--endpoint", f"http://127.0.0.1:{port.number}/inbox", "--json")
    engine.run_here("unsubscribe", json.loads(listed.stdout)["subscriptions"][0]["subscription"])


@pytest.mark.skipif(shutil.which("jq") is None, reason="a page pipes JSON through jq")
@pytest.mark.parametrize("page", ["topics.md", "deliveries.md", "command-line.md"])
def test_the_commands_of_a_page(engine: Engine, commands: str, receiver: Receiver, tmp_path: Path, page: str) -> None:
    """As printed, with ids of a delivery that was given up."""
    engine.run_here("topics", "remove", "plant", "--recursive", check=False)
    address = engine.run_here("subscribe", "plant//.", "--to", receiver.url("/status/404")).stdout.strip()
    number = engine.run_here("publish", "plant/line1", "-", input="<reading/>").stdout.strip()

    def given_up() -> bool:
        letters = engine.run_here("dead-letters", "list", "--json").stdout
        return number in letters

    wait_until(given_up, "a dead letter", timeout_s=300)
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    program = "\n".join(each for each in blocks if "ldap://" not in each and "completion" not in each)
    assert program
    program = program.replace("https://orders.example/in", receiver.url("/status/404"))
    # The subscription is not suspended; the command prints that.
    program = program.replace("arborcast subscriptions resume $S", "! arborcast subscriptions resume $S")
    # No delivery waits.
    program = program.replace("arborcast waiting probe", "! arborcast waiting probe")
    shell = engine.environment({"PATH": commands, "N": number, "S": address.rpartition("/")[2]})
    try:
        run_script(program, shell, input="y\n" * 9, cwd=tmp_path)
    finally:
        engine.run_here("unsubscribe", address)


def blocks_of(engine: Engine, page: str, language: str = "sh") -> list[str]:
    text = (ROOT / "docs" / page).read_text().replace("http://127.0.0.1:8080", engine.gateway)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_page_about_cloud_events(engine: Engine, commands: str, receiver: Receiver) -> None:
    """The subscriber first, so that it gets the events that the page publishes before."""
    publish_json, publish_xml, subscribing = blocks_of(engine, "cloudevents.md")
    program = "\n".join((subscribing, publish_json, publish_xml))
    program = program.replace("http://127.0.0.1:9999/events", receiver.url("/events"))
    address, secret = re.findall(r"http\S+|whsec_\S+", run_script(program, engine.environment({"PATH": commands})))
    names: dict[str, Any] = {}
    (code,) = blocks_of(engine, "cloudevents.md", "python")
    exec(compile(code, "docs/cloudevents.md", "exec"), names)  # noqa: S102  # of our own page
    pushes = receiver.wait_for(2, "/events", timeout=300)
    read = [names["received"](each.headers, each.body, secret) for each in pushes]
    assert read == [
        ("shop/orders", {"total": 12.5}),
        ("shop/orders", '<order xmlns="urn:shop"><total>12.5</total></order>'),
    ]
    engine.run_here("unsubscribe", address)


def test_the_page_about_event_streams(engine: Engine) -> None:
    """Each command gets the events of its condition."""
    environment = engine.environment({"no_proxy": "127.0.0.1"})
    following = [
        subprocess.Popen(["/bin/bash", "-c", f"exec {each}"], env=environment, stdout=subprocess.PIPE, text=True)
        for each in blocks_of(engine, "event-streams.md")
    ]
    try:
        metrics = f"{engine.status()['addresses']['metrics']}/metrics"

        def open_streams() -> float:
            return Scrape.of(requests.get(metrics, timeout=120).text).sum("arborcast_gateway_event_streams")

        wait_until(lambda: open_streams() == len(following), "all streams are open", timeout_s=300)
        for total in (5, 15):
            payload = f"<order><total>{total}</total></order>"
            engine.run_here("publish", "shop/streams", "-", input=payload)
        plain, lines = following
        assert plain.stdout is not None
        assert lines.stdout is not None
        data = (line for line in iter(plain.stdout.readline, "") if line.startswith("data: "))
        found = [json.loads(line.removeprefix("data: "))["data"] for line in islice(data, 2)]
        assert found == [f"<order><total>{total}</total></order>" for total in (5, 15)]
        line = next(each for each in iter(lines.stdout.readline, "") if each.strip())
        assert "<total>15<" in json.loads(line)["data"]
    finally:
        for each in following:
            each.kill()
            each.communicate(timeout=300)


def test_status_lists_the_parts(engine: Engine) -> None:
    status = engine.status()
    assert status["running"]
    assert status["ready"]
    for part in PARTS:
        document = status["parts"][part]
        assert document["state"] == "ready"
        assert psutil.pid_exists(document["pid"])
        assert document["memory_bytes"] > 10_000_000
        assert document["cpu_seconds"] > 0
        assert document["since"].endswith("Z")
    assert requests.get(f"{status['addresses']['console']}/topics", timeout=60).status_code == 200


def test_files_of_the_engine_are_private(engine: Engine) -> None:
    assert engine.home.stat().st_mode & 0o7777 == 0o700
    processes = engine.processes()
    assert len(processes) > len(PARTS)
    for process in processes:
        facts = Path(f"/proc/{process.pid}/status").read_text()
        # /proc has no Umask for a process that has just exited.
        assert "Umask:\t0077" in facts or "State:\tZ" in facts, facts
    assert not engine.home.joinpath("log", "gateway.log").stat().st_mode & 0o077


def test_a_busy_engine_is_shown_and_logs_nothing(engine: Engine, receiver: Receiver, tmp_path: Path) -> None:
    engine.run_here("subscribe", "seen//.", "--to", receiver.url("/seen"))
    notify(engine, "seen/a", "first")
    wait_until(lambda: everything_pushed(receiver, "/seen") == ["first"], "the first message", timeout_s=300)
    metrics = engine.status()["addresses"]["metrics"]

    def readings() -> Scrape:
        return Scrape.of(requests.get(f"{metrics}/metrics", timeout=120).text)

    def logged() -> list[str]:
        # The directory's file takes the new topic a moment later, with a line in the log.
        return [(engine.home / "log" / f"{part}.log").read_text() for part in ("dispatch", "supervisor")]

    before, said = readings(), logged()
    for _ in range(20):
        body = "".join(message("seen/a", f"<x>{number}</x>") for number in range(50))
        assert post(engine, f"<wsnt:Notify>{body}</wsnt:Notify>").status_code == 202
    wait_until(lambda: len(everything_pushed(receiver, "/seen")) >= 1_001, "a thousand messages", timeout_s=300)

    def delivered(now: Scrape) -> float:
        return now.sum("arborcast_attempts_total", state="delivered")

    def accepted(now: Scrape) -> float:
        return now.sum("arborcast_gateway_accepted_total", component="gateway")

    def counted(now: Scrape) -> bool:
        # The figures of the parts, and of each worker, may differ in age by a second.
        grown = all(now.sum(name) > before.sum(name) for name in OF_PUSHES)
        return grown and min(delivered(now) - delivered(before), accepted(now) - accepted(before)) >= 1_000

    wait_until(lambda: counted(readings()), "all of them counted", timeout_s=300)
    after = readings()
    assert logged() == said, "a busy, healthy engine logs nothing"
    # Earlier messages to this engine may be missing in the first reading: fewer than one request here has.
    assert accepted(after) - accepted(before) < 1_050
    assert after.names <= metric_names()
    assert set(after.by("arborcast_process_memory_bytes", "process")) == {
        *("kafka", "gateway", "console", "supervisor", "dispatch-jvm", "dispatch-driver", "dispatch-workers")
    }
    assert set(after.by("arborcast_part_ready", "part").values()) == {1.0}
    # Spark's virtual machine through its driver, Kafka's by its file.
    for part in ("dispatch", "kafka"):
        used, committed, most = (
            after.sum(f"jvm_memory_{which}_bytes", component=part) for which in ("used", "committed", "max")
        )
        assert 1_000_000 < used <= committed <= most
        assert after.sum("jvm_gc_collection_seconds_count", component=part) >= 1
        assert after.sum("jvm_classes_currently_loaded", component=part) > 1_000
    # A batch that ends during the reading is settled a moment later.
    wait_until(lambda: readings().sum("arborcast_dispatch_lag_records", query="push") == 0, "no lag", timeout_s=300)
    assert after.by("arborcast_dispatch_mode", "mode") in ({"realtime": 1, "batch": 0}, {"realtime": 0, "batch": 1})

    frame = engine.run_here("top", "--once").stdout.splitlines()
    assert "ready" in frame[0]
    assert any(line.startswith("dispatch-workers") for line in frame)
    # Which endpoints are listed depends on other pushes.
    assert any(line.startswith("slowest endpoints") for line in frame)
    assert any(line.startswith("http://") for line in frame)
    report = tmp_path / "report.html"
    engine.run_here("report", "--since", "10m", "--output", str(report))
    assert "Delivery latency" in report.read_text()


def interrupt(running: subprocess.Popen[str], moment: str) -> None:
    """Ctrl-C after this output."""
    assert running.stderr is not None
    printed = []
    for line in running.stderr:
        printed.append(line)
        if line.startswith(moment):
            break
    else:
        pytest.fail(f"no line {moment!r} in {''.join(printed)}")
    # As from a terminal: to every process of the group at once.
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors


@pytest.mark.chaos
@pytest.mark.parametrize("moment", [pytest.param("kafka: starting", marks=pytest.mark.long), "kafka: ready"])
def test_ctrl_c_while_it_starts(tmp_path: Path, moment: str) -> None:
    engine = Engine(tmp_path)
    interrupt(engine.start("up", "--demo", "--gateway-port", "0", "--kafka-port", "0"), moment)
    assert engine.processes() == []


@pytest.mark.long
@pytest.mark.chaos
def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.up()
    os.kill(engine.status()["pid"], signal.SIGKILL)
    wait_until(lambda: engine.processes() == [], "everything ended with its supervisor", timeout_s=300)
    interrupt(engine.start("up", "--gateway-port", "0", "--kafka-port", "0"), "ready: ")
    assert engine.processes() == []
