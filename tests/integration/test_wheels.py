"""Both distributions in separate environments, outside a clone: the engine runs, and its client connects to it."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wheels import client_wheel, engine_wheel, link_client_needs, without_ours

pytestmark = [pytest.mark.long, pytest.mark.stack]

CONVERSATION = """
import queue, sys
from arborcast.client import Client, LegacyClient, LegacyFuturesClient
from arborcast.client.listener import Listener

url, came = sys.argv[1], queue.Queue()
with Listener(came.put) as new, Listener(came.put) as old, Client(url) as client, LegacyClient(url) as legacy:
    subscription = client.subscribe("tour//.", to=new.url)
    print(client.notify("tour/a", "<n>1</n>"))
    message = came.get(timeout=300)
    print(message.topic, message.payload.decode(), message.notification_id)
    client.unsubscribe(subscription)
    subscription = legacy.subscribe("tour", to=old.url)
    legacy.notify("tour:b", "<n>2</n>")
    print(came.get(timeout=300).payload.decode())
    with LegacyFuturesClient(url) as later:
        later.notify("tour:b", "<n>3</n>").result(300)
    print(came.get(timeout=300).payload.decode())
    legacy.unsubscribe(subscription)
"""


def environment(folder: Path, *wheels: Path) -> Path:
    """A virtual environment with these wheels alone; the test adds the folder of their dependencies."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, env=without_ours())
    return python


def packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python*/site-packages")
    return found


class Installed:
    """The command of an installed engine, run in a folder without any file of a clone."""

    def __init__(self, command: Path, folder: Path) -> None:
        self._command = command
        self._folder = folder

    def run(self, *arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [self._command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=without_ours(),
            timeout=450,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env=without_ours(),
        )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("engine")
    python = environment(folder / "venv", client_wheel(folder), engine_wheel(folder))
    # Dependencies are those of this environment. Its .pth files, which point to the source tree, are not read.
    (packages(python) / "others.pth").write_text(sysconfig.get_path("purelib"))
    (work := folder / "work").mkdir()
    # For a machine five times slower.
    (work / "arborcast.toml").write_text("[stack]\nstart_timeout_s = 400\nstop_timeout_s = 60\n")
    engine = Installed(python.with_name("arborcast"), work)
    engine.run("up", "--detach", "--gateway-port", "0", "--kafka-port", "0", "--metrics-port", "0")
    yield engine
    engine.run("down")


def test_an_installed_engine_delivers(engine: Installed) -> None:
    assert "(commit 0123456789ab)" in engine.run("--version")
    with engine.start("listen", "hall//.", "--count", "1", "--json") as listening:
        assert listening.stderr is not None
        assert "listening to hall//." in listening.stderr.readline()
        identifier = engine.run("publish", "hall/a", "-", text="<n>1</n>").strip()
        out, _ = listening.communicate(timeout=300)
    assert (listening.returncode, json.loads(out)["notification_id"]) == (0, identifier)
    assert "attempt 1: HTTP 202" in engine.run("trace", identifier)


def test_an_installed_client_publishes_and_listens(engine: Installed, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", client_wheel(tmp_path))
    link_client_needs(packages(python))
    url = json.loads(engine.run("status", "--json"))["addresses"]["gateway"]
    done = subprocess.run(
        [python, "-W", "error", "-c", CONVERSATION, url],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=without_ours(),
        timeout=450,
    )
    assert done.returncode == 0, done.stderr
    published, *received = done.stdout.splitlines()
    assert received == [f"tour/a <n>1</n> {published}", "<n>2</n>", "<n>3</n>"]
