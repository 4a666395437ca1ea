"""The figures of `arborcast top`, its JSON, the report and the console."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.cli import app, watching
from arborcast.cli.top_frame import frame
from arborcast.console.screens.engine.feed import _shown
from arborcast.engine.monitoring.attention import tiles
from arborcast.engine.monitoring.samples import MetricsSample
from arborcast.engine.monitoring.summary import Summary, document, first_view
from arborcast.engine.monitoring.watching import EngineView, EngineWatch
from tests.unit.cli.test_top_frame import busy_engine


def test_all_views_have_the_same_figures() -> None:
    """After ten minutes at 1,000/s a minute that begins at 100/s and ends at 400/s."""
    samples = list(busy_engine().samples)
    before = samples[-1]
    for number in range(1, 13):
        done = before.accepted + number * 500 + max(0, number - 10) * 1_500
        changes = {"at": before.at + number * 5, "accepted": done, "attempts": {"delivered": 2 * done, "parked": done}}
        samples.append(msgspec.structs.replace(before, **changes))
    seen = EngineView(samples)
    assert Summary.current(samples).accepted == pytest.approx(150)
    assert document(seen, "x")["rates"] == pytest.approx({"accepted": 150, "delivered": 300, "attempts": 450})
    assert [each.value for each in tiles(samples)[:2]] == ["150", "300"]
    assert [value for _, value in _shown(seen, "", {}, samples[-1].at).tiles[:2]] == ["150", "300"]
    lines = {each[:20].strip(): each[20:29].strip() for each in frame(seen, "x")}
    assert (lines["accepted /s"], lines["delivered /s"], lines["not delivered /s"]) == ("150", "300", "150")


@pytest.mark.parametrize("gap", [1, 5])
def test_a_process_that_does_not_answer_or_starts_again_falsifies_nothing(gap: int) -> None:
    samples = list(busy_engine(24).samples)
    for number in range(10, 10 + gap):
        samples[number] = MetricsSample(at=samples[number].at)
    whole = Summary(samples)
    assert (whole.accepted, whole.total("accepted")) == (1_000, 115_000)
    assert whole.totals("attempts") == {"delivered": 230_000, "parked": 115_000}
    assert whole.delivery_median == pytest.approx(0.05)
    started = [msgspec.structs.replace(each, accepted=number * 5_000.0) for number, each in enumerate(samples[:5])]
    again = [msgspec.structs.replace(each, accepted=number * 5_000.0) for number, each in enumerate(samples[5:10], 1)]
    assert Summary([*started, *again]).total("accepted") == 45_000


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
    assert len(first_view(watch, slept.append).samples) == 2
    assert len(slept) == 1


@pytest.mark.parametrize(("seen", "status"), [(busy_engine(3), 0), (EngineView(problem="away"), 1)])
def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: EngineView, status: int) -> None:
    watch = EngineWatch(["h:1"])
    watch.look = lambda: seen  # type: ignore[method-assign]
    monkeypatch.setattr(watching, "_watch", lambda *_: (watch, "x"))
    result = CliRunner().invoke(app, ["top", "--json"])
    assert result.exit_code == status
    assert json.loads(result.stdout)["problem"] == (seen.problem or None)
