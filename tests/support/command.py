"""The `arborcast` command as a shell runs it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from typer.testing import CliRunner, Result

from arborcast.cli import app, main
from arborcast.core.settings import KafkaSettings


class Shell:
    """Runs commands under one settings file, if present, in this process. With `kafka` the file is written: for
    its logs, without an engine. `words` come before the arguments of a call."""

    def __init__(self, config: Path | None = None, kafka: KafkaSettings | None = None, *words: str) -> None:
        self._config = () if config is None else ("--config", str(config))
        self._words = words
        if config is not None and kafka is not None:
            config.write_text(
                f'home = "{config.parent}/home"\n[stack]\nbroker = "external"\n[kafka]\n'
                f'bootstrap_servers = "{kafka.bootstrap_servers}"\nprefix = "{kafka.prefix}"\n'
            )

    def __call__(self, *arguments: str, typed: str = "") -> str:
        """The output of the command. Raises its exceptions."""
        return self.command(*self._words, *arguments, typed=typed)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def command(self, *arguments: str, typed: str = "") -> str:
        """The same command without `words`."""
        done = self.run(*arguments, typed=typed)
        assert done.exit_code == 0, done.output
        return done.stdout

    def run(self, *arguments: str, typed: str = "", **env: str) -> Result:
        """Run the command with any exit status."""
        given = [*arguments, *self._config]
        return CliRunner().invoke(app, given, input=typed, env=env, catch_exceptions=False)


COMMAND = str(Path(sys.executable).parent / "arborcast")


@dataclass(frozen=True)
class Engine:
    """An embedded engine in a data directory, on free ports."""

    home: Path

    def run(
        self, *arguments: str, input: str | None = None, check: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            [COMMAND, *arguments], input=input, capture_output=True, text=True, env=self.environment(env), timeout=450
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def run_here(
        self, *arguments: str, input: str = "", check: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in this process: the same entry point, without the second of a process start."""
        # With a buffer: some commands write bytes.
        out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with (
            mock.patch.object(sys, "argv", [COMMAND, *arguments]),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode()))),
            mock.patch.dict(os.environ, self.environment(env)),
            redirect_stdout(out),
            redirect_stderr(errors),
        ):
            status: object = 0
            try:
                main()
            except SystemExit as ended:
                status = ended.code or 0
        assert isinstance(status, int), status
        printed, complained = (each.buffer.getvalue().decode() for each in (out, errors))
        assert not check or status == 0, f"{arguments}: {status}\n{printed}\n{complained}"
        return subprocess.CompletedProcess(arguments, status, printed, complained)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command in a process group and leave it running."""
        return subprocess.Popen(
            [COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(None),
            start_new_session=True,
            **options,
        )

    def environment(self, more: dict[str, str] | None) -> dict[str, str]:
        """The environment of every command of this engine."""
        return {**os.environ, "ARBORCAST_HOME": str(self.home), **(more or {})}

    def up(self, *arguments: str) -> None:
        """Start the engine, detached."""
        self.run("up", "--detach", "--gateway-port", "0", "--kafka-port", "0", *arguments)

    def down(self) -> None:
        self.run("down")
        for log in (self.home / "log").glob("*.log"):
            text = log.read_text(errors="replace")
            assert "Traceback" not in text, text

    def status(self) -> dict[str, Any]:
        """The output of `status --json`."""
        document: dict[str, Any] = json.loads(self.run_here("status", "--json", check=False).stdout)
        return document

    @property
    def gateway(self) -> str:
        """Base URL of the gateway."""
        address: str = self.status()["addresses"]["gateway"]
        return address

    @property
    def broker(self) -> str:
        """URL of the NotificationBroker."""
        address: str = self.status()["addresses"]["notification_broker"]
        return address

    def processes(self) -> list[psutil.Process]:
        """All processes with this data directory in their command line or as their working directory."""
        found = []
        for process in psutil.process_iter():
            try:
                text = " ".join(process.cmdline())
                if str(self.home) in text or process.cwd().startswith(str(self.home)):
                    found.append(process)
            except psutil.Error:
                continue
        return found
