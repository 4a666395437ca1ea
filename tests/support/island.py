"""A network namespace in which all addresses are this machine, to record the addresses that a transport reaches.

`running()` runs this module in new user, mount and network namespaces. There, all of IPv4 and IPv6 is routed to
loopback, a trap listens on port 8000 of all addresses and records the called ones, and a name server answers for
`.test`:

    v4-10-0-0-1.test             that address                  v6-fe80--1.test     that one (`:` written as `-`)
    flip-93-184-216-34.test      that address, then 127.0.0.1 twice, and so on, to be kept for 0 seconds
    mixed-93-184-216-34.test     127.0.0.1 and that address, both in one answer
    hang-1.test                  no answer
    anything else                does not exist
"""

from __future__ import annotations

import ipaddress
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from arborcast.core.errors import NoAnswer, OutboundRefused
from arborcast.core.http_client import HttpClient
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult, UrlPolicyCache
from arborcast.dispatch.settings import PushSettings

ROOT = Path(__file__).parents[2]
PORT = 8000

APART = ("unshare", "-r", "-m", "-n")
_SETTLE_S = 30.0


@dataclass(frozen=True)
class Finding:
    """The result of a push to one URL, and the addresses at which the trap was called."""

    status: int
    failure: str
    detail: str
    called: tuple[str, ...]


def possible() -> bool:
    """Whether namespaces and the programs for them are available."""
    if not all(shutil.which(tool) for tool in ("unshare", "ip", "mount")):
        return False
    probe = [*APART, "ip", "link", "set", "lo", "up"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


class Island:
    """One such network namespace."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def explore(
        self,
        urls: list[str],
        transport: str,
        *,
        outbound: dict[str, str | bool] | None = None,
        skip_url_check: bool = False,
        new_transports: bool = False,
        hanging: int = 0,
    ) -> list[Finding]:
        """Push to each URL in turn; with the transport "calls", POST to it by `core.http_client`. `skip_url_check`
        leaves only the check at the connection; `new_transports` makes a new transport for each push, without caches.
        Before the last one begin `hanging` pushes to names without an answer."""
        order = {
            "urls": urls,
            "transport": transport,
            "outbound": outbound or {},
            "skip_url_check": skip_url_check,
            "new_transports": new_transports,
            "hanging": hanging,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "it has ended, see its output to standard error"
        return [Finding(**{**found, "called": tuple(found["called"])}) for found in json.loads(answer)]


@contextmanager
def running() -> Iterator[Island]:
    """An island until the exit of the context."""
    command = [*APART, sys.executable, "-m", "tests.support.island"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield Island(process)
        process.communicate()  # its input ends
    assert process.returncode == 0


class Trap:
    """Accepts every connection to port 8000 of any address, and answers 202."""

    def __init__(self) -> None:
        self._called: list[str] = []
        for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104
            listener = socket.socket(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((everywhere, PORT))
            listener.listen(100)
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def take(self) -> tuple[str, ...]:
        """The addresses called since the last call of this."""
        called, self._called = tuple(self._called), []
        return called

    def _serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            # Recorded before any read: the connection counts.
            self._called.append(str(connection.getsockname()[0]))
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(60)
            data = b""
            while b"</x>" not in data and (more := connection.recv(65536)):
                data += more
            connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


class NameServer:
    """DNS over UDP on 127.0.0.1, for A and AAAA in `.test`."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            if b"hang-" not in query:
                self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        labels, position = [], 12
        while length := query[position]:
            labels.append(query[position + 1 : position + 1 + length].decode("latin-1"))
            position += 1 + length
        question = query[12 : position + 5]
        kind = struct.unpack("!H", query[position + 1 : position + 3])[0]
        addresses = self._addresses(".".join(labels).lower(), kind)
        code = 3 if addresses is None else 0
        found = addresses or []
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(address.packed)) + address.packed for address in found
        )
        head = query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(found), 0, 0)
        return head + question + records

    def _addresses(self, name: str, kind: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address] | None:
        how, _, rest = name.removesuffix(".test").partition("-")
        if not name.endswith(".test") or how not in ("v4", "v6", "flip", "mixed"):
            return None
        if how == "v6":
            return [ipaddress.IPv6Address(rest.replace("-", ":"))] if kind == 28 else []
        if kind != 1:
            return []
        address, loopback = ipaddress.IPv4Address(rest.replace("-", ".")), ipaddress.IPv4Address("127.0.0.1")
        if how == "mixed":
            return [loopback, address]
        self._asked[name] += 1
        return [loopback] if how == "flip" and self._asked[name] % 3 != 1 else [address]


def _pushed(order: dict[str, Any], policy: AddressPolicy) -> Iterator[PushResult]:
    push = PushSettings(transport=order["transport"], connect_timeout_s=2.0, total_timeout_s=4.0)
    transport = make_transport(push, policy)
    for url in order["urls"]:
        if order["new_transports"]:
            transport.close()
            transport = make_transport(push, policy)
        for number in range(order["hanging"] if url is order["urls"][-1] else 0):
            transport.submit(PushRequest(f"http://hang-{number}.test/", (), b"<x></x>"), lambda result: None)
        results: list[PushResult] = []
        transport.submit(PushRequest(url, (), b"<x></x>"), results.append)
        end = time.monotonic() + _SETTLE_S
        while not results and time.monotonic() < end:
            transport.drive(0.1)
        yield results[0]
    transport.close()


def _called(order: dict[str, Any], policy: AddressPolicy) -> Iterator[PushResult]:
    client = HttpClient(policy, threads=1)
    for url in order["urls"]:
        try:
            call = client.call("POST", url, {}, b"<x></x>", lambda answer: answer, total_s=4.0, max_answer=1_000)
            yield PushResult(call.result(_SETTLE_S).status)
        except OutboundRefused as error:
            yield PushResult(0, "address", str(error))
        except NoAnswer as error:
            yield PushResult(0, "connect", str(error))


def _main() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as resolver:
        resolver.write("nameserver 127.0.0.1\noptions timeout:5 attempts:1\n")
        resolver.flush()
        for command in (
            "ip link set lo up",
            "ip route add local 0.0.0.0/0 dev lo",
            "ip -6 route add local ::/0 dev lo",
            f"mount --bind {resolver.name} /etc/resolv.conf",
        ):
            subprocess.run(command.split(), check=True)
        NameServer()
        trap = Trap()
        for line in sys.stdin:
            order: dict[str, Any] = json.loads(line)
            policy = AddressPolicy(OutboundSettings(**order["outbound"]))
            with ExitStack() as patches:
                if order["skip_url_check"]:
                    for owner, name in ((UrlPolicyCache, "refusal"), (AddressPolicy, "check_url")):
                        patches.enter_context(mock.patch.object(owner, name, return_value=None))
                explored = _called(order, policy) if order["transport"] == "calls" else _pushed(order, policy)
                found = [asdict(Finding(each.status, each.failure, each.detail, trap.take())) for each in explored]
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main()
