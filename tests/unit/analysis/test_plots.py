from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from arborcast.analysis import Tables
from arborcast.analysis.charts import grouped
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


def test_a_row_for_those_with_enough_the_rest_is_summed_up() -> None:
    counts = {"slow": 10, "quick": 500, "middle": 20, "rare": 9}

    choice = grouped(counts, {"slow": 9.0, "quick": 1.0, "middle": 5.0, "rare": 99.0}, most=2)

    assert (choice.shown, choice.others, choice.few) == (["slow", "middle"], ["quick"], ["rare"])


def test_addresses_at_one_host_are_written_without_it() -> None:
    assert at_one_host(["http://x:1/a", "http://x:1/b?c", "http://x:1"]) == (
        "http://x:1",
        {"http://x:1/a": "/a", "http://x:1/b?c": "/b?c", "http://x:1": "/"},
    )
    assert at_one_host(["http://x:1/a", "http://x:10/a"]) == ("", {})
    assert at_one_host(["http://x:1/a"]) == ("", {})
    assert at_one_host(["a/b", "a/c"]) == ("", {})


def test_topics_are_written_without_namespaces_where_they_differ() -> None:
    assert plain_topics(["{urn:x}a/{urn:y}b", "c"]) == {"{urn:x}a/{urn:y}b": "a/b", "c": "c"}
    assert plain_topics(["{urn:x}a", "{urn:y}a"]) == {"{urn:x}a": "{urn:x}a", "{urn:y}a": "{urn:y}a"}
    assert plain_topics(["http://x/{urn}/{id}"]) == {"http://x/{urn}/{id}": "http://x/{urn}/{id}"}


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


def test_breakers_are_cut_to_the_time_that_was_asked_for(engine: Tables, tmp_path: Path) -> None:
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
    assert "every endpoint was well" in later.said


def test_words_where_there_is_nothing_to_draw(engine: Tables, tmp_path: Path) -> None:
    missing = engine.plot.latency()
    assert "there is no table" in missing.said
    fill(tmp_path, TOPICS, [{"topic": "a/b"}])
    fill(tmp_path, ROUTES, [])
    below = engine.plot.tree("x")
    assert below.said == "there is no topic at or below x; the first roots are a"

    data, _ = below._repr_mimebundle_()
    assert data["text/html"] == f"<p>The topic tree: {below.said}</p>"
    assert "image/png" not in data
    with pytest.raises(NothingToShow):
        below.save(tmp_path / "picture.png")


def test_rows_are_written_as_people_read_them() -> None:
    frame = pd.DataFrame({"at": [NOON], "name": ["<b>"], "count": [12_345]})

    text = Rows.of(frame, "")._repr_html_()

    assert "2026-01-02 12:00:00.000<" in text
    assert "&lt;b&gt;" in text
    assert "12,345" in text
    assert text.count("<tr>") == 2
    assert Rows.of(frame.iloc[:0], "nothing <waits>")._repr_html_() == "<p>nothing &lt;waits&gt;</p>"
    many = Rows.of(pd.DataFrame({"number": range(1_000)}), "")
    assert "and 975 more" in many._repr_html_()
    assert type(many.head()) is pd.DataFrame
    assert [written(value) for value in (None, pd.NaT, float("nan"), 1.5, 2.0, True)] == [
        "",
        "",
        "",
        "1.5",
        "2",
        "True",
    ]
