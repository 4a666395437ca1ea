from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.analysis import Tables
from arborcast.analysis.charts import bin_seconds, grouped, is_alone
from arborcast.analysis.picture import NothingToShow, at_one_host, plain_topics
from arborcast.analysis.rows import Rows, written
from arborcast.analysis.timeline import Mark, TimelineLane, folded, lanes, names_of, scale, table_of, timeline
from arborcast.analysis.topic_tree import Cell, branches, edges_of, fold
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.operations.trace.evidence import DeliveryExplanation, Explanation, Outcome, Step
from arborcast.dispatch.tables import ENDPOINT_HEALTH, ROUTES, TOPICS
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.topics import TopicPath
from tests.support.table_rows import NOON, attempt, fill, record

# Uses matplotlib.
pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path) -> Tables:
    return Tables(load_settings(home=tmp_path, environ={"ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}))


def test_the_rows_of_a_plot() -> None:
    counts = {"slow": 10, "quick": 500, "middle": 20, "rare": 9}
    rows = grouped(counts, {"slow": 9.0, "quick": 1.0, "middle": 5.0, "rare": 99.0}, most=2)
    assert rows == (["slow", "middle"], ["quick"], ["rare"])
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

    assert found.table.to_dict("index") == {"http://x/": {"open": 10.0, "redelivery": 10.0}}
    later = engine.plot.breakers(NOON + timedelta(minutes=70))
    assert later.figure is None
    assert "no endpoint has failed" in later.text


def test_text_in_place_of_an_empty_plot(engine: Tables, tmp_path: Path) -> None:
    assert "there is no table" in engine.plot.latency().text
    fill(tmp_path, TOPICS, [{"topic": "a/b"}])
    fill(tmp_path, ROUTES, [])
    below = engine.plot.tree("x")
    assert below.text == "there is no topic at or below x; the first roots are a"

    data, _ = below._repr_mimebundle_()
    assert data["text/html"] == f"<p>Topics: {below.text}</p>"
    assert "image/png" not in data
    with pytest.raises(NothingToShow):
        below.save(tmp_path / "picture.png")


def test_the_lag_without_redeliveries_and_the_size_of_a_picture(engine: Tables, tmp_path: Path) -> None:
    assert engine.most_tried() == ""
    assert engine.newest() is None
    behind = attempt("n2", "s", "delivered", 600_000, batch=-1)  # delayed by its endpoint
    record(tmp_path, attempt("n1", "s", "delivered", 80, batch=1), attempt("n2", "s", "parked", batch=-1), behind)

    assert engine.plot.lag(NOON).table["oldest, s"].max() == 0.08
    data, metadata = engine.plot.arrivals()._repr_mimebundle_()
    assert data["image/png"]
    assert (metadata["image/png"]["width"], metadata["image/png"]["alt"]) == (900, "Delays of deliveries")
    assert engine.most_tried() == "n2"
    assert engine.start_of_last(timedelta(seconds=1)) == NOON + timedelta(minutes=10) - timedelta(seconds=1)


def test_the_newest_time_and_the_most_tried_of_several_days(engine: Tables, tmp_path: Path) -> None:
    day = 86_400_000
    often = [attempt("n1", f"s{number}", "delivered") for number in range(3)]
    record(tmp_path, *often, attempt("n2", "s", "delivered", day), attempt("n3", "s", "delivered", day))
    record(tmp_path, attempt("n3", "t", "delivered", day), offset=1)
    record(tmp_path, attempt("n4", "s", "delivered", 36_500 * day), offset=2)  # by a clock that was ahead
    assert engine.newest() == NOON + timedelta(days=1)
    assert engine.most_tried() == "n3"


def test_the_newest_time_is_found_without_rows_the_most_tried_in_the_last_hour(engine: Tables, tmp_path: Path) -> None:
    often = [attempt("n1", f"s{number}", "delivered") for number in range(3)]
    record(tmp_path, *often, attempt("n2", "s", "delivered", 2 * 3_600_000))
    assert engine.most_tried() == "n2"
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    assert engine.newest() == NOON + timedelta(hours=2)


def test_rows_are_escaped_and_bounded() -> None:
    frame = pd.DataFrame({"at": [NOON], "name": ["<b>"], "count": [12_345]})
    text = Rows.of(frame, "")._repr_html_()
    for words in ("2026-01-02 12:00:00.000<", "&lt;b&gt;", "12,345"):
        assert words in text
    assert Rows.of(frame.iloc[:0], "nothing <waits>")._repr_html_() == "<p>nothing &lt;waits&gt;</p>"
    assert "and 975 more" in Rows.of(pd.DataFrame({"number": range(1_000)}), "")._repr_html_()
    texts = {None: "", pd.NaT: "", 1.5: "1.5", 2.0: "2", True: "True", float("nan"): ""}
    assert [written(value) for value in texts] == [*texts.values()]


def row(name: str, after_ms: int, state: str = "delivered", number: int = 1, **more: object) -> dict[str, object]:
    made = attempt("n1", name, state, after_ms, number=number, push="p" if number else "")
    (found,) = rows_of([attempts.encode(made)]).to_pylist()
    return {**found, **more}


def label(subscription: str, outcome: Outcome = "delivered", endpoint: str = "") -> DeliveryExplanation:
    return DeliveryExplanation(subscription, endpoint or f"http://{subscription}/", "a", outcome, "because")


def lanes_of(
    deliveries: list[DeliveryExplanation],
    rows: list[dict[str, object]],
    due: Mapping[str, datetime | None] | None = None,
) -> list[TimelineLane]:
    return lanes(NOON, deliveries, rows, due or {})


def test_a_lane_waits_for_its_turn_and_then_for_a_retry() -> None:
    (lane,) = lanes_of([label("s")], [row("s", 2_000, number=2), row("s", 50, "parked")])

    assert [(mark.from_ms, mark.to_ms, mark.state) for mark in lane.marks] == [
        (50, 60, "parked"),
        (2_000, 2_010, "delivered"),
    ]
    assert lane.waits == [(0, 50, False), (60, 2_000, True)]
    assert lane.label == "delivered after 2.0 s, 2 attempts"


def test_a_waiting_delivery_is_shaded_until_it_is_due() -> None:
    due = NOON + timedelta(seconds=8)
    (lane,) = lanes_of([label("s", "waiting")], [row("s", 50, "parked")], {"s": due})

    assert lane.label == "waits, 1 attempt, next 12:00:08"
    assert lane.waits[-1][1] >= 8_000
    # And where only the attempt has the time of the next one.
    (lane,) = lanes_of([label("s", "waiting")], [row("s", 50, "parked", next_at=due)])
    assert lane.waits[-1][1] >= 8_000


def test_excess_lanes_share_the_last_one() -> None:
    every = lanes_of([label(f"s{number}") for number in range(50)], [row(f"s{number}", number) for number in range(50)])

    shown = folded(every, 10)

    assert len(shown) == 10
    assert [lane.name for lane in shown[:2]] == ["s49", "s48"]
    assert (shown[-1].several, shown[-1].label, len(shown[-1].marks)) == (41, "41 delivered", 41)
    assert names_of(shown)[-1] == "41 others"
    assert folded(every[:10], 10) == every[:10]


def test_lanes_to_one_endpoint_have_different_labels() -> None:
    shown = lanes_of([label("subscription-1", endpoint="http://x/"), label("subscription-2", endpoint="http://x/")], [])

    assert names_of(shown) == ["http://x/ · tion-1", "http://x/ · tion-2"]


def lane(*times: float) -> TimelineLane:
    return TimelineLane("s", "http://s/", "delivered", "", [Mark(at, at, "delivered", 1, True) for at in times])


def test_only_a_long_delivery_has_a_logarithmic_scale() -> None:
    for times, is_log, last in (((50, 300), False, "300 ms"), ((50, 3_000), True, "10 s"), ((), False, "1 ms")):
        found, marks = scale([lane(*times)])
        assert (found, marks[0], marks[-1][1]) == (is_log, (0, "0"), last)


def explanation(*deliveries: DeliveryExplanation) -> Explanation:
    steps = [
        Step(NOON, "accepted by the gateway"),
        Step(NOON + timedelta(milliseconds=9), "matched by the dispatch", "batch 1"),
        Step(None, "taken by the dispatch"),
    ]
    return Explanation("n1", True, "a/$_$", steps=steps, deliveries=deliveries, notes=["a note"])


def test_rows_of_the_table_have_times_and_are_in_causal_order() -> None:
    # By its own clock the dispatch pushed before it matched.
    pushed = DeliveryExplanation(
        "s", "http://s/", "a", "delivered", "", [Step(NOON + timedelta(milliseconds=7), "attempt 1")]
    )

    table = table_of(explanation(pushed))

    assert table.what.tolist() == ["accepted by the gateway", "matched by the dispatch", "attempt 1"]
    assert table.after_s.tolist() == [0, 0.009, 0.007]
    assert table["at"].notna().all()


def test_the_picture() -> None:
    rows = [row("s", 50, "parked", endpoint="http://s/?$_$"), row("s", 9_000_000, number=2), row("t", 5, "dead", 0)]

    found = timeline(explanation(label("s", endpoint="http://s/?$_$"), label("t", "dead")), rows, {})

    assert found.png().startswith(b"\x89PNG")
    assert found.outcomes is not None
    assert found.outcomes.attempts.to_dict() == {"s": 2, "t": 0}
    unmatched = timeline(explanation(), [], {})
    assert unmatched.png()
    assert unmatched.outcomes is not None
    assert "no subscription matches this topic" in unmatched.outcomes._repr_html_()


def cells(counts: dict[str, int], rows: int = 32) -> list[Cell]:
    paths = {TopicPath(topic): count for topic, count in counts.items()}
    return fold(branches(paths, {topic: ["s"] for topic in paths}, ""), rows)


def drawn(found: list[Cell]) -> list[str]:
    return [f"{'  ' * cell.column}{cell.text}" for cell in found]


def test_a_small_tree_is_shown_whole_busiest_first() -> None:
    found = cells({"a": 1, "a/x": 2, "a/y": 5, "b": 30})

    assert drawn(found) == ["b", "a  (3)", "  y", "  x"]
    assert [(cell.row, cell.rows) for cell in found] == [(0, 1), (1, 2), (1, 1), (2, 1)]
    assert [cell.branch.notifications for cell in found] == [30, 8, 5, 2]


def test_a_path_without_a_choice_is_one_cell() -> None:
    assert drawn(cells({"a/b/c": 1, "a/b/d": 1})) == ["a/b  (2)", "  c", "  d"]
    # A topic with messages on the path stays.
    assert drawn(cells({"a": 1, "a/b": 1})) == ["a  (2)", "  b"]


names = st.text("ab", min_size=1, max_size=2)


@given(
    st.dictionaries(st.lists(names, min_size=1, max_size=8).map("/".join), st.integers(0, 9), min_size=1, max_size=60),
    st.integers(2, 12),
)
def test_cells_fill_the_page_without_overlap_or_loss(counts: dict[str, int], rows: int) -> None:
    found = cells(counts, rows)

    assert max(cell.row + cell.rows for cell in found) <= rows
    places = [(cell.column, row) for cell in found for row in range(cell.row, cell.row + cell.rows)]
    assert len({*places}) == len(places)
    top = [cell.branch for cell in found if cell.column == 0]
    assert sum(branch.topics for branch in top) == len(counts)
    assert sum(branch.notifications for branch in top) == sum(counts.values())
    leaves = [cell.row for cell in found if cell.is_leaf]
    assert sorted(leaves) == [*range(len(leaves))], "each row is the row of one leaf"
    edges = edges_of(found)
    assert edges == sorted(edges)
