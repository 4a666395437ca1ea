"""The console as a process, with the settings file of users."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from arborcast.core.settings import KafkaSettings
from arborcast.engine.settings.loading import toml
from tests.support.certificates import Certificates
from tests.support.held_port import HeldPort
from tests.support.process import LoggedProcess, killed
from tests.support.waiting import TIMEOUT_S


@contextmanager
def running_console(
    home: Path,
    kafka: KafkaSettings,
    *lines: str,
    host: str = "127.0.0.1",
    tls: Certificates | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a console that runs until the block ends, and its process."""
    port = HeldPort()
    file = home / "arborcast.toml"
    file.write_text(
        "\n".join(
            [
                f"home = {toml(str(home))}",
                '[stack]\nbroker = "external"',
                "[kafka]",
                f"bootstrap_servers = {toml(kafka.bootstrap_servers)}",
                f"prefix = {toml(kafka.prefix)}",
                f"[console]\nport = {port.number}\nhost = {toml(host)}",
                *lines,
            ]
        )
    )
    made = LoggedProcess([sys.executable, "-m", "arborcast.console", "--config", str(file)], home / "console.log")
    port.for_life_of(made)
    url = f"http{'s' * bool(tls)}://127.0.0.1:{port.number}"
    with killed(made) as run:
        run.start()
        run.wait_for(lambda: _answers(f"{url}/topics", tls), "the console shows topics", timeout_s)
        yield url, psutil.Process(run.pid)
        assert run.stop() == 0, run.text()
        assert "Traceback" not in run.text(), run.text()


def trust(tls: Certificates | None) -> ssl.SSLContext | bool:
    """The parameter `verify` of httpx."""
    return ssl.create_default_context(cafile=tls.authority) if tls else True


def _answers(url: str, tls: Certificates | None) -> bool:
    try:
        return httpx.get(url, verify=trust(tls), follow_redirects=True).status_code == 200
    except httpx.TransportError:
        return False
