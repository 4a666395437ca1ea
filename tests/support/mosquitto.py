"""Debian's mosquitto and its clients: an MQTT broker on loopback, with a private folder.

`python -m tests.support.mosquitto` finds them, or unpacks Debian's packages into the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import debian
from tests.support.certificates import Certificates
from tests.support.debian import DebianProgram, provision_main, required
from tests.support.held_port import HeldPort
from tests.support.process import LoggedProcess, running

_NAMES = ("usr/sbin/mosquitto", "usr/bin/mosquitto_pub", "usr/bin/mosquitto_sub")


def _binaries(root: Path) -> list[Path]:
    found = [root / name for name in _NAMES]
    return found if all(each.exists() for each in found) else []


MOSQUITTO = DebianProgram(
    "mosquitto",
    ("mosquitto", "mosquitto-clients"),
    _binaries,
    never=re.compile(r"^(libc6|libpam.*|libsystemd.*|.*-perl|perl.*)$"),
    rounds=4,
)


@dataclass(frozen=True)
class MosquittoInstall:
    """The paths of the programs. `libraries` is for LD_LIBRARY_PATH, empty for system-wide ones."""

    broker: Path
    publish: Path
    subscribe: Path
    libraries: tuple[Path, ...] = ()

    def write_password(self, file: Path, user: str, password: str) -> None:
        """A password_file of the broker with one user."""
        program = self.publish.parent / "mosquitto_passwd"
        command = [str(program), "-b", "-c", str(file), user, password]
        subprocess.run(command, check=True, env=debian.environment(self.libraries), capture_output=True)


def provision(say: Callable[[str], None] = print) -> MosquittoInstall:
    """The system's programs, else those in the cache, else Debian's. Raises Unavailable."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    found = [Path(each) for name in _NAMES if (each := shutil.which(Path(name).name, path=path))]
    if len(found) == len(_NAMES):
        return _at(found, ())
    root = MOSQUITTO.root if MOSQUITTO.starts(MOSQUITTO.root) else MOSQUITTO.unpack(say)
    say(f"mosquitto: {root}")
    return _at(_binaries(root), MOSQUITTO.libraries(root))


def _at(programs: Sequence[Path], libraries: tuple[Path, ...]) -> MosquittoInstall:
    broker, publish, subscribe = programs
    return MosquittoInstall(broker, publish, subscribe, libraries)


@pytest.fixture(scope="session")
def mosquitto_install() -> MosquittoInstall:
    """The install, or skip the test with a line in the summary; with CI=true a missing one fails the run."""
    return required(provision, "NO MOSQUITTO, so nothing was tested against an MQTT broker")


class Received(NamedTuple):
    """A line of mosquitto_sub."""

    topic: str
    payload: str
    retained: bool
    properties: dict[str, str]
    expiry: str


