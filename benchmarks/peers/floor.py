"""The least that does the work of a gateway, as a process: the same HTTP server without the protocol, the same parse
without use of its result, the same append of as many bytes, and a 202 after Kafka's acknowledgement."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop
from lxml import etree

from arborcast.core.settings import KafkaSettings
from arborcast.ingest.http.asgi import Receive, Scope, Send
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.xml_reading import make_parser
from benchmarks.report import wait_for
from tests.support.held_port import HeldPort


@contextmanager
def running_floor(settings: KafkaSettings) -> Iterator[tuple[int, int]]:
    """Its process and port. Its topics exist already."""
    port = HeldPort()
    command = [sys.executable, "-m", "benchmarks.peers.floor", settings.bootstrap_servers, settings.prefix]
    command.append(str(port.number))
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: _answers(port.number), "the floor listens")
            yield process.pid, port.number
        finally:
            process.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _serve(settings: KafkaSettings, port: int) -> None:
    log, topic = NotificationLog(settings, GatewaySettings()), TopicPath("{urn:t}plant/line1/press")
    log.start()
    while log.obstacle:
        await asyncio.sleep(0.05)
    parser = make_parser()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        etree.fromstring(body, parser)
        await log.append([Notification("0" * 32, topic, body, 1)])
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        app, "127.0.0.1", port, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    servers, prefix, port = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(KafkaSettings(bootstrap_servers=servers, prefix=prefix), int(port)))
    os._exit(0)
