"""Faults of the TCP connections between the parts of an engine, in a network namespace of its own.

All connections to the chosen ports are redirected to a proxy, which finds the place of each: the part that opened it,
and the service. The proxy delays bytes, resets connections within an answer, and leaves connections silent. Packets are
dropped by the kernel (nft), so that sockets see a broken network: segments without acknowledgement, retransmissions at
growing intervals. The kernel's netem is not needed.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.island import APART
from tests.support.island import possible as has_namespaces

# On the connections of the proxy, which are not redirected.
_MARK = 7

_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST

_CHUNK = 64 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True)
class Fault:
    """A fault of a place. `lost` are percents of the packets of the client, and of those of the service."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    lost: tuple[int, int] = (0, 0)
    reset_each: int = 0
    """One of this number of answers is cut by a reset; 0: none."""
    silent: bool = False
    """Open connections stay open without data; new ones work."""


FAULTS = {
    "delay": Fault(delay_s=0.2, jitter_s=0.3),
    "loss": Fault(lost=(10, 10)),
    "requests": Fault(lost=(100, 0)),
    "answers": Fault(lost=(0, 100)),
    "resets": Fault(reset_each=10),
    "half-open": Fault(silent=True),
    "cut": Fault(lost=(100, 100)),
}


def possible() -> bool:
    """Whether this machine has namespaces and nft."""
    return shutil.which("nft") is not None and has_namespaces()


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a module in a namespace of its own, where it may use `Links`."""
    start = 'ip link set lo up && exec "$@"'
    return [*APART, "sh", "-c", start, "sh", sys.executable, "-m", module, *arguments]


@dataclass(eq=False)
class _Link:
    """A connection of a client, and the one of the proxy to the service."""

    client: asyncio.StreamWriter
    service: asyncio.StreamWriter
    place: str
    silent: bool = False

    def reset(self) -> None:
        for writer in (self.client, self.service):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Links:
    """The proxy, and the rules of the kernel, from the start to `close`.

    All connections to a port of `whole` belong to its place. For the ports in `parted`, `place_of` names the place by
    the ports of the client and of the service; empty for a client that is left alone.
    """

    def __init__(
        self,
        whole: Mapping[str, Sequence[int]],
        parted: Sequence[int],
        places: Sequence[str],
        place_of: Callable[[int, int], str],
    ) -> None:
        self._whole = whole
        self._place_of = place_of
        self._links: set[_Link] = set()
        self._place, self._fault = "", Fault()
        self._struck = 0
        self._closed = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="links", daemon=True).start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK))
        self._port: int = self._server.sockets[0].getsockname()[1]
        ports = _listed([*parted, *(port for ports in whole.values() for port in ports)])
        sets = "\n".join(f"set {place} {{ type inet_service; }}" for place in places)
        _nft(f"""
            table inet links {{
                {sets}
                chain through_proxy {{
                    type nat hook output priority -100;
                    tcp dport {{ {ports} }} meta mark != {_MARK} redirect to :{self._port}
                }}
                chain faults {{
                    type filter hook input priority 0;
                }}
            }}
            """)

    def close(self) -> None:
        self._closed = True
        _nft("delete table inet links")
        self._loop.call_soon_threadsafe(self._end)

    @contextmanager
    def broken(self, place: str, fault: Fault) -> Iterator[None]:
        """Apply a fault to a place. Raises AssertionError at the end if it had no effect."""
        self._call(self._break(place, fault))
        _nft("\n".join(self._rules(place, fault)))
        try:
            yield
        finally:
            counted = re.findall(r"counter packets (\d+)", _nft("list chain inet links faults"))
            _nft("flush chain inet links faults")
            self._call(self._break("", Fault()))
        assert self._struck + sum(map(int, counted)), f"the fault has met no connection of the {place}"

    def _rules(self, place: str, fault: Fault) -> Iterator[str]:
        # For a whole place also the packets that open a connection.
        ports = f"proto-dst {{ {_listed(self._whole[place])} }}" if place in self._whole else f"proto-src @{place}"
        for direction, percent in zip(("original", "reply"), fault.lost, strict=True):
            chance = "" if percent == 100 else f"numgen random mod 100 < {percent} "
            if percent:
                match = f"ct status dnat ct direction {direction} meta l4proto tcp ct original {ports}"
                yield f"add rule inet links faults {match} {chance}counter drop"

    async def _break(self, place: str, fault: Fault) -> None:
        self._place, self._fault = place, fault
        if place:
            self._struck = 0
        for link in self._links:
            if fault.silent and link.place == place:
                link.silent = True
                self._struck += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = writer.get_extra_info("socket")
        try:
            port = client.getpeername()[1]
            (service,) = struct.unpack("!2xH12x", client.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16))
            place = next((place for place, ports in self._whole.items() if service in ports), None)
            if place is None and (place := await asyncio.to_thread(self._place_of, port, service)):
                await asyncio.to_thread(_nft, f"add element inet links {place} {{ {port} }}")
                while self._place == place and self._fault.lost[0] == 100:
                    await asyncio.sleep(0.05)  # its first packets were not dropped, before its place was found
            answers, requests = await _connected(service)
        except (OSError, AssertionError) as error:
            if isinstance(error, AssertionError):
                print(f"a connection without a place is refused: {error}", file=sys.stderr)
            writer.transport.abort()
            return
        link = _Link(writer, requests, place or "")
        self._links.add(link)
        try:
            await asyncio.gather(
                self._pass_on(link, reader, requests, False), self._pass_on(link, answers, writer, True)
            )
        except OSError:
            link.reset()
        finally:
            self._links.discard(link)
            for each in (writer, requests):
                each.close()
            if place and place not in self._whole and not self._closed:
                with suppress(AssertionError):
                    await asyncio.to_thread(_nft, f"delete element inet links {place} {{ {port} }}")

    async def _pass_on(
        self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool
    ) -> None:
        while data := await source.read(_CHUNK):
            fault = self._fault if self._place and link.place == self._place else Fault()
            if fault.delay_s:
                self._struck += 1
                await asyncio.sleep(fault.delay_s + fault.jitter_s * random.random())
            if link.silent:
                continue
            if answers and fault.reset_each and not random.randrange(fault.reset_each):
                self._struck += 1
                target.write(data[: len(data) // 2])
                await target.drain()
                link.reset()
                return
            target.write(data)
            await target.drain()
        if not link.silent and target.can_write_eof():
            target.write_eof()

    def _end(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.reset()
        self._loop.call_later(0.2, self._loop.stop)

    def _call(self, action: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(30)


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, _MARK)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    except BaseException:
        connection.close()
        raise
    return await asyncio.open_connection(sock=connection, limit=_CHUNK)


def _listed(ports: Sequence[int]) -> str:
    return ", ".join(map(str, ports))


def _nft(rules: str) -> str:
    done = subprocess.run(["/usr/bin/env", "nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{rules}\n{done.stderr}"
    return done.stdout
