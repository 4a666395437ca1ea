"""Runs the demonstration against a running engine: python -m jobs.demo HOME. `arborcast up --demo` starts it."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

from lxml import etree
from rich.live import Live

from core.errors import ArborcastError
from ingest.client import Client
from ingest.client.listener import Listener, ReceivedMessage
from jobs.demo.view import SUBTREE, Arrival, DemoState, readings, render, short
from jobs.engine.commands import status
from jobs.terminal import console, say

INTERVAL_S = 0.3  # between two notifications: lively, and still readable
STATUS_INTERVAL_S = 2.0  # asking for every part's memory reads much of /proc
REFRESH_PER_SECOND = 4


def main(home: Path) -> None:
    """Subscribe, publish and show, until interrupted. The subscription stays, and the next demonstration uses it."""
    state = DemoState(status(home)["addresses"]["gateway"])
    stop = threading.Event()
    with _listener(home, state) as listener:
        with Client(state.engine_url) as client:
            # The same address and expression as last time are the same subscription: nothing piles up.
            client.subscribe(f"{SUBTREE}//.", to=listener.url)
        threads = [
            threading.Thread(target=_publish, args=(state, stop), name="publisher", daemon=True),
            threading.Thread(target=_watch, args=(home, state, stop), name="status", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            _show(state)
        finally:
            stop.set()


def _show(state: DemoState) -> None:
    screen = console()
    if not screen.is_terminal:
        _show_lines(state)
        return
    # The alternate screen: what the supervisor has to say meanwhile cannot tear the picture for longer than a refresh.
    with Live(get_renderable=lambda: render(state), console=screen, screen=True, refresh_per_second=REFRESH_PER_SECOND):
        threading.Event().wait()


def _show_lines(state: DemoState) -> None:
    """For a pipe or a log file: a line per arrival."""
    shown = 0
    while True:
        time.sleep(1 / REFRESH_PER_SECOND)
        total = sum(state.delivered.values())
        for arrival in reversed(list(state.recent)[: total - shown]):
            say(f"{short(arrival.topic)}: {arrival.value} ({arrival.latency_ms:.0f} ms)")
        shown = total


def _listener(home: Path, state: DemoState) -> Listener:
    """A listener at the port of last time when it is free, so that the subscription is still the same one."""

    def received(message: ReceivedMessage) -> None:
        now = time.time()
        reading = etree.fromstring(message.payload)
        sent_ms = int(reading.get("sent-ms", "0"))
        state.arrived(Arrival(message.topic or "", reading.findtext("{*}value", ""), now * 1000 - sent_ms, now))

    memory = home / "demo.json"
    port = 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        port = int(json.loads(memory.read_text())["port"])
    try:
        listener = Listener(received, port=port)
    except OSError:
        listener = Listener(received)
    memory.write_text(json.dumps({"port": listener.port}))
    return listener


def _publish(state: DemoState, stop: threading.Event) -> None:
    with Client(state.engine_url) as client:
        for reading in readings():
            if stop.wait(INTERVAL_S):
                return
            try:
                client.notify(reading.topic, reading.payload(int(time.time() * 1000)))
            except ArborcastError as error:
                # The engine may be restarting a part: say so and go on.
                state.refused = str(error)
            else:
                state.refused = ""
                state.published[reading.topic] += 1


def _watch(home: Path, state: DemoState, stop: threading.Event) -> None:
    while not stop.wait(STATUS_INTERVAL_S if state.parts else 0):
        state.parts = status(home)["parts"]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]))
