"""The picture that `arborcast top` shows, as lines of text. Pure: state in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from jobs.monitoring import figures
from jobs.monitoring.moments import Moment, cpu_shares, quantiles, rates, thinned
from jobs.monitoring.watching import Seen

_LABEL, _NOW = 20, 9
_PROCESSES, _FEWEST_ENDPOINTS = 8, 2


def frame(seen: Seen, where: str, width: int = 80, height: int = 24) -> list[str]:
    """At most `height` lines of at most `width` characters; made for 80 by 24, and good from 60 by 16 on."""
    if not seen.moments:
        lines = [f"Arborcast at {where}", "", seen.problem or "nothing is known yet"]
    else:
        lines = [_headline(seen, where, width), *_charts(seen.moments, width), _state(seen.moments[-1]), ""]
        lines += [*_processes(seen.moments, width), ""]
        if seen.problem:
            lines.append(seen.problem)
        lines += _endpoints(seen, height - len(lines))
    return [figures.printable(line)[:width].rstrip() for line in lines[:height]]


def _headline(seen: Seen, where: str, width: int) -> str:
    last = seen.moments[-1]
    away = [part for part, ready in sorted(last.parts.items()) if not ready]
    state = f"NOT READY: {', '.join(away)}" if away else "ready" if last.parts else ""
    at = datetime.fromtimestamp(last.at, UTC).strftime("%H:%M:%S UTC")
    left = f"Arborcast at {where}   {state}"
    return left + at.rjust(max(len(at) + 1, width - len(left)))


def _charts(moments: Sequence[Moment], width: int) -> list[str]:
    room = width - _LABEL - _NOW - 2
    points = thinned(moments, room + 1)
    minutes = (points[-1].at - points[0].at) / 60
    heading = f"{'':{_LABEL}}{'now':>{_NOW}}  {'the last ' + figures.seconds(minutes * 60) if len(points) > 1 else ''}"
    delivered = rates(points, "attempts", "delivered")
    failed = [
        None if every is None or good is None else max(0.0, every - good)
        for every, good in zip(rates(points, "attempts"), delivered, strict=True)
    ]
    rows: list[tuple[str, str, Sequence[float | None]]] = [
        ("accepted /s", "count", rates(points, "accepted")),
        ("delivered /s", "count", delivered),
        ("not delivered /s", "count", failed),
        ("delivery, median", "seconds", quantiles(points, "delivery", 0.5)),
        ("delivery, 99 %", "seconds", quantiles(points, "delivery", 0.99)),
        ("append, 99 %", "seconds", quantiles(points, "append", 0.99)),
        ("lag, records", "count", [point.lag_records for point in points]),
        ("lag, time", "seconds", [point.lag_seconds for point in points]),
    ]
    return [heading, *(_chart(label, kind, values, room) for label, kind, values in rows)]


def _chart(label: str, kind: str, values: Sequence[float | None], room: int) -> str:
    write = figures.count if kind == "count" else figures.seconds
    return f"{label:{_LABEL}}{write(_last(values)):>{_NOW}}  {figures.sparkline(values, room)}"


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _state(last: Moment) -> str:
    words = [
        f"subscriptions {figures.count(last.subscriptions)}",
        f"parked {figures.count(last.waiting.get('parked', 0))}",
        f"due {figures.count(last.waiting.get('due', 0))}",
        f"dead {figures.count(last.attempts.get('dead', 0))}",
        f"refused {figures.count(sum(last.refused.values()))}",
    ]
    open_ones = sum(number for state, number in last.breakers.items() if state != "closed")
    if open_ones:
        words.append(f"breakers open {figures.count(open_ones)}")
    return "   ".join(words)


def _processes(moments: Sequence[Moment], width: int) -> list[str]:
    room = max(4, (width - 20 - 7 - 10 - 9 - 8 - 4) // 2)
    points = thinned(moments, room + 1)
    last = points[-1]
    lines = [f"{'process':20}{'cpu':>7} {'':{room}}{'memory':>10} {'':{room}}{'threads':>9}{'files':>8}"]
    for name in sorted(last.processes, key=lambda name: -last.processes[name].memory_bytes)[:_PROCESSES]:
        now = last.processes[name]
        shares = cpu_shares(points, name)
        memory = [point.processes[name].memory_bytes if name in point.processes else None for point in points]
        lines.append(
            f"{figures.shortened(name, 19):20}{figures.percent(_last(shares)):>7} "
            # A quarter of a core fills the chart only if nothing is above it: noise should look small.
            f"{figures.sparkline(shares, room, top=0.25)}{figures.size(now.memory_bytes):>10} "
            f"{figures.sparkline(memory, room)}{now.threads:>9.0f}{now.descriptors:>8.0f}"
        )
    return lines


def _endpoints(seen: Seen, room: int) -> list[str]:
    if room < _FEWEST_ENDPOINTS or not seen.endpoints:
        return []
    lines = [f"{'slowest endpoints':42}{'pushes':>9}{'failed':>9}{'mean':>10}{'longest':>10}"]
    for one in seen.endpoints[: room - 1]:
        lines.append(
            f"{figures.shortened(str(one['endpoint']), 41):42}{figures.count(one['pushes']):>9}"
            f"{figures.count(one['failed']):>9}{figures.seconds(one['mean_s']):>10}"
            f"{figures.seconds(one['longest']):>10}"
        )
    return lines
