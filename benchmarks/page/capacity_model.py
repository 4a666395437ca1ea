"""What an installation of any size needs, computed from what was measured on one machine.

The model counts processor time, bytes in memory, bytes on wires and disks, and nothing else. Each constant comes from a
stored result. Costs of a notification are lines: so much for itself, so much for each delivery, so much for each byte;
the lines go through the measured points of one subscriber, of fifty, and of a large payload. What is not linear (small
batches at low rates, slow receivers, lost hosts) is not in it, so what it answers is what is needed at least.
`checked` holds it against all measured points and says which it does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from benchmarks.page.results import Cell, Result

# A process that holds the whole routing table should start within this time, and fit into this memory.
START_S = 120.0
PROCESS_GB = 32.0

# Of a core, at most so much is planned for: above it delays grow.
FULL = 0.6

# What a 10 Gbit/s link carries in one direction, in bytes a second.
LINK = 1.25e9

# A disk that writes in sequence, bytes a second.
DISK = 5e8

# An executor of this many cores; more per machine are possible.
EXECUTOR_CORES = 8

# Beside the base, what an executor's JVM holds and what each of its Python workers takes, in GB.
EXECUTOR_JVM_GB = 1.0
WORKER_GB = 0.1

# HTTP and SOAP around a payload, on the way in and on the way out.
ENVELOPE = 1_000

# The payload that the constants are for; of another one only the difference counts.
PAYLOAD = 800

# In Kafka: what a notification takes beside its payload, with what it matched, and what an outcome takes. A test holds
# docs/operations.md to the same figures.
RECORD = 320
OUTCOME = 340


@dataclass(frozen=True)
class Cost:
    """Microseconds of one core."""

    each: float  # for a notification
    delivery: float = 0.0  # for each of its deliveries
    byte: float = 0.0  # for each byte of its payload beyond PAYLOAD

    def of(self, load: Load) -> float:
        """Of one notification under this load."""
        return self.each + self.delivery * load.deliveries + self.byte * max(0.0, load.payload - PAYLOAD)


@dataclass(frozen=True)
class Constants:
    """What one unit of work costs."""

    gateway: Cost  # one notification in each request
    batched: float  # what is left of that for each when ten are in a request
    kafka: Cost
    jvm: Cost  # Spark: planning, reading, and the tables
    driver: Cost  # the Python driver, one process and mostly one core
    worker: Cost  # matching and pushing
    table_bytes: float  # a subscription in the routing table of the driver and of each gateway
    base_bytes: float  # a subscription in the base that the workers map
    replay_per_s: float  # control records read and applied at a start

    def accepting(self, load: Load) -> float:
        """Microseconds of the gateways for a notification."""
        return self.gateway.of(load) * (self.batched if load.batched else 1.0)

    def dispatching(self, load: Load) -> float:
        """Microseconds of Spark, driver and workers for a notification."""
        return self.jvm.of(load) + self.driver.of(load) + self.worker.of(load)

    def all(self, load: Load) -> float:
        """Microseconds of everything of ours and Kafka's for a notification."""
        return self.accepting(load) + self.kafka.of(load) + self.dispatching(load)


@dataclass(frozen=True)
class Load:
    """What is asked for."""

    subscriptions: float
    per_second: float
    deliveries: float = 1.0  # of each notification, on average
    payload: float = PAYLOAD
    replicas: int = 3
    retention_s: float = 86_400.0
    batched: bool = False


@dataclass(frozen=True)
class Needs:
    """What it takes."""

    engines: int  # side by side, each with a part of the topics
    because: str  # what makes them so many
    gateways: int  # processes, of all engines
    gateway_cores: float
    kafka_cores: float
    dispatch_cores: float
    executors: int
    partitions: int
    driver_gb: float  # of each engine, and of each gateway process
    executor_gb: float
    memory_gb: float  # gateways, drivers and executors together
    in_gbit: float
    out_gbit: float
    kafka_gbit: float  # to, from and between the brokers
    kafka_mb_s: float  # written, all replicas together
    disk_tb: float
    first: str  # what breaks first on one engine as it is

    @property
    def cores(self) -> float:
        """All of them."""
        return self.gateway_cores + self.kafka_cores + self.dispatch_cores


