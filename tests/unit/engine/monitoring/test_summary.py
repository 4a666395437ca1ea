"""The figures of `arborcast top`, its JSON, the report and the console."""

from __future__ import annotations

import json

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


def watch_of(*views: EngineView) -> EngineWatch:
    looks, watch = iter(views), EngineWatch(["h:1"])
    watch.look = lambda: next(looks)  # type: ignore[method-assign]
    return watch


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
def test_an_outage_or_a_restart_of_a_process_falsifies_nothing(gap: int) -> None:
    samples = list(busy_engine(24).samples)
    for number in range(10, 10 + gap):
        samples[number] = MetricsSample(at=samples[number].at)
    whole = Summary(samples)
    assert (whole.accepted, whole.total("accepted")) == (1_000, 115_000)
    assert whole.totals("attempts") == {"delivered": 230_000, "parked": 115_000}
    assert whole.delivery_median == pytest.approx(0.05)
    counted = [*range(5), *range(1, 6)]
    restarted = [msgspec.structs.replace(each, accepted=5_000.0 * n) for each, n in zip(samples, counted, strict=False)]
    assert Summary(restarted[:10]).total("accepted") == 45_000


def test_a_document_has_null_for_what_is_unknown_and_the_state_of_parts() -> None:
    shown = document(EngineView([MetricsSample(at=0)]), "x")
    assert (shown["rates"]["accepted"], shown["ready"]) == (None, None)
    assert document(EngineView(problem="away"), "x") == {"engine": "x", "problem": "away"}
    down = msgspec.structs.replace(busy_engine(2).samples[-1], parts={"kafka": False, "gateway": True})
    shown = document(EngineView([down]), "x")
    assert (shown["ready"], shown["parts"]) == (False, {"kafka": False, "gateway": True})


def test_the_command_looks_twice_for_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    watch = watch_of(EngineView(busy_engine(1).samples), EngineView(busy_engine(2).samples))
    assert len(first_view(watch, slept.append).samples) == 2
    assert len(slept) == 1
    for seen, status in ((EngineView(busy_engine(3).samples), 0), (EngineView(problem="away"), 1)):
        monkeypatch.setattr(watching, "_watch", lambda *_, seen=seen: (watch_of(seen), "x"))
        result = CliRunner().invoke(app, ["top", "--json"])
        assert (result.exit_code, json.loads(result.stdout)["problem"]) == (status, seen.problem or None)
