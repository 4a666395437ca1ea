"""The pictures of the benchmark page, each from the results of one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.dispatch.older_system import FLOOR
from benchmarks.page.pictures import Line, bars, lines
from benchmarks.page.results import Result

TITLES = {
    "peers-throughput": "Delivered a second, side by side",
    "peers-latency": "Median delay at light load, side by side",
    "rate": "Delay over the rate, one subscriber",
    "fan-out": "Delivered a second over the number of subscribers",
    "size": "Delivered over the size of a message",
    "topics": "Notifications a second over topics, delay over subscriptions",
    "executors": "Pushes a second over task slots and executors",
    "older": "Depth and width, beside the older system's floor",
    "older-over-time": "The older system's experiments: messages a second so far",
}


def drawn(results: Mapping[str, Result]) -> dict[str, str]:
    """Pictures by name, of what there are results for."""
    pictures = {}
    for name, (part, draw) in _DRAWN.items():
        if part in results and results[part].tables:
            pictures[name] = draw(TITLES[name], results[part])
    return pictures


def _curve(result: Result, table: str, x: str, y: str, name: str) -> Line:
    points = []
    for row in result.rows(table):
        across, up = row.get(x), row.get(y)
        if isinstance(across, int | float) and isinstance(up, int | float):
            points.append((float(across), float(up)))
    return Line(name, sorted(points))


def _grouped(title: str, up: str, result: Result, table: str, column: str) -> str:
    rows = result.rows(table)
    cases = list(dict.fromkeys(str(row.get("case")) for row in rows if row.get("case") != "-"))
    systems = list(dict.fromkeys(str(row.get("system")) for row in rows if row.get("case") != "-"))
    systems.sort(key=lambda system: not system.startswith("Arborcast"))
    series = {system: [result.find(table, column, case=case, system=system) for case in cases] for system in systems}
    return bars(title, f"{up} (logarithmic)", cases, series, log_y=True)


def _peers_throughput(title: str, result: Result) -> str:
    return _grouped(title, "delivered/s", result, "throughput", "delivered/s")


def _peers_latency(title: str, result: Result) -> str:
    return _grouped(title, "p50, ms", result, "light load", "p50 ms")


def _rate(title: str, result: Result) -> str:
    table = "notifications a second"
    curves = [_curve(result, table, "offered/s", f"p{share} ms", f"p{share}") for share in (50, 99)]
    return lines(title, "offered notifications/s", "ms", curves, log_y=True)


def _fan_out(title: str, result: Result) -> str:
    curve = _curve(result, "fan-out", "subscribers", "delivered/s", "delivered/s")
    sent = Line("accepted/s", [(x, y / x) for x, y in curve.points])
    return lines(title, "subscribers", "a second", [curve, sent], log_y=True)


def _size(title: str, result: Result) -> str:
    table = "size of a message"
    messages = _curve(result, table, "payload bytes", "delivered/s", "messages/s")
    megabytes = _curve(result, table, "payload bytes", "delivered MB/s", "MB/s")
    return lines(title, "payload, bytes", "a second", [messages, megabytes], log_y=True)


def _topics(title: str, result: Result) -> str:
    rate = _curve(result, "topics, one", "topics published to", "delivered/s", "delivered/s, over topics")
    name = "p50 ms at 500/s, over other subscriptions"
    delay = _curve(result, "subscriptions", "other topics and subscriptions", "p50 ms", name)
    return lines(title, "topics, subscriptions", "a second, ms", [rate, delay], log_y=True)


def _executors(title: str, result: Result) -> str:
    rows = result.rows("Task slots")
    groups = [
        str(row.get("where")).split(":")[0].removesuffix(" executors").removesuffix(" task slots") for row in rows
    ]
    values = [float(value) if isinstance(value := row.get("delivered/s"), int | float) else None for row in rows]
    return bars(title, "pushes/s", groups, {"one message per request, from the log": values})


def _older(title: str, result: Result) -> str:
    depth = _curve(result, "depth", "levels", "delivered/s", "over depth (levels)")
    width = _curve(result, "width", "topics side by side", "delivered/s", "over width (topics)")
    return lines(title, "levels, topics", "delivered/s", _above_the_floor([depth, width]), log_y=True)


def _older_over_time(title: str, result: Result) -> str:
    rows = result.rows("rates over time")
    names = [name for name in (rows[0] if rows else {}) if name != "messages"]
    # Of the three topics, which lie on each other, the one in the middle.
    curves = [_curve(result, "rates over time", "messages", name, name) for name in names if name.startswith("depth 4")]
    return lines(title, "messages so far", "messages/s", _above_the_floor(curves), log_x=False, log_y=True)


def _above_the_floor(curves: list[Line]) -> list[Line]:
    across = [x for each in curves for x, _ in each.points] or [1.0, 10.0]
    floor = Line(f"the older system, {FLOOR}/s", [(min(across), FLOOR), (max(across), FLOOR)], dashed=True)
    return [*curves, floor]


_DRAWN: dict[str, tuple[str, Callable[[str, Result], str]]] = {
    "peers-throughput": ("peers", _peers_throughput),
    "peers-latency": ("peers", _peers_latency),
    "rate": ("scaling", _rate),
    "fan-out": ("scaling", _fan_out),
    "size": ("scaling", _size),
    "topics": ("scaling", _topics),
    "executors": ("executors", _executors),
    "older": ("older", _older),
    "older-over-time": ("older", _older_over_time),
}
