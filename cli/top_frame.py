"""The picture that `arborcast top` shows, as lines of text. Pure: state in, lines out."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TextIO

from rich.live import Live
from rich.text import Text

from arborcast.engine.monitoring import figures
from arborcast.engine.monitoring.charts import COUNTED_S
from arborcast.engine.monitoring.samples import MetricsSample, downsampled, quantiles, rates, shares
from arborcast.engine.monitoring.summary import Summary, first_view
from arborcast.engine.monitoring.watching import EngineView, EngineWatch
from arborcast.engine.terminal import console

_LABEL, _NOW = 20, 9

_PROCESSES, _FEWEST_ENDPOINTS = 8, 2

# With their heading; more where there is room.
_ENDPOINTS = 3

# Empty lines: above processes, and below.
_GAPS = 2

# Minimum width of a readable chart.
_NARROWEST = 4


def frame(seen: EngineView, where: str, width: int = 80, height: int = 24) -> list[str]:
    """At most `height` lines of at most `width` characters; designed for 80 by 24, usable from 60 by 20. The lowest
    parts are omitted first; problems are at the top."""
    if not seen.samples:
        lines = [_headline("", "", where, width), "", *_wrapped(seen.problem or "nothing is known yet", width)]
        return [figures.printable(line).rstrip() for line in lines[:height]]
    current = Summary.current(seen.samples)
    last = current.last
    at = datetime.fromtimestamp(last.at, UTC).strftime("%H:%M:%S UTC")
    head = [_headline(_health(last), at, where, width)]
    if seen.problem:
        problem = f"! {seen.problem}"
        head.append(problem if len(problem) <= width else problem[: width - 1] + "…")
    head += [*_charts(seen.samples, current, width), *_state(current, width)]
    processes = _processes(seen.samples, current, width)
    # Content has priority over spacing.
    spare = height - len(head) - len(processes) - min(len(seen.endpoints) + 1, _ENDPOINTS)
    lines = [*head, *[""] * (spare >= 1), *processes, *[""] * (spare >= _GAPS)]
    lines += _endpoints(seen, width, height - len(lines))
    return [figures.printable(line)[:width].rstrip() for line in lines[:height]]


def _headline(state: str, at: str, where: str, width: int) -> str:
    """The health stays visible beside a long name of the engine."""
    right = "   ".join(word for word in (state, at) if word)
    left = "Arborcast at " + figures.shortened(where, max(8, width - len("Arborcast at ") - len(right) - 3))
    if not state:
        return left + right.rjust(max(len(right), width - len(left)))
    return f"{left}   {state}" + at.rjust(max(len(at) + 1, width - len(left) - 3 - len(state)))


def _health(last: MetricsSample) -> str:
    away = [part for part, ready in sorted(last.parts.items()) if not ready]
    return f"NOT READY: {', '.join(away)}" if away else "ready" if last.parts else ""


def _charts(samples: Sequence[MetricsSample], current: Summary, width: int) -> list[str]:
    room = max(0, width - _LABEL - _NOW - 2)
    points = downsampled(samples, room + 1)
    span = f"the last {figures.seconds(points[-1].at - points[0].at)}" if len(points) > 1 else ""
    heading = f"{'':{_LABEL}}{'now':>{_NOW}}  {span:>{room}}"
    delivered = rates(points, "attempts", "delivered", COUNTED_S)
    failed = [
        None if every is None or good is None else max(0.0, every - good)
        for every, good in zip(rates(points, "attempts", over_s=COUNTED_S), delivered, strict=True)
    ]
    last = current.last
    rows: list[tuple[str, str, Sequence[float | None]]] = [
        ("accepted /s", figures.count(current.accepted), rates(points, "accepted")),
        ("delivered /s", figures.count(current.delivered), delivered),
        ("not delivered /s", figures.count(current.undelivered), failed),
        ("pushes in flight", figures.count(current.in_flight), [sum(point.in_flight.values()) for point in points]),
        ("delivery, median", figures.seconds(current.delivery_median), quantiles(points, "delivery", 0.5)),
        ("delivery, 99 %", figures.seconds(current.delivery_99), quantiles(points, "delivery", 0.99)),
        ("append, 99 %", figures.seconds(current.append_99), quantiles(points, "append", 0.99)),
        ("lag, records", figures.count(last.lag_records), [point.lag_records for point in points]),
        ("lag, time", figures.seconds(last.lag_seconds), [point.lag_seconds for point in points]),
    ]
    return [
        heading,
        *(f"{label:{_LABEL}}{now:>{_NOW}}  {figures.sparkline(values, room)}" for label, now, values in rows),
    ]


def _state(current: Summary, width: int) -> list[str]:
    last = current.last
    facts = [
        f"subscriptions {figures.count(last.subscriptions)}",
        f"waiting for retry {figures.count(current.waiting)}",
        f"due now {figures.count(current.due)}",
        f"given up {figures.count(last.attempts.get('dead', 0))}",
        f"refused {figures.count(sum(last.refused.values()))}",
    ]
    if last.requests:
        there = [f"{figures.count(number)} {state}" for state, number in sorted(last.servers.items()) if number]
        facts.append(f"requests {figures.count(last.requests.get('waiting', 0))} waiting")
        facts.append(f"{figures.count(last.requests.get('executing', 0))} executing")
        facts.append(f"workers {', '.join(there) or 'none'}")
    if last.mode:
        facts.append(f"mode {last.mode}")
    if last.suspended:
        # First: an operator has to act on it.
        facts.insert(0, f"SUSPENDED {figures.count(last.suspended)}")
    open_ones = sum(number for state, number in last.breakers.items() if state != "closed")
    if open_ones:
        facts.append(f"breakers open {figures.count(open_ones)}")
    lines = [""]
    for fact in facts:
        longer = f"{lines[-1]}   {fact}" if lines[-1] else fact
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines


def _processes(samples: Sequence[MetricsSample], current: Summary, width: int) -> list[str]:
    room = (width - 55) // 3
    if room < _NARROWEST:
        room = 0
    points = downsampled(samples, (room or 12) + 1)
    processes = current.processes
    lines = [f"{'process':20}{'cpu':>7} {'':{room}}{'memory':>10} {'':{room}}{'threads':>8} {'':{room}}{'files':>7}"]
    for name in sorted(processes, key=lambda name: -processes[name].memory_bytes)[:_PROCESSES]:
        now = processes[name]
        then = [point.processes.get(name) for point in points]
        # A quarter of a core fills the chart only if nothing is above it: noise should look small.
        busy = figures.sparkline(shares(points, "processes", "cpu_seconds", name), room, top=0.25)
        memory = [one.memory_bytes if one else None for one in then]
        threads = [one.threads if one else None for one in then]
        lines.append(
            f"{figures.shortened(name, 19):20}{figures.percent(now.cpu_cores):>7} "
            f"{busy}{figures.size(now.memory_bytes):>10} "
            f"{figures.sparkline(memory, room)}{now.threads:>8.0f} "
            f"{figures.sparkline(threads, room)}{now.files:>7.0f}"
        )
    return lines


def _endpoints(seen: EngineView, width: int, room: int) -> list[str]:
    if room < _FEWEST_ENDPOINTS or not seen.endpoints:
        return []
    name = max(18, width - 38)
    lines = [f"{'slowest endpoints':{name}}{'pushes':>9}{'failed':>9}{'mean':>10}{'longest':>10}"]
    for one in seen.endpoints[: room - 1]:
        address, pushes, failed, mean, longest = figures.endpoint_row(one)
        lines.append(f"{figures.shortened(address, name - 1):{name}}{pushes:>9}{failed:>9}{mean:>10}{longest:>10}")
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return [text[begin : begin + width] for begin in range(0, len(text), max(width, 1))]


def once(watch: EngineWatch, where: str, out: TextIO) -> bool:
    """Print one frame; False when there was no sample."""
    seen = first_view(watch)
    columns, rows = shutil.get_terminal_size((80, 24))
    out.write(_suited("\n".join(frame(seen, where, columns, rows)) + "\n", out))
    return bool(seen.samples)


def forever(watch: EngineWatch, where: str, out: TextIO, interval_s: float) -> None:
    """Frame after frame on the alternate screen, until q or Ctrl-C."""
    screen = Live(console=console(out), screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _keys() as pressed, screen:
        while True:
            began = time.monotonic()
            seen = watch.look()
            height = screen.console.height - 1
            lines = frame(seen, where, screen.console.width, height)
            lines += [*[""] * (height - len(lines)), "q or Ctrl-C ends it"]
            screen.update(Text(_suited("\n".join(lines), out), no_wrap=True), refresh=True)
            if "q" in pressed(max(0.1, interval_s - (time.monotonic() - began))).lower():
                return


def _sleeping(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys pressed within an interval, one by one; "" without a terminal."""
    if not sys.stdin.isatty():
        yield _sleeping
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        until = time.monotonic() + seconds
        while select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            keys = os.read(terminal, 100).decode(errors="replace")
            if not keys:  # the terminal is closed
                return "q"
            if "q" in keys.lower():
                return keys
        return ""

    tty.setcbreak(terminal, termios.TCSADRAIN)  # keeps the keys that were pressed before
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _suited(text: str, out: TextIO) -> str:
    """The text with characters that the terminal's encoding has: some encodings lack those of the charts."""
    encoding = out.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return figures.plain(text).encode(encoding, "replace").decode(encoding)
    return text
