from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from arborcast.analysis import Tables
from arborcast.analysis.charts import bin_seconds, grouped, is_alone
from arborcast.analysis.picture import NothingToShow, at_one_host, plain_topics
from arborcast.analysis.rows import Rows, written
from arborcast.dispatch.tables import ENDPOINT_HEALTH, ROUTES, TOPICS
from arborcast.engine.settings.loading import load_settings
from tests.support.table_rows import NOON, attempt, fill, record

# It draws, with matplotlib.
pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path) -> Tables:
    return Tables(load_settings(home=tmp_path, environ={"ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}))


def test_which_rows_a_plot_has() -> None:
    counts = {"slow": 10, "quick": 500, "middle": 20, "rare": 9}
    choice = grouped(counts, {"slow": 9.0, "quick": 1.0, "middle": 5.0, "rare": 99.0}, most=2)
    assert (choice.shown, choice.others, choice.few) == (["slow", "middle"], ["quick"], ["rare"])
    assert [bin_seconds(span) for span in (0, 100, 600, 3_600, 86_400, 1e9)] == [1, 1, 5, 30, 600, 86_400]
    nothing = float("nan")
    values = [1.0, nothing, 2.0, nothing, 3.0, 4.0]
    assert [is_alone(values, number) for number in (0, 2, 4, 5)] == [True, True, False, False]
    assert is_alone([1.0], 0)


def test_names_without_their_common_parts() -> None:
    assert at_one_host(["http://x:1/a", "http://x:1/b?c", "http://x:1"]) == (
        "http://x:1",
        {"http://x:1/a": "/a", "http://x:1/b?c": "/b?c", "http://x:1": "/"},
    )
    for others in (["http://x:1/a", "http://x:10/a"], ["http://x:1/a"], ["a/b", "a/c"]):
        assert at_one_host(others) == ("", {})
    assert plain_topics(["{urn:x}a/{urn:y}b", "c"]) == {"{urn:x}a/{urn:y}b": "a/b", "c": "c"}
    for differ in (["{urn:x}a", "{urn:y}a"], ["http://x/{urn}/{id}"]):
        assert plain_topics(differ) == {each: each for each in differ}


def test_endpoints_with_ten_pushes_have_a_row(engine: Tables, tmp_path: Path) -> None:
    often = [attempt(f"n{number}", "often", "delivered", duration_ms=float(number)) for number in range(1, 12)]
    together = [attempt(f"m{number}", "rare", "delivered", push="one", duration_ms=900.0) for number in range(40)]
    record(tmp_path, *often, *together, attempt("m", "seldom", "delivered", duration_ms=5.0))

    found = engine.plot.latency()

    assert found.table["count"].to_dict() == {"http://often/": 11, "2 endpoints with fewer than ten": 2}
    assert found.table.p50.tolist() == [6.0, 452.5]
    assert found.png().startswith(b"\x89PNG")
    assert [*engine.plot.latency("host").table.index] == ["often", "2 hosts with fewer than ten"]
    with pytest.raises(ValueError, match="one of endpoint, host"):
        engine.plot.latency("moon")  # type: ignore[arg-type]


def test_breakers_are_cut_to_the_time_of_the_question(engine: Tables, tmp_path: Path) -> None:
    at = [(0, "open", True), (30, "closed", True), (40, "closed", False), (60, "open", True)]
    rows = [
        {"at": NOON + timedelta(minutes=after), "endpoint": "http://x/", "breaker": breaker, "sick": sick}
        for after, breaker, sick in at
    ]
    fill(tmp_path, ENDPOINT_HEALTH, rows)

    found = engine.plot.breakers(NOON + timedelta(minutes=20))

    assert found.table.to_dict("index") == {"http://x/": {"left alone": 10.0, "served apart": 10.0}}
    later = engine.plot.breakers(NOON + timedelta(minutes=70))
    assert later.figure is None
    assert "every endpoint was well" in later.text


def test_words_where_there_is_nothing_to_draw(engine: Tables, tmp_path: Path) -> None:
    missing = engine.plot.latency()
    assert "there is no table" in missing.text
    fill(tmp_path, TOPICS, [{"topic": "a/b"}])
    fill(tmp_path, ROUTES, [])
    below = engine.plot.tree("x")
    assert below.text == "there is no topic at or below x; the first roots are a"

    data, _ = below._repr_mimebundle_()
    assert data["text/html"] == f"<p>The topic tree: {below.text}</p>"
    assert "image/png" not in data
    with pytest.raises(NothingToShow):
        below.save(tmp_path / "picture.png")


def test_the_lag_without_redeliveries_and_the_size_of_a_picture(engine: Tables, tmp_path: Path) -> None:
    assert engine.most_tried() == ""
    assert engine.newest() is None
    behind = attempt("n2", "s", "delivered", 600_000, batch=-1)  # it waited for its endpoint
    record(tmp_path, attempt("n1", "s", "delivered", 80, batch=1), attempt("n2", "s", "parked", batch=-1), behind)

    assert engine.plot.lag(NOON).table["oldest, s"].max() == 0.08
    data, told = engine.plot.arrivals()._repr_mimebundle_()
    assert data["image/png"]
    assert (told["image/png"]["width"], told["image/png"]["alt"]) == (900, "How many arrive within how long")
    assert engine.most_tried() == "n2"
    assert engine.lately(timedelta(seconds=1)) == NOON + timedelta(minutes=10) - timedelta(seconds=1)


def test_rows_are_escaped_and_bounded() -> None:
    frame = pd.DataFrame({"at": [NOON], "name": ["<b>"], "count": [12_345]})
    text = Rows.of(frame, "")._repr_html_()
    for words in ("2026-01-02 12:00:00.000<", "&lt;b&gt;", "12,345"):
        assert words in text
    assert Rows.of(frame.iloc[:0], "nothing <waits>")._repr_html_() == "<p>nothing &lt;waits&gt;</p>"
    assert "and 975 more" in Rows.of(pd.DataFrame({"number": range(1_000)}), "")._repr_html_()
    texts = {None: "", pd.NaT: "", 1.5: "1.5", 2.0: "2", True: "True", float("nan"): ""}
    assert [written(value) for value in texts] == [*texts.values()]
