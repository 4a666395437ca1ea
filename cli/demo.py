"""The demonstration: python -m arborcast.cli.demo HOME, or `arborcast up --demo`.

A simulated building publishes, partly outside the subtree of a subscriber; the display shows published and arrived
messages with their times.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lxml import etree
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from arborcast.client import Client
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.core.errors import ArborcastError
from arborcast.core.threads import start_thread
from arborcast.core.xml import xml_parser
from arborcast.engine.embedded.status import status
from arborcast.engine.terminal import console, print_line
from arborcast.topic_model.topics import TopicPath, make_path

NAMESPACE = "urn:arborcast:demo"

SUBTREE = make_path([(NAMESPACE, "building")])


def _topic(*names: str) -> TopicPath:
    return make_path((NAMESPACE, name) for name in names)


@dataclass(frozen=True)
class Published:
    topic: TopicPath
    value: str

    def payload(self, sent_ms: int) -> bytes:
        """The notification's content; the time of sending rides along so that the view can show the latency."""
        return (
            f'<d:reading xmlns:d="{NAMESPACE}" sent-ms="{sent_ms}"><d:value>{self.value}</d:value></d:reading>'
        ).encode()


def readings() -> Iterator[Published]:
    """An endless, repeatable day in the building."""
    for tick in itertools.count():
        yield Published(_topic("building", "floor-1", "temperature"), f"{21 + 2 * math.sin(tick / 9):.1f} °C")
        yield Published(_topic("building", "floor-1", "door"), "open" if tick % 5 == 0 else "closed")
        yield Published(_topic("building", "floor-2", "temperature"), f"{22 + 3 * math.sin(tick / 7 + 1):.1f} °C")
        # Outside the subtree: published, kept, and rightly not delivered to this subscriber.
        yield Published(_topic("parking", "gate"), "car in" if tick % 2 else "car out")
        yield Published(_topic("building", "roof", "wind"), f"{8 + 5 * math.sin(tick / 4):.0f} km/h")
        if tick % 6 == 5:
            yield Published(_topic("building", "floor-2", "smoke"), "ALARM")


def short(topic: str) -> str:
    """A topic of the demonstration as people read it."""
    return topic.replace(f"{{{NAMESPACE}}}", "")


RECENT = 10


@dataclass(frozen=True)
class Arrival:
    """One push that reached the demonstration's subscriber."""

    topic: str
    value: str
    latency_ms: float
    at: float


@dataclass
class DemoState:
    """Everything the picture shows; written by publisher and subscriber, read by the view."""

    engine_url: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    published: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    recent: deque[Arrival] = field(default_factory=lambda: deque(maxlen=RECENT))
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    refused: str = ""

    def arrived(self, arrival: Arrival) -> None:
        self.delivered[arrival.topic] += 1
        self.recent.appendleft(arrival)
        self.latencies.append(arrival.latency_ms)


def render(state: DemoState) -> RenderableType:
    """The whole picture, at most 24 lines high."""
    return Group(_headline(state), _topics(state), _arrivals(state), _parts(state))


def _headline(state: DemoState) -> RenderableType:
    line = Text.assemble(
        ("Arborcast ", "bold"),
        f"at {state.engine_url}   ",
        (f"{sum(state.published.values())} published", "cyan"),
        "   ",
        (f"{sum(state.delivered.values())} delivered", "green"),
    )
    if state.latencies:
        ordered = sorted(state.latencies)
        line.append(f"   latency p50 {ordered[len(ordered) // 2]:.0f} ms")
    line.append("   Ctrl-C stops", style="dim")
    if state.refused:
        line.append(f"\nlast Notify was not accepted: {state.refused}", style="bold red")
    return line


def _topics(state: DemoState) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    table.add_column("topic")
    table.add_column("published", justify="right")
    table.add_column("delivered", justify="right")
    table.add_column("")
    for topic in sorted(state.published):
        inside = topic == SUBTREE or topic.startswith(SUBTREE + "/")
        table.add_row(
            short(topic),
            str(state.published[topic]),
            str(state.delivered[topic]),
            Text("" if inside else "outside the subscription", style="dim"),
            style="" if inside else "dim",
        )
    return Panel(table, title=f"one subscriber on the subtree {short(SUBTREE)}//.", title_align="left")


def _arrivals(state: DemoState) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True, show_header=False)
    for arrival in list(state.recent)[: RECENT - 4]:
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(arrival.at)),
            short(arrival.topic),
            arrival.value,
            Text(f"{arrival.latency_ms:.0f} ms", style="green", justify="right"),
        )
    if not state.recent:
        table.add_row(Text("waiting for the first notification", style="dim"))
    return Panel(table, title="arriving at the subscriber", title_align="left")


def _parts(state: DemoState) -> RenderableType:
    line = Text()
    for name, part in state.parts.items():
        good = part.get("state") == "ready"
        line.append("● ", style="green" if good else "yellow")
        memory = part.get("memory_bytes")
        line.append(f"{name} {part.get('state')}" + (f" {memory / 2**20:.0f} MB" if memory else "") + "   ")
    return line


INTERVAL_S = 0.3  # between two notifications: slow enough to read
STATUS_INTERVAL_S = 2.0  # the memory of every part takes many reads of /proc
REFRESH_PER_SECOND = 4


def main(home: Path) -> None:
    """Subscribe, publish and show, until interrupted. The subscription stays, and the next demonstration uses it."""
    state = DemoState(status(home)["addresses"]["gateway"])
    stop = threading.Event()
    with _listener(home, state) as listener:
        with Client(state.engine_url) as client:
            # With the address and expression of the last demonstration it is the same subscription: only one exists.
            client.subscribe(f"{SUBTREE}//.", to=listener.url)
        start_thread("publisher", _publish, state, stop)
        start_thread("status", _watch, home, state, stop)
        try:
            _show(state)
        finally:
            stop.set()


def _show(state: DemoState) -> None:
    screen = console()
    if not screen.is_terminal:
        _show_lines(state)
        return
    # The alternate screen: messages of the supervisor disturb the frame until the next refresh at most.
    with Live(get_renderable=lambda: render(state), console=screen, screen=True, refresh_per_second=REFRESH_PER_SECOND):
        threading.Event().wait()


def _show_lines(state: DemoState) -> None:
    """For a pipe or a log file: a line per arrival."""
    shown = 0
    while True:
        time.sleep(1 / REFRESH_PER_SECOND)
        total = sum(state.delivered.values())
        for arrival in reversed(list(state.recent)[: total - shown]):
            print_line(f"{short(arrival.topic)}: {arrival.value} ({arrival.latency_ms:.0f} ms)")
        shown = total


def _listener(home: Path, state: DemoState) -> Listener:
    """A listener at the port of last time when it is free, so that the subscription is still the same one."""

    def received(message: ReceivedMessage) -> None:
        now = time.time()
        reading = etree.fromstring(message.payload, xml_parser())
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
                # The engine may be restarting a part: report it and continue.
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
