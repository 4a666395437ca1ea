"""An engine as started by `arborcast up`, and kills of its parts."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded import state
from arborcast.engine.embedded.home import Home
from arborcast.engine.processes.processes import free_port
from tests.support.command import Engine

PARTS = ("gateway", "kafka", "jvm", "driver", "worker", "supervisor")


@dataclass(frozen=True)
class Usage:
    """The resources of all processes of a part; memory is PSS in MiB."""

    processes: int
    memory_mib: float
    threads: int
    descriptors: int


class Victim:
    """An engine on fixed ports, so that its clients reach it again after a kill."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        self.home = Home(home)
        self.gateway_port, self.kafka_port = free_port(), free_port()
        self.kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{self.kafka_port}")
        self.gateway = f"http://127.0.0.1:{self.gateway_port}"
        self._settings = {f"ARBORCAST_{name.upper().replace('.', '_')}": value for name, value in settings.items()}
        self._engine = Engine(home)

    def up(self) -> None:
        """Start it with `arborcast up`; returns when it is ready. Raises AssertionError with the output."""
        done = self._engine.run(
            *("up", "--detach", "--gateway-port", str(self.gateway_port), "--kafka-port", str(self.kafka_port)),
            env=self._settings,
            check=False,
        )
        assert done.returncode == 0, f"up: {done.returncode}\n{done.stdout}\n{done.stderr}"

    def down(self) -> None:
        """Stop it with `arborcast down`."""
        self._engine.run("down", check=False)

    def output(self, command: str) -> str:
        """The output of a command, whatever its exit status."""
        done = self._engine.run(command, check=False, env={"COLUMNS": "200"})
        return done.stdout + done.stderr

    def end(self) -> None:
        """Stop it in any state, and kill the remaining processes."""
        self.down()
        for process in self._engine.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def ready(self) -> bool:
        """Whether its supervisor reports it as ready."""
        status = state.read(self.home.state_file)
        return status is not None and status.supervisor.process() is not None and status.ready

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The running processes by part. The console and the JVM's daemon are not in `PARTS`."""
        found: dict[str, list[psutil.Process]] = {part: [] for part in (*PARTS, "daemon", "console")}
        status = state.read(self.home.state_file)
        if status is None:
            return found
        ids = {"supervisor": status.supervisor, **{name: part.process for name, part in status.parts.items()}}
        for name, identity in ids.items():
            process = None if identity is None else identity.process()
            if process is not None:
                found["jvm" if name == "dispatch" else name].append(process)
        for child in (child for jvm in found["jvm"] for child in _children(jvm)):
            # The JVM also starts short-lived programs such as chmod.
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if any("dispatch_stream" in word for word in words):
                    found["driver"].append(child)
                elif any("daemon" in word for word in words):
                    found["daemon"].append(child)
                    found["worker"] += child.children()
        return found

    def kill(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """kill -9 of these parts at once; returns those with a running process."""
        running = self.processes()
        hit = []
        for part in parts:
            for process in running[part]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                    hit.append(part)
        return tuple(dict.fromkeys(hit))

    def restarts(self) -> dict[str, int]:
        """The number of restarts of each part since the supervisor's start."""
        status = state.read(self.home.state_file)
        return {} if status is None else {name: part.restarts for name, part in status.parts.items()}

    def usage(self) -> dict[str, Usage]:
        """The resources of each part."""
        found = {}
        for part, processes in self.processes().items():
            memory = threads = descriptors = count = 0
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    memory += process.memory_full_info().pss
                    threads += process.num_threads()
                    descriptors += process.num_fds()
                    count += 1
            found[part] = Usage(count, round(memory / 2**20, 1), threads, descriptors)
        return found

    def log(self, part: str, characters: int = 3000) -> str:
        """The end of a part's log."""
        with contextlib.suppress(OSError):
            return self.home.log(part).read_text(encoding="utf-8", errors="replace")[-characters:]
        return ""


@contextlib.contextmanager
def kept(home: Path | None, prefix: str) -> Iterator[Path]:
    """The folder of a run: this one, which is kept, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as temporary:
        folder = (home or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children()
    return []