class Mosquitto(LoggedProcess):
    """One broker with its sessions on disk. It can be killed and started again on the same port."""

    def __init__(
        self, install: MosquittoInstall, folder: Path, more: str = "", tls: Certificates | None = None
    ) -> None:
        self.install = install
        self.folder = folder
        self.tls = tls
        folder.mkdir(parents=True, exist_ok=True)
        self.port = HeldPort().for_life_of(self)
        config = folder / "mosquitto.conf"
        anonymous = "" if "password_file" in more else "allow_anonymous true\n"
        secure = (
            f"cafile {tls.authority}\ncertfile {tls.certificate('server')}\nkeyfile {tls.key('server')}\n"
            if tls
            else ""
        )
        # As root it would change to another user, without the right to write into this folder.
        user = "" if os.geteuid() else "user root\n"
        config.write_text(
            f"{user}listener {self.port} 127.0.0.1\n{secure}{anonymous}persistence true\n"
            f"persistence_location {folder}/\nautosave_on_changes true\nautosave_interval 1\n"
            f"max_queued_messages 100000\nset_tcp_nodelay true\n{more}"
        )
        super().__init__(
            [str(install.broker), "-c", str(config), "-v"],
            folder / "mosquitto.log",
            env=debian.environment(install.libraries),
        )

    @property
    def url(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        super().start()
        self.wait_for(self._answers, "mosquitto listens")

    def save(self) -> None:
        """Make the broker write its sessions to disk, since kill -9 loses unwritten ones."""
        saved = self.text().count("Saving in-memory database")
        os.kill(self.pid, signal.SIGUSR1)
        self.wait_for(lambda: self.text().count("Saving in-memory database") > saved, "the sessions are saved")

    def publish(self, topic: str, *payloads: str, more: Sequence[str] = ()) -> None:
        """Publish these with mosquitto_pub, or with the options `more`; returns when all are acknowledged."""
        form = [] if not payloads else ["-s"] if len(payloads) == 1 else ["-l"]
        command = [*self._client(self.install.publish), "-t", topic, *form, *more]
        subprocess.run(
            command,
            input="\n".join(payloads).encode(),
            check=True,
            timeout=240,
            env=self._environment(),
            capture_output=True,
        )

    def run(self, program: str) -> None:
        """Run a shell command with the clients on its path."""
        folder = str(self.install.publish.parent)
        environment = self._environment() | {"PATH": f"{folder}:{os.environ['PATH']}"}
        command = ["/bin/bash", "-euo", "pipefail", "-c", program]
        subprocess.run(command, check=True, timeout=240, env=environment, capture_output=True)

    @contextmanager
    def subscriber(self, topic: str, session: str = "") -> Iterator[Subscriber]:
        """mosquitto_sub with an active subscription to this topic. With a `session` the broker keeps it."""
        with running(Subscriber)(self, topic, session) as started:
            started.wait_for(lambda: "Subscribed" in started.text(), "mosquitto_sub has subscribed")
            yield started

    def _client(self, program: Path) -> list[str]:
        tls = ["--cafile", self.tls.authority] if self.tls else []
        return [str(program), "-V", "5", "-h", "127.0.0.1", "-p", str(self.port), "-q", "1", *tls]

    def _environment(self) -> dict[str, str]:
        return debian.environment(self.install.libraries)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True


class Subscriber(LoggedProcess):
    """mosquitto_sub and its received messages."""

    _number = 0

    def __init__(self, broker: Mosquitto, topic: str, session: str) -> None:
        Subscriber._number += 1
        kept = ["-i", session, "-c", "-x", "86400"] if session else []
        command = [
            *("stdbuf", "-oL"),  # otherwise it writes only full buffers
            *broker._client(broker.install.subscribe),
            "-t",
            topic,
            *kept,
            "-d",
            "-F",
            "\x1e%t\x1f%p\x1f%r\x1f%P\x1f%E",
        ]
        super().__init__(command, broker.folder / f"sub-{Subscriber._number}.log", env=broker._environment())

    @property
    def received(self) -> list[Received]:
        """All messages so far, in order. An incomplete line is left out."""
        found = []
        for entry in self.text().split("\x1e")[1:]:
            fields = entry.split("\x1f")
            if len(fields) < 5 or "\n" not in fields[4]:
                break
            topic, payload, retained, properties, rest = fields
            pairs = (each.partition(":") for each in properties.split(" ") if each)
            found.append(
                Received(
                    topic, payload, retained == "1", {name: value for name, _, value in pairs}, rest.splitlines()[0]
                )
            )
        return found

    def wait_for_number(self, number: int) -> list[Received]:
        """`received`, once there are this many."""
        self.wait_for(lambda: len(self.received) >= number, f"{number} messages")
        return self.received


running_mosquitto = running(Mosquitto)


@pytest.fixture
def mosquitto(mosquitto_install: MosquittoInstall, tmp_path: Path) -> Iterator[Mosquitto]:
    """A running broker for one test."""
    with running_mosquitto(mosquitto_install, tmp_path / "mosquitto") as broker:
        yield broker


if __name__ == "__main__":
    sys.exit(provision_main("mosquitto", "the MQTT", provision))
