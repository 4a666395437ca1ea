"""The gateway as the process that users run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from lxml import etree

from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.certificates import Certificates
from tests.support.held_port import HeldPort

ROOT = Path(__file__).parents[2]


class GatewayRun:
    """One gateway under one settings file; it can be killed and started again on the same port.

    With `tls` it listens with the certificate `server`, and knows clients by those of the same authority; `session`
    trusts it. `more` are further sections of the settings file.
    """

    def __init__(
        self,
        folder: Path,
        kafka: KafkaSettings,
        *,
        directory: str = "none",
        fixed: bool = False,
        tls: Certificates | None = None,
        more: str = "",
        **gateway: object,
    ) -> None:
        self.port = HeldPort().for_life_of(self)
        self.base = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.session = requests.Session()
        # Else authorities that the environment names would count instead of ours.
        self.session.trust_env = False
        self.session.verify = tls.authority if tls else True
        self.broker = f"{self.base}/wsn/NotificationBroker"
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "gateway.log"
        self.config = folder / "arborcast.toml"
        settings = {"port": self.port} | gateway
        self.config.write_text(
            f'home = "home"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\nprefix = "{kafka.prefix}"\n'
            f"partitions = {kafka.partitions}\nrequest_timeout_s = {kafka.request_timeout_s}\n"
            f'[outbound]\nscope = "loopback"\n'
            f'[directory]\nkind = "{directory}"\n[topics]\nfixed = {str(fixed).lower()}\n[gateway]\n'
            + "".join(f"{key} = {value}\n" for key, value in settings.items())
            + (_tls_section(tls) if tls else "")
            + more
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running gateway."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, ready: bool = True) -> None:
        """Start the process; with `ready`, wait until it takes requests."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "arborcast.engine.gateway", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        if ready:
            self.wait_for(lambda: self.health("ready") == 200, "ready")

    def stop(self) -> int:
        """Ask it to stop; returns the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """kill -9."""
        return self._end(signal.SIGKILL)

    def health(self, which: str) -> int:
        """Status of /health/live or /health/ready, 0 when nobody answers."""
        try:
            return self.session.get(f"{self.base}/health/{which}", timeout=60).status_code
        except requests.RequestException:
            return 0

    def metric(self, name: str) -> float:
        """A metric without labels."""
        for line in self.session.get(f"{self.base}/metrics", timeout=60).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float = 120) -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self._process is None or self._process.poll() is None, f"the gateway ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"not {what} after {timeout} s: {self.log.read_text()}"
            time.sleep(0.02)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        return self._process.wait(120)


def _tls_section(tls: Certificates) -> str:
    return (
        f'[tls]\ncertificate_file = "{tls.certificate("server")}"\nkey_file = "{tls.key("server")}"\n'
        f'client_ca_file = "{tls.authority}"\n'
    )


@contextmanager
def gateway_run(
    folder: Path,
    kafka: KafkaSettings,
    *,
    directory: str = "none",
    fixed: bool = False,
    tls: Certificates | None = None,
    more: str = "",
    **gateway: object,
) -> Iterator[GatewayRun]:
    """A started gateway that is gone at the end."""
    run = GatewayRun(folder, kafka, directory=directory, fixed=fixed, tls=tls, more=more, **gateway)
    try:
        run.start()
        yield run
    finally:
        run.kill()


def post(url: str, body: str, version: str = "1.1") -> requests.Response:
    """The answer to a SOAP body that is taken."""
    answer = requests.post(url, data=soap.envelope(body, version), timeout=60)
    assert answer.status_code in (200, 202), answer.text
    return answer


def address(answer: requests.Response) -> str:
    """Of what was made."""
    return str(etree.fromstring(answer.content).findtext(".//{*}Address"))
