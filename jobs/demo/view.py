"""The demonstration's picture: what was published, what arrived, how long it took. State in, renderable out."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from topic_model.topics import TopicPath, make_path

NAMESPACE = "urn:arborcast:demo"

SUBTREE = make_path([(NAMESPACE, "building")])


def _topic(*names: str) -> TopicPath:
    return make_path((NAMESPACE, name) for name in names)


@dataclass(frozen=True)
class Published:
    """One thing to publish."""

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
        """Count a push."""
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
