"""The units of deploy/systemd under systemd, on a host that the commands of docs/cluster.md install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from arborcast.client import Client, ClientError, Credentials, Retries
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.image.pods import (
    IMAGES,
    KAFKA_PORT,
    NODE,
    Host,
    buildah,
    missing,
    node_broker,
    own_network,
    page_commands,
    replaced,
    run,
    unmount_storage,
)
from tests.support.gateway_process import ROOT
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.image, pytest.mark.long, pytest.mark.timeout(3600)]

UNIT_FILES = ROOT / "deploy" / "systemd"
UNITS = ("arborcast-gateway", "arborcast-job", "arborcast-administrator")

# Those of the page, for clients elsewhere.
_SETTINGS = f"""
kafka.bootstrap_servers = "{NODE}:{KAFKA_PORT}"
gateway.host = "0.0.0.0"
gateway.public_url = "http://{NODE}:8080"
access.methods = "basic"
outbound.allow = "{NODE}"
stack.broker = "external"
"""

_CHECKOUT = "/srv/arborcast"

# Run by unshare, with the root folder; what a runtime of containers mounts for a systemd.
_BOOT = """
set -e
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for each in null zero full random urandom tty; do : > dev/$each; mount --bind /dev/$each dev/$each; done
mkdir dev/shm dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
pivot_root . mnt
umount -l /mnt
export container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec /lib/systemd/systemd --unit=basic.target --log-target=console
"""


class Machine:
    """A host whose first process is systemd."""

    def __init__(self, folder: Path) -> None:
        self._working = buildah("from", "localhost/arborcast-base")
        self._host = Host(f"arborcast-{os.getpid()}-machine", 210)
        self.address = self._host.address
        unified = Path("/sys/fs/cgroup/unified")
        self._cgroup = (unified if unified.is_dir() else unified.parent) / self._host.namespace
        self._log = folder / "systemd.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.root = Path(buildah("mount", self._working))
        for unit in ("systemd-modules-load.service", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"):
            (self.root / "etc/systemd/system" / unit).symlink_to("/dev/null")  # they are the kernel's, which is shared

    def install(self, commands: str) -> None:
        """Run commands before it is booted, with this machine's network, in a folder with deploy and dist."""
        places = {
            IMAGES / "sources.list": "/etc/apt/sources.list",
            Path("/usr/local/share/ca-certificates"): "/usr/local/share/ca-certificates",
            ROOT / "deploy": f"{_CHECKOUT}/deploy",
            IMAGES / "context" / "ours": f"{_CHECKOUT}/dist",
        }
        given = [f"--volume={source}:{target}:ro" for source, target in places.items() if source.exists()]
        given += ["--env=DEBIAN_FRONTEND=noninteractive", "--env=PIP_CERT=/etc/ssl/certs/ca-certificates.crt"]
        here = ("--isolation", "chroot", "--user", "root", "--workingdir", _CHECKOUT)
        (self.root / _CHECKOUT.lstrip("/")).mkdir()
        buildah("run", *here, *given, self._working, "bash", "-euc", commands)

    def user(self) -> int:
        """The number of the user that the commands have made."""
        (found,) = re.findall(r"^arborcast:x:(\d+):", (self.root / "etc" / "passwd").read_text(), re.MULTILINE)
        return int(found)

    def put(self, path: str, source: Path, owner: int = 0) -> None:
        """A copy of a file, for its owner alone unless that is root."""
        target = self.root / path.lstrip("/")
        run("install", "-D", "-m", "600" if owner else "644", "-o", str(owner), "-g", str(owner), source, target)

    def boot(self) -> None:
        """Start systemd, and wait until it has started what belongs to every host."""
        self._host.join()
        self._cgroup.mkdir()
        enter = f'echo $$ > {self._cgroup}/cgroup.procs; exec "$@"'
        inside = ("--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--cgroup")
        network = ("nsenter", f"--net=/run/netns/{self._host.namespace}")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", enter, "sh", *network, "unshare", *inside, "sh", "-c", _BOOT, "sh", self.root],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(
            lambda: self.systemctl("is-system-running", check=False) == "running",
            lambda: self.systemctl("list-units", "--state=failed", check=False),
            every_s=0.5,
        )

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        """Its output."""
        return self.run("systemctl", *arguments, check=check)

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command on the host; its output."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-3000:]
        children = psutil.Process(self._process.pid).children()
        if not children:
            return ""
        done = run("nsenter", "--target", str(children[0].pid), "--all", *command, check=check)
        return (done.stdout + done.stderr).strip()

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.systemctl("show", "--value", "--property", name, unit)

    def log(self, unit: str) -> str:
        """The end of the unit's output."""
        return self.run("journalctl", "--no-pager", "--lines=60", "--unit", unit, check=False)

    def remove(self) -> None:
        """End all of it."""
        if self._process is not None:
            for each in psutil.Process(self._process.pid).children():
                each.kill()  # with the first process of a namespace all others of it end
            self._process.wait(120)
        run("ip", "netns", "del", self._host.namespace, check=False)
        for folder, _, _ in os.walk(self._cgroup, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
        buildah("rm", self._working)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if lacks := missing():
        pytest.skip(lacks)
    if not (IMAGES / "job.cdx.json").exists():
        pytest.skip("there are no images: make image")
    folder = tmp_path_factory.mktemp("units")
    installing, starting = page_commands("On machines without containers").split("systemctl daemon-reload")
    made = Machine(folder)
    settings, users, federation = (folder / each for each in ("arborcast.toml", "users.toml", "federation.key"))
    settings.write_text(_SETTINGS)
    write_users({"anna": User("anna", hash_password("pa", log_n=4))}, users)
    run(Path(sys.executable).with_name("arborcast"), "federation", "key", federation)
    try:
        made.install(  # here, since the network of the pods has no route to the packages
            "mkdir -p /usr/share/man/man1; apt-get -qq update\n"
            "apt-get -qq install --yes --no-install-recommends systemd\n"
            + replaced(
                installing,
                ("make wheels\n", ""),
                ("apt install", "apt-get -qq install --yes --no-install-recommends"),
                ("kafka.example.org:9092", f"{NODE}:{KAFKA_PORT}"),
            )
        )
        with own_network():
            broker = node_broker(folder / "kafka")
            try:
                broker.start()
                made.boot()
                assert "<hello/>" in made.run("timeout", "1200", "bash", "-euc", f"systemctl daemon-reload{starting}")
                made.put("/etc/arborcast/arborcast.toml", settings)
                made.put("/etc/arborcast/federation.key", federation, made.user())
                made.put("/var/lib/arborcast/users.toml", users, made.user())
                made.systemctl("restart", *UNITS)
                yield made
            finally:
                broker.kill()
    finally:
        made.remove()
        unmount_storage()


@pytest.fixture(scope="module")
def receiver(machine: Machine) -> Iterator[Receiver]:
    with Receiver(host=NODE) as started, client(machine) as broker:
        wait_until(lambda: ready(machine), lambda: machine.log("arborcast-gateway"))
        broker.subscribe("load//.", to=started.url("/load"))
        yield started


def client(machine: Machine) -> Client:
    return Client(
        f"http://{machine.address}:8080/wsn/NotificationBroker",
        credentials=Credentials("anna", "pa"),
        retries=Retries(attempts=1),
        timeout_s=(5, 30),
    )


def ready(machine: Machine) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(f"http://{machine.address}:8080/health/ready", timeout=5).close()
        return True
    return False


def assert_delivers(machine: Machine, receiver: Receiver, text: str) -> None:
    """A notification is accepted, within some tries, and arrives."""

    def accepted() -> bool:
        with suppress(ClientError), client(machine) as broker:
            broker.notify("load/a", f"<n>{text}</n>")
            return True
        return False

    wait_until(accepted, lambda: machine.log("arborcast-gateway"), every_s=0.5)
    wait_until(
        lambda: any(f"<n>{text}</n>".encode() in each.body for each in receiver.received("/load")),
        lambda: machine.log("arborcast-job"),
        timeout_s=600,
        every_s=0.2,
    )


def test_they_deliver(machine: Machine, receiver: Receiver) -> None:
    assert_delivers(machine, receiver, "first")
    for unit in UNITS:
        assert machine.show(unit, "ActiveState") == "active", machine.log(unit)
        assert machine.show(unit, "NRestarts") == "0", machine.log(unit)


@pytest.mark.parametrize("unit", UNITS)
def test_they_are_confined(machine: Machine, receiver: Receiver, unit: str) -> None:
    main = machine.show(unit, "MainPID")
    status = machine.run("cat", f"/proc/{main}/status")
    found = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert found["Uid"] == [str(machine.user())] * 4
    assert found["CapBnd"] == found["CapEff"] == ["0000000000000000"]
    assert (found["NoNewPrivs"], found["Seccomp"]) == (["1"], ["2"])
    for path in ("/opt/arborcast/x", "/etc/x", "/var/x"):
        refused = machine.run("nsenter", "--target", main, "--mount", "touch", path, check=False)
        assert "Read-only file system" in refused


@pytest.mark.parametrize("unit", UNITS)
def test_they_reach_no_metadata_service(machine: Machine, receiver: Receiver, unit: str) -> None:
    metadata = "169.254.169.254"
    run("ip", "addr", "replace", f"{metadata}/32", "dev", "pods")
    group = machine.show(unit, "ControlGroup")
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    in_group = f'echo $$ > /sys/fs/cgroup{group}/cgroup.procs; exec "$@"'
    with Receiver(host=metadata) as service:
        near, far = (
            ("python3", "-c", connect, address, str(port))
            for address, port in ((NODE, receiver.port), (metadata, service.port))
        )
        assert machine.run(*far) == "", "outside of the unit"
        assert machine.run("sh", "-c", in_group, "sh", *near) == ""
        assert re.search("TimeoutError|PermissionError", machine.run("sh", "-c", in_group, "sh", *far, check=False))


@pytest.mark.parametrize("unit", UNITS)
def test_a_killed_unit_is_started_again(machine: Machine, receiver: Receiver, unit: str) -> None:
    machine.systemctl("kill", "--signal=KILL", "--kill-whom=main", unit)
    wait_until(
        lambda: machine.show(unit, "NRestarts") == "1" and machine.show(unit, "ActiveState") == "active",
        lambda: machine.log(unit),
        every_s=0.5,
    )
    assert_delivers(machine, receiver, f"after {unit}")


def test_they_end_in_order_and_in_their_time(machine: Machine, receiver: Receiver) -> None:
    for unit in UNITS:
        (allowed,) = re.findall(r"^TimeoutStopSec=(\d+)$", (UNIT_FILES / f"{unit}.service").read_text(), re.MULTILINE)
        began = time.monotonic()
        machine.systemctl("stop", unit)
        assert time.monotonic() - began < float(allowed)
        assert machine.show(unit, "Result") == "success", machine.log(unit)