def needs(load: Load, known: Constants) -> Needs:
    """How much of everything."""
    planned = load.per_second / 1e6 / FULL
    delivered = load.per_second * load.deliveries
    gateway_cores, dispatch_cores = planned * known.accepting(load), planned * known.dispatching(load)
    engines, because = engines_for(load, known)
    per_engine = load.subscriptions / engines
    gateways = engines * math.ceil(gateway_cores / engines)
    executors = max(engines, math.ceil(dispatch_cores / EXECUTOR_CORES))
    driver_gb = per_engine * known.table_bytes / 1e9 + 0.2
    executor_gb = per_engine * known.base_bytes / 1e9 + EXECUTOR_JVM_GB + EXECUTOR_CORES * WORKER_GB
    once = _written(load)
    # Each record is sent to the brokers once, between them to the other replicas, and read by two: notifications by the
    # dispatch and the archive, outcomes by the tables and, once more, by a margin for gateways and commands.
    on_wires = once * (load.replicas + 2)
    return Needs(
        engines=engines,
        because=because,
        gateways=gateways,
        gateway_cores=gateway_cores,
        kafka_cores=planned * known.kafka.of(load),
        dispatch_cores=dispatch_cores,
        executors=executors,
        partitions=max(4 * engines, math.ceil(dispatch_cores * 2)),
        driver_gb=driver_gb,
        executor_gb=executor_gb,
        memory_gb=(gateways + engines) * driver_gb + executors * executor_gb,
        in_gbit=load.per_second * (load.payload + ENVELOPE) * 8 / 1e9,
        out_gbit=delivered * (load.payload + ENVELOPE) * 8 / 1e9,
        kafka_gbit=on_wires * 8 / 1e9,
        kafka_mb_s=once * load.replicas / 1e6,
        disk_tb=once * load.replicas * load.retention_s / 1e12,
        first=breaks_first(load, known),
    )


def engines_for(load: Load, known: Constants) -> tuple[int, str]:
    """How many engines, and because of what: so that each one's routing table fits into a process and is read in time,
    and its driver, which is one process, keeps up."""
    wanted = {
        "memory of the routing table": load.subscriptions * known.table_bytes / (PROCESS_GB * 1e9),
        "time of a start": load.subscriptions / known.replay_per_s / START_S,
        "the driver's one core": load.per_second * known.driver.of(load) / 1e6 / FULL,
    }
    most = max(wanted, key=lambda name: wanted[name])
    count = max(1, math.ceil(wanted[most]))
    return count, most if count > 1 else "one is enough"


def breaks_first(load: Load, known: Constants) -> str:
    """Of one engine on one machine of 8 cores: whatever is over its limit by the largest factor; "nothing"."""
    over = {
        "memory of the routing table": load.subscriptions * known.table_bytes / (PROCESS_GB * 1e9),
        "time of a start": load.subscriptions / known.replay_per_s / START_S,
        "processor": load.per_second * known.all(load) / 1e6 / FULL / EXECUTOR_CORES,
        "network out": load.per_second * load.deliveries * (load.payload + ENVELOPE) / LINK,
        "Kafka's disk": _written(load) * load.replicas / DISK,
    }
    worst = max(over, key=lambda name: over[name])
    return f"{worst} ({over[worst]:.3g}x)" if over[worst] > 1 else "nothing"


def most_per_second(cores: float, load: Load, known: Constants) -> float:
    """Notifications a second that so many cores do at most, when all of the work is on them and nothing else is."""
    return cores * 1e6 / known.all(load)


def _written(load: Load) -> float:
    """Bytes a second into the logs, of one replica."""
    return load.per_second * (load.payload + RECORD + load.deliveries * OUTCOME)


_CPU = "CPU, microseconds"
_ONE = "16 publishers, 800 bytes"
_LARGE = "16 publishers, 30,000 bytes"
_WIDE = "8 publishers, 50 subscribers"
_WIDE_DELIVERIES = 50
_LARGE_PAYLOAD = 30_000


def constants_from(results: Mapping[str, Result]) -> Constants | None:
    """The constants, from stored results; None when one of them was not measured yet."""
    throughput, gateway, routing = results.get("throughput"), results.get("gateway"), results.get("routing")
    if throughput is None or gateway is None or routing is None:
        return None
    by_case = {row["case"]: row for table in throughput.tables if table.title.startswith(_CPU) for row in table.rows}
    if not {_ONE, _LARGE, _WIDE} <= by_case.keys():
        return None
    # Ten in a request, relative to one: from the gateway alone, where both were measured with nothing else running.
    rates = [row.get("messages/s") for row in gateway.rows("Notify, accepted") if row.get("load") == "64 connections"]
    numbers = [float(rate) for rate in rates if isinstance(rate, int | float)]
    applied = _first(routing, "decoded and applied/s", "exact, a topic each")
    resident = _first(routing, "resident bytes each", "exact, a topic each")
    bases = [row.get("bytes each") for row in routing.rows("the base")]
    base = bases[-1] if bases else None
    if len(numbers) < 2 or applied is None or resident is None or not isinstance(base, int | float):
        return None

    def cost(part: str) -> Cost:
        one, large = _us(by_case[_ONE], part), _us(by_case[_LARGE], part)
        wide = _us(by_case[_WIDE], part) * _WIDE_DELIVERIES
        # A line through both; where noise would make it fall, what was measured for one.
        delivery = max(0.0, (wide - one) / (_WIDE_DELIVERIES - 1))
        delivery = min(delivery, one)
        return Cost(one - delivery, delivery, max(0.0, (large - one) / (_LARGE_PAYLOAD - PAYLOAD)))

    return Constants(
        gateway=cost("gateway"),
        batched=numbers[0] / max(numbers),
        kafka=cost("kafka"),
        jvm=cost("jvm"),
        driver=cost("driver"),
        worker=cost("worker"),
        table_bytes=resident,
        base_bytes=float(base),
        replay_per_s=applied,
    )


