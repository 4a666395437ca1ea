"""What was asked of the engine, and where in the results the answer is.

Each line names a part of the page; its figure is looked up in that part's tables and compared here, so that the page
can never say "met" of something that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.page.asked import Answer, Target, best, cell, column_of, ratio, total, worst
from benchmarks.page.results import Result


def answers(results: Mapping[str, Result]) -> list[Answer]:
    """All targets, in their order."""
    found = []
    for target in TARGETS:
        result = results.get(target.part)
        seen = target.find(result) if result is not None else None
        met = target.met(seen) if seen is not None else None
        found.append(Answer(target, seen, met, result.quick if result is not None else False))
    return found


def _slowest_question(result: Result) -> float | None:
    """Over all tables of questions."""
    taken = [row.get("seconds") for table in result.tables for row in table.rows if "question" in row]
    return max((float(each) for each in taken if isinstance(each, int | float)), default=None)


def _per_second(nanoseconds: float | None) -> float | None:
    return 1e9 / nanoseconds if nanoseconds else None


def _times_camel(result: Result) -> float | None:
    title, case = "from a Kafka log to HTTP", "50/s, 1 subscriber"
    ours = result.find(title, "p50 ms", case=case, system="Arborcast, raw form")
    theirs = result.find(title, "p50 ms", case=case, system="Camel")
    return ours / theirs if ours and theirs else None


def _times_cxf(result: Result, case: str) -> float | None:
    """Ours over the better of its two modes."""
    ours = result.find("throughput", "delivered/s", case=case, system="Arborcast")
    theirs = [
        float(rate)
        for row in result.rows("throughput")
        if row.get("case") == case
        and str(row.get("system", "")).startswith("CXF")
        and isinstance(rate := row.get("delivered/s"), int | float)
    ]
    return ours / max(theirs) if ours and theirs else None


_GEARS = "Both gears"
_SHIFTS = "200/s while the gear changes"
_STEADY = "latency at a steady rate"
_BESIDE = "500/s to one subscriber"
_SICK = "seven healthy subscribers"
_URGENT = "Ten urgent ones a second"
_OTHERS = "the other three of ten"

TARGETS = (
    Target(
        "dispatch",
        "16 publishers, 1 subscriber, 800 bytes: delivered/s (aim 7,000)",
        "throughput",
        "/s",
        cell("one subscriber", "delivered/s", case="16 publishers, 800 bytes"),
        least=3_000,
    ),
    Target(
        "dispatch",
        "from the log, one message per request: pushes/s",
        "burst-single",
        "/s",
        best("From the log", "per_second"),
        least=12_000,
    ),
    Target(
        "dispatch",
        "from the log, messages share requests: messages/s",
        "burst-shared",
        "/s",
        best("From the log", "per_second"),
        least=30_000,
    ),
    Target(
        "dispatch",
        "from the log, one message per request: pushes/s, times a bare prototype's",
        "prototype",
        "x",
        cell("A backlog, one message per request, gear batch", "times the prototype's pushes/s", what="engine"),
        least=0.9,
    ),
    Target(
        "dispatch",
        "8 publishers, 50 subscribers: delivered/s",
        "throughput",
        "/s",
        cell("50 subscribers", "delivered/s"),
        least=30_000,
    ),
    *(
        Target(
            "latency",
            f"{rate}/s, one subscriber: p{share}",
            "throughput",
            "ms",
            cell(_STEADY, f"p{share} ms", case=f"{rate}/s"),
            most=limit,
        )
        for rate, p50, p99 in (("50", 100, 250), ("500", 150, 300), ("1,000", 200, 400))
        for share, limit in ((50, p50), (99, p99))
    ),
    *(
        Target(
            "latency",
            f"{rate}/s in real time, from the log to one subscriber: p{share}",
            "gears",
            "ms",
            cell(_GEARS, f"p{share} ms", rate=f"{rate}/s", gear="realtime"),
            most=limit,
        )
        for rate in ("5", "50", "500", "1,000")
        for share, limit in ((50, 12), (99, 40))
    ),
    *(
        Target(
            "latency",
            f"a shift to {gear}, at 200/s: the longest wait",
            "shifts",
            "ms",
            cell(_SHIFTS, "longest ms", change=f"a shift to {gear}"),
            most=2_000,
        )
        for gear in ("batches", "real time")
    ),
    Target(
        "dispatch",
        "lost, twice or out of order while gears change",
        "shifts",
        "",
        total(_SHIFTS, "lost", "twice", "disorder"),
        most=0,
    ),
    Target(
        "dispatch",
        "lost, twice or out of order in the runs above",
        "throughput",
        "",
        lambda result: sum(
            value
            for title in ("one subscriber", _STEADY, "50 subscribers")
            if (value := total(title, "lost", "twice", "disorder")(result)) is not None
        ),
        most=0,
    ),
    Target(
        "isolation",
        "1 of 10 hangs, 1 dead, 1 fails half: p99 of the healthy, times that of all-healthy",
        "subscribers",
        "x",
        ratio(_SICK, "p99 ms", (_OTHERS, "hang"), (_OTHERS, "are healthy")),
        most=1.5,
    ),
    Target(
        "isolation",
        "1,000 subscribers on 1,000 ports: descriptors of the workers",
        "subscribers",
        "",
        lambda result: worst("1,000 subscribers on as many", "workers' descriptors")(result),
    ),
    *(
        Target(
            "priority",
            f"ten urgent ones a second behind {waiting} that are parked, in real time: p99",
            "priority",
            "ms",
            cell(_URGENT, "p99 ms", gear="realtime", where="parked", waiting=waiting, priority=5),
        )
        for waiting in ("10,000", "100,000")
    ),
    Target(
        "priority",
        "lost, or out of order within a priority",
        "priority",
        "",
        total(_URGENT, "lost", "disorder"),
        most=0,
    ),
    Target(
        "change",
        "subscription changes at 100/s beside 500/s: p99, times that of none",
        "churn",
        "x",
        ratio(_BESIDE, "p99 ms", ("beside it", "100 changes"), ("beside it", "nothing")),
        most=1.5,
    ),
    Target(
        "change",
        "100,000 topics with a subscription each, 500/s: p99, times that of none",
        "churn",
        "x",
        ratio(_BESIDE, "p99 ms", ("beside it", "100,000 topics and"), ("beside it", "nothing")),
        most=1.2,
    ),
    Target(
        "gateway",
        "Notify, 64 connections, one message: accepted/s",
        "gateway",
        "/s",
        cell("Notify, accepted", "messages/s", load="64 connections"),
        least=8_000,
    ),
    Target(
        "gateway",
        "Notify at 1,000/s: p99",
        "gateway",
        "ms",
        cell("Notify, accepted", "p99 ms", load="1,000/s"),
        most=20,
    ),
    Target(
        "gateway",
        "ten messages in each Notify: messages/s",
        "gateway",
        "/s",
        best("Notify, accepted", "messages/s"),
        least=30_000,
    ),
    *(
        Target(
            "gateway",
            f"CPU of a Notify from {connections} connections, times the floor's",
            "floor",
            "x",
            cell(f"Notify from {connections} connections", "times the floor", what="gateway"),
            most=2.0,
        )
        for connections in (1, 16, 64)
    ),
    Target(
        "gateway",
        "first notification on a topic at 100/s: p50, times a known one's",
        "new-topics",
        "x",
        cell("First and later notifications, 100/s", "p50 times known", topics="new"),
        most=3,
    ),
    Target(
        "gateway",
        "topics that nobody has named: accepted/s",
        "new-topics",
        "/s",
        cell("First and later notifications, 64 connections", "accepted/s", topics="new"),
        least=2_000,
    ),
    Target("gateway", "Subscribe, durable: /s", "gateway", "/s", cell("Subscribe", "per second"), least=500),
    Target("gateway", "idle worker: memory", "gateway", "MiB", cell("Memory", "RSS MiB", requests=0), most=120),
    Target("client", "asynchronous notifies/s, one process", "client", "/s", best("Notify, from", "per second"), 2_000),
    Target(
        "engine",
        "warm `up` to the first delivered notification",
        "engine",
        "s",
        cell("The engine as a whole: starts", "delivered_s", kind="warm"),
        most=20,
    ),
    Target(
        "engine",
        "idle, all parts: memory (PSS)",
        "engine",
        "MiB",
        cell("The engine as a whole: idle", "mib", what="all"),
        most=900,
    ),
    Target(
        "engine",
        "idle, all parts: CPU of one core",
        "engine",
        "%",
        cell("The engine as a whole: idle", "cpu_percent", what="all"),
        most=4,
    ),
    Target(
        "engine",
        "one notification at 5/s, end to end: p50",
        "engine",
        "ms",
        cell("The engine as a whole: lone", "p50_ms"),
        most=100,
    ),
    Target(
        "recovery",
        "the job is killed: next delivery after, at worst",
        "recovery",
        "s",
        worst("the streaming job", "s until the next delivery"),
        most=30,
    ),
    Target("recovery", "lost by these kills", "recovery", "", total("the streaming job", "lost"), most=0),
    Target(
        "recovery",
        "pushed again by a kill, at most",
        "recovery",
        "",
        worst("the streaming job", "pushed again"),
    ),
    Target(
        "recovery",
        "the gateway is killed: next 202 after, at worst",
        "recovery",
        "s",
        worst("the gateway", "s until the next 202"),
        most=5,
    ),
    Target(
        "recovery",
        "a million parked rows elsewhere: p99 at 500/s, times that of none",
        "parked-elsewhere",
        "x",
        cell("all rounds", "ratio", figure="p99 ms"),
        most=1.2,
    ),
    Target(
        "latency",
        "through three triggers in a row: p50, times that of a plain delivery, in the worse gear",
        "triggers",
        "x",
        worst("20/s for 30 s: plain, and through three triggers", "p50 ratio"),
        most=6,
    ),
    Target(
        "isolation",
        "a receiver away for 10 s, strict, adaptive or timely: p99 of the others, times that without it",
        "reliabilities",
        "x",
        worst("the others", "p99 ratio"),
        most=1.5,
    ),
    Target(
        "cluster",
        "over a link to another engine: messages/s",
        "federation",
        "/s",
        cell("20,000 at once", "messages/s", where="at the other engine"),
        least=460,
    ),
    Target(
        "cluster",
        "a broker of three killed under load: longest stall",
        "broker-loss",
        "s",
        worst("A broker of three is killed under load: stalls", "stalls_s"),
        most=15,
    ),
    Target(
        "cluster",
        "lost when a broker is killed",
        "broker-loss",
        "",
        cell("A broker of three is killed under load", "lost"),
        most=0,
    ),
    Target(
        "cluster",
        "a gateway is killed: its duties are taken over by another after, at worst",
        "cluster",
        "s",
        worst("Takeover of the duties", "longest s"),
        most=10,
    ),
    Target(
        "cluster",
        "two executors beside local mode on the same cores: throughput",
        "executors",
        "x",
        ratio("Task slots and executors", "delivered/s", ("where", "cluster, 2"), ("where", "local, 4")),
    ),
    Target(
        "recording",
        "deliveries/s with the tables written, times those without",
        "recording",
        "x",
        cell("medians", "ratio", figure="deliveries/s"),
        least=0.9,
    ),
    *(
        Target(
            "recording",
            f"p{share} at 1,000/s with the tables written, times that without",
            "recording",
            "x",
            cell("medians", "ratio", figure=f"p{share} ms"),
            most=limit,
        )
        for share, limit in ((50, 1.5), (99, 2.0))
    ),
    Target("recording", "the slowest question to the tables", "tables", "s", _slowest_question, most=5),
    Target("recording", "audit", "audit", "s", cell("Audit of", "figure", what="audit, seconds")),
    Target(
        "recovery",
        "parked rows drained when an endpoint is back (50 subscriptions, one message per request)",
        "redelivery",
        "/s",
        cell("drained", "per second", form="raw", subscriptions=50),
    ),
    Target(
        "matching",
        "matches/s on one core, 1,000,000 topics and subscriptions, zipf",
        "routing",
        "/s",
        lambda result: _per_second(
            result.find("match, nanoseconds", "zipf", topics=1_000_000, subscriptions=1_000_000)
        ),
        least=300_000,
    ),
    Target(
        "security",
        "asking who it is: fewer accepted/s, the dearest way",
        "security",
        "%",
        worst("Notify from 64 connections", "by %"),
        most=10,
    ),
    Target(
        "security", "signed pushes: fewer a second", "security", "%", worst("Pushes over libcurl", "less by %"), most=10
    ),
    Target(
        "older system",
        "its experiments, by one publisher and by sixteen: slowest, delivered/s (its floor: 460)",
        "older",
        "/s",
        lambda result: min(column_of(result, "experiments", "delivered/s"), default=None),
        least=460,
    ),
    Target(
        "older system",
        "depth to 16, width to 16,000: slowest, delivered/s (its floor: 460)",
        "older",
        "/s",
        lambda result: min(
            [*column_of(result, "depth", "delivered/s"), *column_of(result, "width", "delivered/s")], default=None
        ),
        least=460,
    ),
    Target(
        "older system",
        "its experiments: lost, twice or out of order",
        "older",
        "",
        total("experiments", "lost", "twice", "disorder"),
        most=0,
    ),
    Target(
        "older system",
        "its experiments: fastest by slowest rate over time",
        "older",
        "x",
        worst("experiments", "fastest : slowest"),
        most=1.1,
    ),
    Target(
        "older system",
        "30,000 bytes in ten parts: messages/s (its floor: 460)",
        "fragments",
        "/s",
        cell("Ten times as large", "messages/s", case="30,000 bytes, ten pushes", publishers=16),
        least=460,
    ),
    Target(
        "older system",
        "30,000 bytes in ten parts: messages/s beside those that are whole",
        "fragments",
        "x",
        ratio("Ten times as large", "messages/s", ("case", "30,000 bytes, ten"), ("case", "30,000 bytes, whole")),
        least=0.8,
    ),
    Target(
        "operation",
        "web console, a million topics: first paint of the slowest screen, ms",
        "console",
        "ms",
        worst("Screens, 1,000,000", "first paint ms"),
        most=300,
    ),
    Target(
        "operation",
        "web console, a million topics: the same, times a page of text",
        "console",
        "x",
        worst("Screens, 1,000,000", "paint, of floor"),
    ),
    Target(
        "scaling",
        "lost, twice or out of order in all scaling runs",
        "scaling",
        "",
        lambda result: sum(total(table.title, "lost", "twice", "disorder")(result) or 0 for table in result.tables),
        most=0,
    ),
    *(
        Target(
            "side by side",
            f"{what}: times the WS-Notification broker of Apache CXF",
            "peers",
            "x",
            partial(_times_cxf, case=case),
            least=least,
        )
        for what, case, least in (
            ("1 publisher that waits for each answer, 1 subscriber", "1x1", 1),
            ("16 publishers, 1 subscriber", "16x1", 2.5),
            ("8 publishers, 10 subscribers", "8x10", 5),
            ("8 publishers, 50 subscribers", "8x50", 10),
        )
    ),
    Target(
        "side by side",
        "50/s from a Kafka log to HTTP: p50, times Apache Camel's",
        "peers",
        "x",
        _times_camel,
        most=3,
    ),
)
