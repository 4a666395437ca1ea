"""Engines of a federation and their administrator, as processes."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import threading
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from arborcast.admin.control_log import read_table
from arborcast.core.security.keyring import add_key
from arborcast.core.security.signatures import new_secret
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.federation.calls import Administrator
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.topology import Topology
from arborcast.topic_model.records.notifications import Notification
from tests.support.broker import notifications_in
from tests.support.dispatch_process import DispatchProcess
from tests.support.gateway_process import GatewayRun
from tests.support.held_port import HeldPort
from tests.support.process import LoggedProcess
from tests.support.waiting import wait_until


class AdministratorRun(LoggedProcess):
    """The administrator process; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.key_file = folder / "federation.key"
        self.key_file.write_text(new_secret() + "\n")
        self.key_file.chmod(0o600)
        self.port = HeldPort().for_life_of(self)
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "arborcast.engine.administrator", "--key-file", str(self.key_file)]
        command += ["--port", str(self.port), "--state", str(folder / "members.json")]
        super().__init__(command, folder / "administrator.log")

    def start(self) -> None:
        """Start it and wait until it answers."""
        super().start()
        self.wait_for(self._answers, "it answers")

    @property
    def topology(self) -> Topology:
        """The current topology."""
        return Administrator(self.url, SharedKeys(str(self.key_file))).topology().result()

    def _answers(self) -> bool:
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return bool(opener.open(f"{self.url}/health/live", timeout=5).status == 200)
        except OSError:
            return False


class Line:
    """A TCP relay to a port of this machine, which can be cut as networks are: no reset, no data. Data in
    transit arrives after `mend`, even if its sender has given up."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Stop to pass data."""
        self._whole.clear()

    def mend(self) -> None:
        """Pass data again."""
        self._whole.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes a thread in accept(), which close() does not
        self._listener.close()
        self.mend()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            near.close()
            return
        with near, far:
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65_536):
                self._whole.wait()
                other.sendall(data)
            self._whole.wait()
            other.shutdown(socket.SHUT_WR)
        except OSError:
            # One side has closed: the other is to get this, too.
            for each in (one, other):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


class EngineRun:
    """The gateway of one engine, with or without a job. `name` is GROUP/NAME. With `line` peers connect to it through a
    relay; with `fixed` it takes no unknown topics; with `datagrams` it takes datagrams."""

    def __init__(
        self,
        folder: Path,
        kafka: KafkaSettings,
        administrator: AdministratorRun,
        name: str,
        *,
        line: bool = False,
        fixed: bool = False,
        datagrams: bool = False,
    ) -> None:
        self.kafka = dataclasses.replace(kafka, prefix=f"{kafka.prefix}{name.replace('/', '-')}.")
        self.folder = folder / name.replace("/", "-")
        self.folder.mkdir(parents=True)
        self.secrets = self.folder / "secrets.keys"
        add_key(self.secrets, "k1")
        group, _, own = name.partition("/")
        self.name = name
        self.gateway = GatewayRun(
            self.folder,
            self.kafka,
            fixed=fixed,
            more=(
                f'[secrets]\nkey_file = {json.dumps(str(self.secrets))}\n[federation]\nname = "{own}"\n'
                f'group = "{group}"\nadministrator = "{administrator.url}"\nurl = "{{}}"\n'
                f"key_file = {json.dumps(str(administrator.key_file))}\n"
                # No other process uses the port for datagrams either.
                f"datagram_port = {HeldPort().for_life_of(self) if datagrams else 0}\n"
            ),
        )
        self.line = Line(self.gateway.port) if line else None
        config, url = self.gateway.config, self.line.url if self.line else self.gateway.base
        config.write_text(config.read_text().replace('url = "{}"', f'url = "{url}"'))
        self.job: DispatchProcess | None = None

    def start_job(self, **settings: str | int | float) -> None:
        """Start a job with a small heap."""
        chosen: dict[str, str | int | float] = {
            "secrets.key_file": str(self.secrets),
            "dispatch.driver_memory_mb": 512,
            "dispatch.task_slots": 2,
            "retry.first_wait_s": 0.5,
            "retry.longest_probe_s": 2.0,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        self.job = DispatchProcess(self.folder / "job", self.kafka, chosen)
        self.job.start()

    def notifications(self) -> list[Notification]:
        """All notifications of its log, in order within each partition."""
        return notifications_in(self.kafka)

    def kill(self) -> None:
        """kill -9 of all its processes."""
        self.gateway.kill()
        if self.job is not None:
            self.job.kill()


@contextmanager
def federation(
    folder: Path,
    kafka: KafkaSettings,
    names: Sequence[str],
    jobs: bool = False,
    *,
    lines: bool = False,
    fixed: Collection[str] = (),
    datagrams: bool = False,
) -> Iterator[tuple[AdministratorRun, list[EngineRun]]]:
    """An administrator and the started gateways of these engines, in the order of registration; with `jobs`
    they have jobs, with `lines` relays, with `datagrams` all take datagrams. The engines in `fixed`
    take no new topics."""
    administrator = AdministratorRun(folder)
    engines: list[EngineRun] = []
    try:
        administrator.start()
        for name in names:
            taken = name in fixed
            engines.append(EngineRun(folder, kafka, administrator, name, line=lines, fixed=taken, datagrams=datagrams))
            engines[-1].gateway.start()
            wait_until(
                lambda: [each.engine for each in administrator.topology.members] == [each.name for each in engines],
                engines[-1].gateway.log.read_text,
            )
        if jobs:
            with ThreadPoolExecutor(len(engines)) as threads:
                for started in [threads.submit(each.start_job) for each in engines]:
                    started.result()
        yield administrator, engines
    finally:
        for engine in engines:
            engine.kill()
            if engine.line is not None:
                engine.line.close()
        administrator.kill()


def carried(engine: EngineRun, link: str) -> list[str]:
    """The expressions of an engine's open link; empty without one."""
    found = read_table(engine.kafka).get(link)
    return [] if found is None or found.terminates_ms is not None else found.selector().split("|")
