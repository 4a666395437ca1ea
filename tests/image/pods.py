"""The pods of deploy/kubernetes on this machine: a node in a network namespace, and containers run with runc.

A container gets what a kubelet gives it: the image's entry point, the manifest's command, environment, user and
volumes, a read-only root file system, no capabilities, the default seccomp profile, and namespaces of its own; a pod
has an address. Needs root, buildah and runc, and images of `make image`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arborcast.engine.embedded.kafka_broker import BrokerLayout
from tests.support.broker import BrokerProcess, broker_of
from tests.support.gateway_process import ROOT

Manifest = dict[str, Any]

IMAGES = ROOT / "build" / "image"
NODE = "10.88.0.1"
KAFKA_PORT = 9092
_GROUP = 10001
_SECCOMP = Path("/usr/share/containers/seccomp.json")
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def run(*command: str | Path, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end; what it writes is in the error when it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **more)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def buildah(*arguments: str) -> str:
    """Run buildah on the storage of `make image`."""
    storage = ("--root", str(IMAGES / "storage"), "--runroot", str(IMAGES / "run"), "--storage-driver", "overlay")
    return run("buildah", *storage, *arguments).stdout.strip()


def unmount_storage() -> None:
    """Undo what buildah mounts over its storage, which else cannot be removed."""
    run("umount", IMAGES / "storage" / "overlay", check=False)


def page_commands(heading: str) -> str:
    """The commands from nothing to a delivered notification, of a section of docs/cluster.md."""
    _, section = (ROOT / "docs" / "cluster.md").read_text().split(f"\n## {heading}\n")
    return section.split("\n```sh\n")[1].partition("```")[0]


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with another in place of each of these, which must be there."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def missing() -> str:
    """What this machine lacks; empty when pods can be run."""
    absent = [name for name in ("buildah", "runc", "kubectl", "ip", "nft") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "needs root"


@contextmanager
def own_network() -> Iterator[None]:
    """Put this thread, and what it starts, into a network namespace with a bridge that has the address NODE."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "unshare")
        for command in (
            "link set lo up",
            "link add pods type bridge",
            f"addr add {NODE}/24 dev pods",
            "link set pods up",
        ):
            run("ip", *command.split())
        yield
    finally:
        libc.setns(before, 0)
        os.close(before)


class _NodeLayout(BrokerLayout):
    """A broker that the pods reach as well."""

    def properties(self) -> dict[str, str]:
        own = super().properties()
        return own | {
            "listeners": f"{own['listeners']},PODS://{NODE}:{KAFKA_PORT}",
            "advertised.listeners": f"{own['advertised.listeners']},PODS://{NODE}:{KAFKA_PORT}",
            "listener.security.protocol.map": f"{own['listener.security.protocol.map']},PODS:PLAINTEXT",
        }


def node_broker(folder: Path) -> BrokerProcess:
    """A broker on the node, for the pods at KAFKA_PORT."""
    return broker_of(_NodeLayout(folder, 19092, 19093))


@contextmanager
def host(name: str, number: int) -> Iterator[Host]:
    """Another host of the network, with an address of its own."""
    made = Host(f"arborcast-{os.getpid()}-{name}", number)
    made.join()
    try:
        yield made
    finally:
        run("ip", "netns", "del", made.namespace, check=False)


class Host:
    """A network namespace with an address on the bridge."""

    def __init__(self, namespace: str, number: int) -> None:
        self.namespace = namespace
        self.address = f"10.88.0.{number + 10}"
        self._link = f"pod{number}"

    def join(self) -> None:
        """Make it, with a route through the node."""
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "link", "set", self._link, "master", "pods", "up")
        for command in (
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {NODE}",
        ):
            run("ip", "-n", self.namespace, *command.split())

    def reaches(self, address: str, port: int) -> bool:
        """Whether a connection from here is accepted there."""
        script = f"import socket; socket.create_connection(('{address}', {port}), 5)"
        return run("ip", "netns", "exec", self.namespace, sys.executable, "-c", script, check=False).returncode == 0


