"""The ZeroMQ edges as a process beside a gateway, and plain sockets that connect to them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
import zmq

from arborcast.core.settings import KafkaSettings
from arborcast.engine.monitoring.samples import Scrape
from tests.support.gateway_process import GatewayRun
from tests.support.held_port import HeldPort
from tests.support.process import LoggedProcess

NAMES = ("subscribe", "publish", "pipeline", "requests", "tasks", "results")


class Edges(LoggedProcess):
    """The process, its addresses, and sockets that connect to them."""

    def __init__(self, folder: Path, kafka: KafkaSettings, more: str = "", zmq_more: str = "") -> None:
        self._ports = {name: HeldPort() for name in (*NAMES, "framed", "metrics")}
        for port in self._ports.values():
            port.for_life_of(self)
        self._alive = folder / "alive"
        addresses = "".join(f'{name} = "{self.address(name)}"\n' for name in NAMES)
        self.framed = f"framed://127.0.0.1:{self._ports['framed'].number}"
        self.gateway = GatewayRun(
            folder,
            kafka,
            more=f"{more}[framed]\nport = {self._ports['framed'].number}\n[zmq]\n{addresses}"
            f'tasks_topics = "jobs//."\nmetrics_port = {self._ports["metrics"].number}\n{zmq_more}',
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        command = [sys.executable, "-m", "arborcast.engine.gateway.zmq_edge", "--config", str(self.gateway.config)]
        super().__init__([*command, "--alive", str(self._alive)], folder / "zmq.log")

    def address(self, name: str) -> str:
        return f"tcp://127.0.0.1:{self._ports[name].number}"

    def start(self) -> None:
        self._alive.unlink(missing_ok=True)
        super().start()
        self.wait_for(self._alive.exists, "the edges are open")

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.kill()

    def socket(self, kind: int, name: str) -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        opened.setsockopt(zmq.RCVTIMEO, 120_000)
        opened.setsockopt(zmq.SNDTIMEO, 120_000)
        opened.connect(self.address(name))
        return opened

    def request(self, *parts: bytes) -> list[bytes]:
        with self.socket(zmq.REQ, "requests") as req:
            req.send_multipart(parts)
            return req.recv_multipart()

    def subscriber(self, prefix: bytes) -> zmq.Socket[bytes]:
        """Returns when the subscription is active."""
        sub = self.socket(zmq.SUB, "subscribe")
        sub.subscribe(prefix)
        assert self.request(b"ready", prefix) == [b"ok", b""]
        return sub

    def count(self, socket: str, outcome: str) -> float:
        page = requests.get(f"http://127.0.0.1:{self._ports['metrics'].number}/metrics", timeout=60).text
        return Scrape.of(page).sum("arborcast_zmq_messages_total", socket=socket, outcome=outcome)


@contextmanager
def edges_of(folder: Path, kafka: KafkaSettings, more: str = "", zmq_more: str = "") -> Iterator[Edges]:
    edges = Edges(folder, kafka, more, zmq_more)
    try:
        edges.gateway.start()
        edges.start()
        yield edges
    finally:
        edges.close()
        edges.gateway.kill()
