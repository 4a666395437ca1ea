"""What an installation of any size needs, computed from what was measured on one machine.

The model counts three things and nothing else: processor time, bytes in memory, bytes on wires and disks. Each has a
constant that comes from a stored result. What it answers is therefore a lower bound: slow receivers, networks and
unlucky distributions come on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from tests.benchmarks._results import Cell, Result

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

# HTTP and SOAP around a payload, on the way in and on the way out.
ENVELOPE = 1_000

# In Kafka: what a notification takes beside its payload, with what it matched, and what an outcome takes. A test holds
# docs/operations.md to the same figures.
RECORD = 320
OUTCOME = 340


@dataclass(frozen=True)
class Constants:
    """What one unit of work costs. Times in microseconds of one core."""

    gateway_us: float  # a notification accepted, one in each request
    gateway_batched_us: float  # ten in each request
    kafka_us: float  # a notification in the logs, its outcomes included
    spark_us: float  # a notification planned and read by Spark's JVM and the driver, under load
    single_push_us: float  # a delivery in the workers when it has a request of its own
    shared_push_us: float  # a delivery in the workers when fifty subscribers have it and requests are shared
    table_bytes: float  # a subscription in the routing table of the driver and of each gateway
    base_bytes: float  # a subscription in the base that the workers map
    replay_per_s: float  # control records read and applied at a start


@dataclass(frozen=True)
class Load:
    """What is asked for."""

    subscriptions: float
    per_second: float
    deliveries: float = 1.0  # of each notification, on average
    payload: float = 800.0
    replicas: int = 3
    retention_s: float = 86_400.0
    batched: bool = False


@dataclass(frozen=True)
class Needs:
    """What it takes."""

    engines: int  # side by side, each with a part of the topics
    gateway_cores: float
    kafka_cores: float
    dispatch_cores: float
    executors: int
    partitions: int
    driver_gb: float  # of each engine, and of each gateway process
    executor_gb: float  # the base of an engine, mapped once in each executor
    in_gbit: float
    out_gbit: float
    kafka_mb_s: float  # written, all replicas together
    disk_tb: float
    first: str  # what breaks first on one engine as it is

    @property
    def cores(self) -> float:
        """All of them."""
        return self.gateway_cores + self.kafka_cores + self.dispatch_cores


def needs(load: Load, known: Constants) -> Needs:
    """How much of everything."""
    gateway = known.gateway_batched_us if load.batched else known.gateway_us
    push = _push_us(load, known)
    delivered = load.per_second * load.deliveries
    gateway_cores = load.per_second * gateway / 1e6 / FULL
    kafka_cores = load.per_second * known.kafka_us / 1e6 / FULL
    dispatch_cores = (load.per_second * known.spark_us + delivered * push) / 1e6 / FULL
    engines = engines_for(load, known)
    per_engine = load.subscriptions / engines
    written = (load.per_second * (load.payload + RECORD) + delivered * OUTCOME) * load.replicas
    return Needs(
        engines=engines,
        gateway_cores=gateway_cores,
        kafka_cores=kafka_cores,
        dispatch_cores=dispatch_cores,
        executors=max(engines, math.ceil(dispatch_cores / EXECUTOR_CORES)),
        partitions=max(4 * engines, math.ceil(dispatch_cores * 2)),
        driver_gb=per_engine * known.table_bytes / 1e9 + 0.2,
        executor_gb=per_engine * known.base_bytes / 1e9 + 1.0,
        in_gbit=load.per_second * (load.payload + ENVELOPE) * 8 / 1e9,
        out_gbit=delivered * (load.payload + ENVELOPE) * 8 / 1e9,
        kafka_mb_s=written / 1e6,
        disk_tb=written * load.retention_s / 1e12,
        first=breaks_first(load, known),
    )


def engines_for(load: Load, known: Constants) -> int:
    """How many engines, so that each one's routing table fits into a process and is read in time."""
    memory = load.subscriptions * known.table_bytes / (PROCESS_GB * 1e9)
    start = load.subscriptions / known.replay_per_s / START_S
    return max(1, math.ceil(memory), math.ceil(start))