class Pod:
    """One pod of a workload. Its volumes are folders below `folder`; a claim's is `claim`, which outlives the pod."""

    def __init__(
        self,
        name: str,
        number: int,
        template: Manifest,
        files: Mapping[str, Mapping[str, str]],
        folder: Path,
        links: Mapping[str, str],
        names: Mapping[str, str],
        claim: Path | None = None,
    ) -> None:
        """`files` are the contents of the ConfigMaps and of the Secret, by their names with the kind before it; `links`
        the variables for Services; `names` the addresses of names in the DNS."""
        self.name = name
        self.labels: Mapping[str, str] = template["metadata"]["labels"]
        self._spec = spec = template["spec"]
        self._files = files
        self._links = links if spec.get("enableServiceLinks", True) else {}
        self._folder = folder / name
        self._starts = 0
        self._mounted: list[Path] = []
        self._working: list[str] = []
        self._images: dict[str, tuple[str, Any]] = {}
        """The root folder and the configuration of each image."""
        (self.main,) = spec["containers"]
        self.log = self._folder / "log"
        self._folder.mkdir(parents=True)
        self._state = self._folder / "runc"
        self._host = Host(f"arborcast-{os.getpid()}-{number}", number)
        self.reaches = self._host.reaches
        self._process: subprocess.Popen[bytes] | None = None
        self._volumes = {each["name"]: self._volume(each) for each in spec["volumes"]}
        if claim is not None:
            claim.mkdir(exist_ok=True)
            _give(claim, 0o2775)
            self._volumes["data"] = claim
        self._hosts = self._folder / "hosts"
        known = {"localhost": "127.0.0.1", name: self.address, **names}
        self._hosts.write_text("".join(f"{address} {each}\n" for each, address in known.items()))

    def start(self) -> None:
        """As the kubelet: the network, the init containers, the main container."""
        self._host.join()
        for each in self._spec.get("initContainers", ()):
            assert self._launch(each).wait(300) == 0, self.log.read_text()
        self.start_main()

    def start_main(self) -> None:
        """Start the main container; again when it has ended, with the volumes as they are."""
        assert self._process is None or self._process.poll() is not None
        self._process = self._launch(self.main)

    def exec(self, *command: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command in the main container."""
        return run(*self._runc("exec", self._id), *command, check=False, timeout=timeout)

    @property
    def address(self) -> str:
        """Its address in the network of pods."""
        return self._host.address

    def enforce(self, policy: Manifest, peers: Callable[[Manifest], Iterable[str]]) -> None:
        """Enforce the `spec` of a network policy; `peers` are the addresses of the pods that an item of `from` has."""
        ports = {each["name"]: each["containerPort"] for each in self.main["ports"]}
        incoming = [f"ip saddr {NODE} accept"]  # a kubelet's probes are let in by every policy
        for rule in policy["ingress"]:
            admitted = [f"tcp dport {ports[each['port']]}" for each in rule.get("ports", ())] or [""]
            for address in (each for peer in rule["from"] for each in peers(peer)):
                incoming += [f"ip saddr {address} {each} accept" for each in admitted]
        outgoing = []
        for rule in policy["egress"]:
            outgoing += [f"{each['protocol'].lower()} dport {each['port']} accept" for each in rule.get("ports", ())]
            for block in (each["ipBlock"] for each in rule.get("to", ())):
                family = "ip6" if ":" in block["cidr"] else "ip"
                shut = ", ".join(block["except"])
                outgoing.append(f"{family} daddr {block['cidr']} {family} daddr != {{ {shut} }} accept")
        lines = ["table inet pod {"]
        for chain, hook, way, rules in (
            ("incoming", "input", "iif", incoming),
            ("outgoing", "output", "oif", outgoing),
        ):
            always = ("ct state established,related accept", f"{way} lo accept")
            lines += [f"chain {chain} {{ type filter hook {hook} priority 0; policy drop;", *always, *rules, "}"]
        run("ip", "netns", "exec", self._host.namespace, "nft", "-f", "-", input="\n".join([*lines, "}"]) + "\n")

    def probe(self, which: str) -> bool:
        """What the kubelet's probe finds now."""
        probe = self.main[which]
        if "exec" in probe:
            return self.exec(*probe["exec"]["command"]).returncode == 0
        port = next(each["containerPort"] for each in self.main["ports"] if each["name"] == probe["httpGet"]["port"])
        url = f"http://{self.address}:{port}{probe['httpGet']['path']}"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(
                url, timeout=probe.get("timeoutSeconds", 1)
            ).close()  # raises for a status of 400 or more
            return True
        return False

    def wait_for(self, which: str, found: bool = True, timeout: float = 900) -> float:
        """Wait until the probe finds this; for how many seconds. The main container must not end meanwhile."""
        began = time.monotonic()
        while self.probe(which) is not found:
            assert self._process is not None
            assert self._process.poll() is None, self.tail()
            assert time.monotonic() < began + timeout, f"{which} is not {found}: {self.tail()}"
            time.sleep(0.5)
        return time.monotonic() - began

    def signal(self, name: str) -> None:
        """Send a signal to the first process of the main container."""
        run(*self._runc("kill", self._id, name))

    def wait(self, timeout: float = 600) -> int:
        """Wait for the end of the main container; its exit status."""
        assert self._process is not None
        return self._process.wait(timeout)

    def kill(self) -> None:
        """kill -9 of the main container."""
        self.signal("KILL")
        self.wait()

    def terminate(self) -> tuple[int, float]:
        """End it as the kubelet does; the exit status, and the seconds from SIGTERM to the end."""
        if "lifecycle" in self.main:
            assert self.exec(*self.main["lifecycle"]["preStop"]["exec"]["command"]).returncode == 0
        began = time.monotonic()
        self.signal("TERM")
        return self.wait(), time.monotonic() - began

    def remove(self) -> None:
        """Remove all of it but a claim."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for each in reversed(self._mounted):
            run("umount", each, check=False)
        for working in self._working:
            buildah("rm", working)
        self._working.clear()
        run("ip", "netns", "del", self._host.namespace, check=False)

    def usage(self) -> tuple[int, float]:
        """Bytes that a kubelet counts as the main container's (without file cache that can be dropped), and seconds of
        CPU since it was started."""
        found = json.loads(run(*self._runc("events", "--stats", self._id)).stdout)["data"]
        raw = found["memory"]["raw"]  # of cgroup version 1 or 2
        memory = found["memory"]["usage"]["usage"] - raw.get("total_inactive_file", raw["inactive_file"])
        return memory, found["cpu"]["usage"]["total"] / 1e9

    def tail(self) -> str:
        """The end of what its containers have written."""
        return f"{self.name}: {self.log.read_text(errors='replace')[-4000:]}"

    @property
    def _id(self) -> str:
        return f"{self._host.namespace}-{self._starts}"

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._state), *arguments]

    def _launch(self, container: Manifest) -> subprocess.Popen[bytes]:
        self._starts += 1
        bundle = self._folder / f"bundle-{self._starts}"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self._config(container)))
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._runc("run", "--bundle", str(bundle), self._id),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _config(self, container: Manifest) -> Manifest:
        """The OCI runtime's configuration of a container."""
        image = container["image"]
        if image not in self._images:
            working = buildah("from", f"localhost/{image}")
            self._working.append(working)
            inspected = json.loads(buildah("inspect", "--type", "image", f"localhost/{image}"))
            self._images[image] = (buildah("mount", working), inspected["OCIv1"]["config"])
        root, made = self._images[image]
        confined = container["securityContext"]
        pod = self._spec["securityContext"]
        assert confined["capabilities"] == {"drop": ["ALL"]}
        environment = {**self._links, **dict(each.split("=", 1) for each in made["Env"])}
        for variable in container.get("env", ()):
            if "value" in variable:
                environment[variable["name"]] = variable["value"]
            elif "fieldRef" in variable["valueFrom"]:
                assert variable["valueFrom"]["fieldRef"] == {"fieldPath": "status.podIP"}
                environment[variable["name"]] = self.address
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                if (value := self._files[f"secret/{reference['name']}"].get(reference["key"])) is not None:
                    environment[variable["name"]] = value
        arguments = container.get("command", made.get("Entrypoint", []))
        arguments = [*arguments, *container.get("args", () if "command" in container else made["Cmd"])]
        sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
        return {
            "ociVersion": "1.0.2",
            "hostname": self.name,
            "root": {"path": root, "readonly": confined["readOnlyRootFilesystem"]},
            "process": {
                "user": {
                    "uid": pod["runAsUser"],
                    "gid": pod["runAsGroup"],
                    "additionalGids": [pod["fsGroup"]],
                    "umask": 0o022,
                },
                "args": arguments,
                "env": [f"{name}={value}" for name, value in environment.items()],
                "cwd": made.get("WorkingDir", "/"),
                "noNewPrivileges": not confined["allowPrivilegeEscalation"],
                "capabilities": {each: [] for each in sets},
            },
            "mounts": [
                *_SYSTEM_MOUNTS,
                {"destination": "/etc/hosts", "source": str(self._hosts), "type": "bind", "options": ["rbind"]},
                *(self._mount(each) for each in container["volumeMounts"]),
            ],
            "linux": {
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                    {"type": "network", "path": f"/run/netns/{self._host.namespace}"},
                ],
                "resources": {"memory": {"limit": quantity_bytes(container["resources"]["limits"]["memory"])}},
                "seccomp": seccomp(),
                "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        }

    def _mount(self, mount: Manifest) -> Manifest:
        options = ["rbind", "ro" if mount.get("readOnly") else "rw"]
        return {
            "destination": mount["mountPath"],
            "source": str(self._volumes[mount["name"]]),
            "type": "bind",
            "options": options,
        }

    def _volume(self, volume: Manifest) -> Path:
        folder = self._folder / "volumes" / str(volume["name"])
        folder.mkdir(parents=True)
        if "emptyDir" in volume:
            if (volume["emptyDir"] or {}).get("medium") == "Memory":
                size = quantity_bytes(volume["emptyDir"]["sizeLimit"])
                run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
                self._mounted.append(folder)
            _give(folder, 0o2777)
            return folder
        if "configMap" in volume:
            contents, mode = self._files[f"configmap/{volume['configMap']['name']}"], 0o644
        else:
            secret = volume["secret"]
            contents, mode = self._files[f"secret/{secret['secretName']}"], secret["defaultMode"]
            if "items" in secret:
                contents = {each["path"]: contents[each["key"]] for each in secret["items"]}
        for name, text in contents.items():
            (folder / name).write_text(text)
            _give(folder / name, mode)
        return folder


def _give(path: Path, mode: int) -> None:
    os.chown(path, 0, _GROUP)
    path.chmod(mode)


def quantity_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * _UNITS[quantity[-2:]]


def service_links(services: Iterable[Manifest]) -> dict[str, str]:
    """The variables that a kubelet sets for the Services of a namespace, unless `enableServiceLinks` is false."""
    found: dict[str, str] = {}
    for each in services:
        name, ports = each["metadata"]["name"].upper().replace("-", "_"), each["spec"]["ports"]
        if each["spec"].get("clusterIP") != "None":
            found |= {f"{name}_SERVICE_HOST": "10.96.0.10", f"{name}_PORT": f"tcp://10.96.0.10:{ports[0]['port']}"}
    return found


def seccomp() -> Manifest:
    """The default profile for a process without capabilities, as an OCI runtime wants it."""
    profile = json.loads(_SECCOMP.read_text())
    rules = []
    for each in profile["syscalls"]:
        if (each.get("includes") or {}).get("caps") or "arm" in str(each.get("includes")) or "s390" in str(each):
            continue
        if "ppc64le" in str(each.get("includes")):
            continue
        rule = {"names": each["names"], "action": each["action"]}
        if each.get("args"):
            rule["args"] = each["args"]
        if each.get("errnoRet") is not None:
            rule["errnoRet"] = each["errnoRet"]
        rules.append(rule)
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules,
    }


_SYSTEM_MOUNTS: Sequence[Manifest] = (
    {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
    {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec", "newinstance"]},
    {
        "destination": "/dev/shm",  # noqa: S108  # a mount of the container's, as runtimes make it
        "type": "tmpfs",
        "source": "shm",
        "options": ["nosuid", "nodev", "size=65536k"],
    },
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
)
