"""The model of large installations: its structure, and the measured points that it has to come near."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks._capacity import (
    LOADS,
    PROCESS_GB,
    START_S,
    Constants,
    Load,
    breaks_first,
    constants_from,
    engines_for,
    most_per_second,
    needs,
    sized_table,
)
from tests.benchmarks._results import ROOT, Result, load

# About what was measured on two cores, when nothing else ran.
KNOWN = Constants(
    gateway_us=180,
    gateway_batched_us=65,
    kafka_us=56,
    spark_us=187,
    single_push_us=32,
    shared_push_us=4.5,
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


@given(sizes, rates)
def test_double_the_rate_is_double_the_processors(subscriptions: float, rate: float) -> None:
    once, twice = needs(Load(subscriptions, rate), KNOWN), needs(Load(subscriptions, 2 * rate), KNOWN)
    assert twice.cores == pytest.approx(2 * once.cores)
    assert twice.out_gbit == pytest.approx(2 * once.out_gbit)
    assert twice.engines == once.engines, "rate is not what a routing table suffers from"


@given(sizes, rates, st.floats(1, 1_000))
def test_more_deliveries_never_cost_less(subscriptions: float, rate: float, deliveries: float) -> None:
    fewer = needs(Load(subscriptions, rate, deliveries), KNOWN)
    more = needs(Load(subscriptions, rate, deliveries + 1), KNOWN)
    assert more.dispatch_cores >= fewer.dispatch_cores
    assert more.out_gbit > fewer.out_gbit


@given(sizes)
def test_each_engine_starts_in_time_and_fits(subscriptions: float) -> None:
    asked = Load(subscriptions, 1.0)
    each = subscriptions / engines_for(asked, KNOWN)
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


def test_constants_come_from_the_stored_results(measured: Constants) -> None:
    assert all(getattr(measured, field.name) > 0 for field in fields(measured))
    assert measured.gateway_batched_us < measured.gateway_us
    assert measured.shared_push_us < measured.single_push_us
    assert measured.base_bytes < measured.table_bytes


def test_the_model_comes_near_the_measured_points(stored: dict[str, Result], measured: Constants) -> None:
    """Within a factor of four: publishers and receivers use the same cores, and some of the work overlaps."""
    points: tuple[tuple[str, str, dict[str, Any], int], ...] = (
        ("throughput", "one subscriber", {"case": "16 publishers, 800 bytes"}, 1),
        ("throughput", "50 subscribers", {}, 50),
        ("scaling", "fan-out", {"subscribers": 10}, 10),
    )
    if any(part not in stored or stored[part].quick for part, *_ in points):
        pytest.skip("quick runs are stored: run make benchmark-page ARGS='--only throughput scaling gateway routing'")
    for part, table, wanted, deliveries in points:
        seen = stored[part].find(table, "delivered/s", **wanted)
        assert seen is not None, (part, table)
        cores = float(stored[part].machine["cores"])
        said = most_per_second(cores, Load(1_000, 1, deliveries), measured) * deliveries
        assert 1 / 4 < said / seen < 4, f"{table}: the model says {said:,.0f}/s, measured {seen:,.0f}/s"


def test_the_model_is_not_ahead_of_itself(measured: Constants) -> None:
    """Twice as fast a machine needs half of the cores, whatever the constants are."""
    half = replace(
        measured, **{f.name: getattr(measured, f.name) / 2 for f in fields(measured) if f.name.endswith("_us")}
    )
    asked = Load(1e6, 1e4, 5)
    assert needs(asked, half).cores == pytest.approx(needs(asked, measured).cores / 2)
