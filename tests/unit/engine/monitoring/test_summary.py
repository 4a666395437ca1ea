"""`arborcast top --json`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.cli import app, watching
from arborcast.engine.monitoring.samples import MetricsSample
from arborcast.engine.monitoring.snapshot import document, first_look
from arborcast.engine.monitoring.watching import EngineView, EngineWatch
from tests.unit.cli.test_top_frame import busy_engine


def test_it_has_the_figures_of_the_frame() -> None:
    shown = document(busy_engine(), "/srv/engine")
    assert shown["engine"] == "/srv/engine"
    assert shown["at"] == "2026-01-01T00:09:55.000+00:00"
    assert (shown["ready"], shown["problem"]) == (True, None)
    assert shown["rates"] == {"accepted": 1_000.0, "delivered": 2_000.0, "attempts": 3_000.0}
    assert shown["seconds"]["delivery_median"] == pytest.approx(0.05)
    assert (shown["waiting_for_retry"], shown["due_now"]) == (51_234, 17)
    assert shown["processes"]["kafka"]["cpu_cores"] == pytest.approx(0.3)
    assert [each["pushes"] for each in shown["slowest_endpoints"]] == [12, 120_000]


def test_what_is_not_known_is_null() -> None:
    shown = document(EngineView([MetricsSample(at=0)]), "x")
    assert shown["rates"]["accepted"] is None
    assert shown["ready"] is None
    assert document(EngineView(problem="away"), "x") == {"engine": "x", "problem": "away"}


def test_a_part_that_is_away_shows() -> None:
    down = msgspec.structs.replace(busy_engine(2).samples[-1], parts={"kafka": False, "gateway": True})
    shown = document(EngineView([down]), "x")
    assert (shown["ready"], shown["parts"]) == (False, {"kafka": False, "gateway": True})


def test_one_sample_is_no_rate_so_it_looks_twice() -> None:
    views = iter([EngineView(busy_engine(1).samples), EngineView(busy_engine(2).samples)])
    watch = EngineWatch(["h:1"])
    watch.look = lambda: next(views)  # type: ignore[method-assign]
    slept: list[float] = []
    assert len(first_look(watch, slept.append).samples) == 2
    assert len(slept) == 1


@pytest.mark.parametrize(("seen", "status"), [(busy_engine(3), 0), (EngineView(problem="away"), 1)])
def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: EngineView, status: int) -> None:
    watch = EngineWatch(["h:1"])
    watch.look = lambda: seen  # type: ignore[method-assign]
    monkeypatch.setattr(watching, "_watch", lambda *_: (watch, "x"))
    result = CliRunner().invoke(app, ["top", "--json"])
    assert result.exit_code == status
    assert json.loads(result.stdout)["problem"] == (seen.problem or None)