def breaks_first(load: Load, known: Constants) -> str:
    """Of one engine on one machine of 8 cores: whatever is over its limit by the largest factor; "nothing"."""
    gateway = known.gateway_batched_us if load.batched else known.gateway_us
    delivered = load.per_second * load.deliveries
    spent = load.per_second * (gateway + known.kafka_us + known.spark_us) + delivered * _push_us(load, known)
    over = {
        "memory of the routing table": load.subscriptions * known.table_bytes / (PROCESS_GB * 1e9),
        "time of a start": load.subscriptions / known.replay_per_s / START_S,
        "processor": spent / 1e6 / FULL / EXECUTOR_CORES,
        "network out": delivered * (load.payload + ENVELOPE) / LINK,
        "Kafka's disk": load.per_second * load.payload * load.replicas / DISK,
    }
    worst = max(over, key=lambda name: over[name])
    return f"{worst} ({over[worst]:.3g}x)" if over[worst] > 1 else "nothing"


def most_per_second(cores: float, load: Load, known: Constants) -> float:
    """Notifications a second that so many cores do at most, when all of the work is on them."""
    gateway = known.gateway_batched_us if load.batched else known.gateway_us
    each = gateway + known.kafka_us + known.spark_us + load.deliveries * _push_us(load, known)
    return cores * 1e6 / each


def _push_us(load: Load, known: Constants) -> float:
    """Between a request of its own and shared ones: what is spread over many deliveries counts less."""
    if load.deliveries <= 1:
        return known.single_push_us
    return known.shared_push_us + (known.single_push_us - known.shared_push_us) / load.deliveries


def constants_from(results: Mapping[str, Result]) -> Constants | None:
    """The constants, from stored results; None when one of them was not measured yet."""
    throughput, gateway, routing = results.get("throughput"), results.get("gateway"), results.get("routing")
    if throughput is None or gateway is None or routing is None:
        return None
    cpu, single, wide = "CPU, microseconds", "16 publishers, 800 bytes", "8 publishers, 50 subscribers"
    rows = [
        row
        for table in throughput.tables
        if table.title.startswith(cpu)
        for row in table.rows
        if row.get("case") in (single, wide)
    ]
    by_case = {row["case"]: row for row in rows}
    if single not in by_case or wide not in by_case:
        return None

    def us(case: str, *parts: str) -> float:
        cells = [by_case[case].get(part) for part in parts]
        return sum(float(cell) for cell in cells if isinstance(cell, int | float))

    one = us(single, "gateway")
    # Ten in a request, relative to one: from the gateway alone, where both were measured with nothing else running.
    rates = [row.get("messages/s") for row in gateway.rows("Notify, accepted") if row.get("load") == "64 connections"]
    numbers = [float(rate) for rate in rates if isinstance(rate, int | float)]
    applied = _first(routing, "", "decoded and applied/s", "exact, a topic each")
    resident = _first(routing, "", "resident bytes each", "exact, a topic each")
    bases = [row.get("bytes each") for row in routing.rows("the base")]
    base = bases[-1] if bases else None
    if len(numbers) < 2 or applied is None or resident is None or not isinstance(base, int | float):
        return None
    return Constants(
        gateway_us=one,
        gateway_batched_us=one * numbers[0] / max(numbers),
        kafka_us=us(single, "kafka"),
        spark_us=us(single, "jvm", "driver"),
        single_push_us=us(single, "worker"),
        shared_push_us=us(wide, "worker"),
        table_bytes=resident,
        base_bytes=float(base),
        replay_per_s=applied,
    )


def _first(result: Result, title: str, column: str, records: str) -> float | None:
    for table in result.tables:
        for row in table.rows:
            value = row.get(column)
            if row.get("records") == records and isinstance(value, int | float):
                return float(value)
    return None


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
    "gateway_cores": "gateway cores",
    "kafka_cores": "Kafka cores",
    "dispatch_cores": "dispatch cores",
    "executors": f"executors of {EXECUTOR_CORES} cores",
    "partitions": "partitions of `notifications`, all engines",
    "driver_gb": "memory of each driver and gateway process, GB",
    "executor_gb": "memory of each executor, GB",
    "in_gbit": "network in, Gbit/s",
    "out_gbit": "network out, Gbit/s",
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