def _us(row: Mapping[str, Cell], part: str) -> float:
    cell = row.get(part)
    return float(cell) if isinstance(cell, int | float) else 0.0


def _first(result: Result, column: str, records: str) -> float | None:
    for table in result.tables:
        for row in table.rows:
            value = row.get(column)
            if row.get("records") == records and isinstance(value, int | float):
                return float(value)
    return None


@dataclass(frozen=True)
class Point:
    """A measured point, and what the model says of it. `why` says why it is not held against the model, if it is not:
    then it only must not be above what the model allows."""

    what: str
    measured: float
    said: float
    why: str = ""

    @property
    def times(self) -> float:
        """How much more the model allows than was seen."""
        return self.said / self.measured


# How far the model may be above a point that it covers: publishers and receivers are on the same cores, and are not
# counted. And how far below any point, which is noise between runs: it claims that nothing does more.
ABOVE = 4.0
BELOW = 1.25

_FEW = "too few publishers to fill the machine"
_OFFERED = "the rate was given"


def checked(results: Mapping[str, Result], known: Constants) -> list[Point]:
    """All stored points that the model says something about, in deliveries a second. Quick runs are left out."""

    def said(result: Result, deliveries: float = 1, payload: float = PAYLOAD) -> float:
        load = Load(1_000, 1, deliveries, payload)
        return most_per_second(float(result.machine["cores"]), load, known) * deliveries

    points = []

    def add(part: str, title: str, column: str, name: str, why: str = "") -> None:
        result = results.get(part)
        for row in result.rows(title) if result is not None and not result.quick else ():
            seen, value = row.get("delivered/s"), row.get(column)
            if result is None or not isinstance(seen, int | float) or value is None or not seen:
                continue
            number = float(value) if isinstance(value, int | float) else 0.0
            deliveries = {"subscribers": number, "case": 1.0}.get(column, 1.0)
            payload = number if column == "payload bytes" else PAYLOAD
            if column == "case":
                publishers, _, size = str(value).partition(" publishers, ")
                deliveries = float(_WIDE_DELIVERIES) if title.startswith("50") else 1.0
                payload = float(size.split()[0].replace(",", ""))
                why = _FEW if publishers == "1" else ""
            shown = value if isinstance(value, str) else f"{number:,.0f}"
            points.append(Point(name.format(shown), float(seen), said(result, deliveries, payload), why))

    add("throughput", "one subscriber", "case", "one subscriber, {}")
    add("throughput", "50 subscribers", "case", "50 subscribers, {}")
    add("scaling", "fan-out", "subscribers", "{} subscribers")
    add("scaling", "size of a message", "payload bytes", "{} bytes")
    add("scaling", "topics, one subscriber", "topics published to", "{} topics")
    add("scaling", "notifications a second", "offered/s", "{}/s offered", _OFFERED)
    add("scaling", "subscriptions", "other topics and subscriptions", "{} other subscriptions", _OFFERED)
    return points


# The columns of the page's table: how each load is called there.
LOADS = {
    "10^5, 1,000/s": Load(1e5, 1e3),
    "10^6, 10,000/s": Load(1e6, 1e4),
    "10^7, 100,000/s": Load(1e7, 1e5),
    "10^8, 10,000/s": Load(1e8, 1e4),
    "10^8, 1,000,000/s": Load(1e8, 1e6),
    "the same, ten in a Notify": Load(1e8, 1e6, batched=True),
    "the same, ten deliveries each": Load(1e8, 1e6, deliveries=10, batched=True),
}

_SHOWN = {
    "engines": "engines side by side",
    "because": "so many because of",
    "gateways": "gateway processes, all engines",
    "gateway_cores": "gateway cores",
    "kafka_cores": "Kafka cores",
    "dispatch_cores": "dispatch cores",
    "executors": f"executors of {EXECUTOR_CORES} cores",
    "partitions": "partitions of `notifications`, all engines",
    "driver_gb": "memory of each driver and gateway process, GB",
    "executor_gb": "memory of each executor, GB",
    "memory_gb": "memory in all, without Kafka, GB",
    "in_gbit": "network in, Gbit/s",
    "out_gbit": "network out, Gbit/s",
    "kafka_gbit": "network to, from and between brokers, Gbit/s",
    "kafka_mb_s": "Kafka writes, MB/s, three replicas",
    "disk_tb": "Kafka disk for a day, TB, three replicas",
    "first": "one engine, one machine: what breaks first",
}


def sized_table(known: Constants | None) -> list[dict[str, Cell]]:
    """Rows for the page: one for each need, a column for each load."""
    if known is None:
        return []
    sized = {name: needs(load, known) for name, load in LOADS.items()}
    rows: list[dict[str, Cell]] = []
    for field in fields(Needs):
        row: dict[str, Cell] = {"subscriptions, notifications/s": _SHOWN[field.name]}
        for name, each in sized.items():
            value = getattr(each, field.name)
            row[name] = float(f"{value:.2g}") if isinstance(value, float) else value
        rows.append(row)
    return rows
