"""The model of large installations: its structure, and the measured points that it has to come near."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.page.capacity_model import (
    ABOVE,
    BELOW,
    FULL,
    LOADS,
    PROCESS_GB,
    START_S,
    Constants,
    Cost,
    Load,
    breaks_first,
    checked,
    constants_from,
    engines_for,
    most_per_second,
    needs,
    sized_table,
)
from benchmarks.page.results import ROOT, Result, load

# About what was measured on two cores, when nothing else ran.
KNOWN = Constants(
    gateway=Cost(175, 1.2, 0.011),
    batched=0.35,
    kafka=Cost(55, 1.3, 0.004),
    jvm=Cost(170, 1.0, 0.017),
    driver=Cost(10, 2.3, 0.003),
    worker=Cost(28, 4.5, 0.002),
    table_bytes=981,
    base_bytes=276,
    replay_per_s=99_000,
)

sizes = st.floats(1e3, 1e9)
rates = st.floats(1, 1e7)


def test_a_small_installation_is_one_engine() -> None:
    small = needs(Load(100_000, 1_000), KNOWN)
    assert small.engines == 1
    assert small.first == "nothing"
    assert small.cores < 2


def test_at_a_hundred_million_subscriptions_one_table_in_one_process_breaks_first() -> None:
    large = needs(Load(1e8, 1e3), KNOWN)
    assert large.engines > 1
    assert large.first.startswith(("time of a start", "memory of the routing table"))
    assert large.driver_gb <= PROCESS_GB + 1


def test_at_a_million_a_second_one_machine_breaks_first() -> None:
    assert breaks_first(Load(1e5, 1e6), KNOWN).startswith("processor")


def test_at_a_million_a_second_one_driver_is_not_enough() -> None:
    busy = needs(Load(1e5, 1e6), KNOWN)
    assert busy.because == "the driver's one core"
    assert busy.engines * FULL * 1e6 >= 1e6 * KNOWN.driver.of(Load(1e5, 1e6))
    assert needs(Load(1e5, 1e6, deliveries=10), KNOWN).engines > busy.engines


def test_each_gateway_process_pays_for_its_own_table() -> None:
    """What is easily overlooked: the memory of all together."""
    large = needs(Load(1e8, 1e6), KNOWN)
    assert large.gateways >= large.gateway_cores
    assert large.memory_gb > large.gateways * large.driver_gb
    assert large.gateways % large.engines == 0


@given(sizes, rates)
def test_double_the_rate_is_double_the_processors(subscriptions: float, rate: float) -> None:
    once, twice = needs(Load(subscriptions, rate), KNOWN), needs(Load(subscriptions, 2 * rate), KNOWN)
    assert twice.cores == pytest.approx(2 * once.cores)
    assert twice.out_gbit == pytest.approx(2 * once.out_gbit)
    assert twice.kafka_gbit == pytest.approx(2 * once.kafka_gbit)
    assert twice.engines >= once.engines


def test_large_payloads_cost_processors_and_not_only_wires() -> None:
    small, large = needs(Load(1e5, 1e3), KNOWN), needs(Load(1e5, 1e3, payload=100_000), KNOWN)
    assert large.gateway_cores > 2 * small.gateway_cores
    assert large.kafka_mb_s > 50 * small.kafka_mb_s


@given(sizes, rates, st.floats(1, 1_000))
def test_more_deliveries_never_cost_less(subscriptions: float, rate: float, deliveries: float) -> None:
    fewer = needs(Load(subscriptions, rate, deliveries), KNOWN)
    more = needs(Load(subscriptions, rate, deliveries + 1), KNOWN)
    assert more.dispatch_cores >= fewer.dispatch_cores
    assert more.out_gbit > fewer.out_gbit


@given(sizes)
def test_each_engine_starts_in_time_and_fits(subscriptions: float) -> None:
    asked = Load(subscriptions, 1.0)
    each = subscriptions / engines_for(asked, KNOWN)[0]
    assert each / KNOWN.replay_per_s <= START_S * 1.000001
    assert each * KNOWN.table_bytes <= PROCESS_GB * 1.000001e9


@given(st.floats(1, 1_000), rates)
def test_what_cores_do_and_what_they_are_needed_for_agree(deliveries: float, rate: float) -> None:
    """The one counts all of the processor, the other plans for a part of it."""
    asked = Load(1_000, rate, deliveries)
    assert most_per_second(needs(asked, KNOWN).cores, asked, KNOWN) >= rate


def test_batching_helps_the_gateway_and_nobody_else() -> None:
    alone, batched = needs(Load(1e6, 1e4), KNOWN), needs(Load(1e6, 1e4, batched=True), KNOWN)
    assert batched.gateway_cores < alone.gateway_cores
    assert batched.dispatch_cores == alone.dispatch_cores


def test_the_table_has_a_row_for_each_need_and_a_column_for_each_load() -> None:
    rows = sized_table(KNOWN)
    assert len(rows) == len(fields(needs(Load(1, 1), KNOWN)))
    assert all(set(LOADS) < set(row) for row in rows)
    assert sized_table(None) == []
    assert constants_from({}) is None


@pytest.fixture
def stored() -> dict[str, Result]:
    return load(ROOT / "docs" / "benchmarks" / "results")


@pytest.fixture
def measured(stored: dict[str, Result]) -> Constants:
    known = constants_from(stored)
    assert known is not None, "the page has results of throughput, gateway and routing"
    return known


COSTS = ("gateway", "kafka", "jvm", "driver", "worker")


def test_constants_come_from_the_stored_results(measured: Constants) -> None:
    for part in COSTS:
        cost = getattr(measured, part)
        assert cost.each >= 0
        assert cost.delivery >= 0
        assert cost.byte >= 0
        assert cost.of(Load(1, 1)) > 0
    assert 0 < measured.batched < 1
    assert 0 < measured.base_bytes < measured.table_bytes
    assert measured.replay_per_s > 0


def test_the_lines_go_through_what_was_measured(stored: dict[str, Result], measured: Constants) -> None:
    tables = [table for table in stored["throughput"].tables if table.title.startswith("CPU")]
    rows = {row["case"]: row for table in tables for row in table.rows}
    for case, load_ in (
        ("16 publishers, 800 bytes", Load(1, 1)),
        ("16 publishers, 30,000 bytes", Load(1, 1, 1, 30_000)),
    ):
        said = sum(getattr(measured, part).of(load_) for part in COSTS)
        seen = sum(float(rows[case][part] or 0) for part in COSTS)
        assert said == pytest.approx(seen, rel=0.05)


def test_the_model_comes_near_the_measured_points(stored: dict[str, Result], measured: Constants) -> None:
    """Never much below what was seen: it would claim that more is needed than was. Above it only so far: publishers and
    receivers use the same cores, and some of the work waits for other work."""
    points = checked(stored, measured)
    if not points:
        pytest.skip("quick runs are stored: run make benchmark-page ARGS='--only throughput scaling gateway routing'")
    wrong = [
        f"{point.what}: the model says {point.said:,.0f}/s, measured {point.measured:,.0f}/s"
        for point in points
        if point.times < 1 / BELOW or (not point.why and point.times > ABOVE)
    ]
    assert not wrong, wrong


def test_points_say_what_they_are_of_and_quick_ones_are_left_out(
    stored: dict[str, Result], measured: Constants
) -> None:
    full = {name: replace(result, quick=False) for name, result in stored.items()}
    points = {point.what: point for point in checked(full, measured)}
    assert {"one subscriber, 16 publishers, 800 bytes", "50 subscribers, 8 publishers, 800 bytes"} <= set(points)
    assert points["one subscriber, 1 publishers, 800 bytes"].why
    one = stored["throughput"].find("one subscriber", "delivered/s", case="16 publishers, 800 bytes")
    assert points["one subscriber, 16 publishers, 800 bytes"].measured == one
    wide = points["50 subscribers, 8 publishers, 800 bytes"]
    cores = float(stored["throughput"].machine["cores"])
    assert wide.said == pytest.approx(50 * most_per_second(cores, Load(1, 1, 50), measured))
    assert checked({name: replace(result, quick=True) for name, result in stored.items()}, measured) == []


def test_twice_as_fast_a_machine_needs_half_of_the_cores(measured: Constants) -> None:
    def halved(cost: Cost) -> Cost:
        return Cost(cost.each / 2, cost.delivery / 2, cost.byte / 2)

    costs: dict[str, Any] = {part: halved(getattr(measured, part)) for part in COSTS}
    half = replace(measured, **costs)
    asked = Load(1e6, 1e4, 5, 2_000)
    assert needs(asked, half).cores == pytest.approx(needs(asked, measured).cores / 2)
