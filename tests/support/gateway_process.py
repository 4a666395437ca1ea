"""The gateway as a process with the settings file of users."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import IO

import requests
from lxml import etree

from arborcast.core.settings import KafkaSettings
from arborcast.engine.processes.processes import is_free
from tests.support import soap_messages as soap
from tests.support.certificates import Certificates
from tests.support.forked_gateway import ForkedGateway
from tests.support.held_port import HeldPort
from tests.support.process import ROOT as ROOT
from tests.support.process import LoggedProcess, Started, running
from tests.support.waiting import wait_until


class GatewayRun(LoggedProcess):
    """One gateway under one settings file; it can be killed and started again on the same port.

    With `tls` it listens with the certificate `server`, and verifies clients by the same authority, which `session`
    trusts. `directory` is its kind, or its file. `more` are further sections of the settings file. It is a fork of a
    process with the modules; `forked=False` starts the program: for a test of its command line or environment.
    """

    def __init__(
        self,
        folder: Path,
        kafka: KafkaSettings,
        *,
        directory: str | Path = "none",
        fixed: bool = False,
        tls: Certificates | None = None,
        more: str = "",
        forked: bool = True,
        **gateway: object,
    ) -> None:
        self._forked = forked
        self.port = HeldPort().for_life_of(self)
        self.base = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.session = requests.Session()
        # Environment variables must not replace the authorities.
        self.session.trust_env = False
        self.session.verify = tls.authority if tls else True
        self.broker = f"{self.base}/wsn/NotificationBroker"
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "arborcast.toml"
        settings = {"port": self.port} | gateway
        kind = f'"file"\nfile = "{directory}"' if isinstance(directory, Path) else f'"{directory}"'
        self.config.write_text(
            f'home = "home"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\nprefix = "{kafka.prefix}"\n'
            f"partitions = {kafka.partitions}\nrequest_timeout_s = {kafka.request_timeout_s}\n"
            f"max_record_bytes = {kafka.max_record_bytes}\n"
            f'[outbound]\nscope = "loopback"\n'
            f"[directory]\nkind = {kind}\n[topics]\nfixed = {str(fixed).lower()}\n[gateway]\n"
            + "".join(f"{key} = {value}\n" for key, value in settings.items())
            + (_tls_section(tls) if tls else "")
            + more
        )
        command = [sys.executable, "-m", "arborcast.engine.gateway", "--config", str(self.config)]
        super().__init__(command, folder / "gateway.log")

    def start(self, *, ready: bool = True) -> None:
        """Start the process; with `ready`, wait until it accepts requests."""
        wait_until(lambda: is_free(self.port), "the workers of the killed process have ended")
        super().start()
        if ready:
            self.wait_for(lambda: self.health("ready") == 200, "ready")

    def _launched(self, log: IO[bytes]) -> Started:
        return ForkedGateway(self.config, self.log) if self._forked else super()._launched(log)

    def _end(self, number: signal.Signals) -> int:
        status = super()._end(number)
        assert "Traceback" not in self.text(), self.text()
        return status

    def health(self, which: str) -> int:
        """Status of /health/live or /health/ready, 0 without an answer."""
        try:
            return self.session.get(f"{self.base}/health/{which}", timeout=60).status_code
        except requests.RequestException:
            return 0

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        for line in self.session.get(f"{self.base}/metrics", timeout=60).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)


def _tls_section(tls: Certificates) -> str:
    return (
        f'[tls]\ncertificate_file = "{tls.certificate("server")}"\nkey_file = "{tls.key("server")}"\n'
        f'client_ca_file = "{tls.authority}"\n'
    )


gateway_run = running(GatewayRun)


def post(url: str, body: str, version: str = "1.1") -> requests.Response:
    """The answer to a SOAP body, which must be accepted."""
    answer = requests.post(url, data=soap.envelope(body, version), timeout=60)
    assert answer.status_code in (200, 202), answer.text
    return answer


def address(answer: requests.Response) -> str:
    """The address in the answer."""
    return str(etree.fromstring(answer.content).findtext(".//{*}Address"))
