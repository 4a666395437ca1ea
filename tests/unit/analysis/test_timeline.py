from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from arborcast.analysis.timeline import Mark, TimelineLane, folded, lanes, names_of, scale, table_of, timeline
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.operations.trace.story import DeliveryStory, Outcome, Step, Story
from arborcast.dispatch.tables.delta_table import rows_of
from tests.support.table_rows import NOON, attempt


def row(name: str, after_ms: int, state: str = "delivered", number: int = 1, **more: object) -> dict[str, object]:
    made = attempt("n1", name, state, after_ms, number=number, push="p" if number else "")
    (found,) = rows_of(attempts.encode([made])).to_pylist()
    return {**found, **more}


def label(subscription: str, outcome: Outcome = "delivered", endpoint: str = "") -> DeliveryStory:
    return DeliveryStory(subscription, endpoint or f"http://{subscription}/", "a", outcome, "because")


def lanes_of(
    deliveries: list[DeliveryStory], rows: list[dict[str, object]], due: Mapping[str, datetime | None] | None = None
) -> list[TimelineLane]:
    return lanes(NOON, deliveries, rows, due or {})


def test_a_lane_waits_for_its_turn_and_then_for_another_try() -> None:
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
    # And where only the attempt says when it goes on.
    (lane,) = lanes_of([label("s", "waiting")], [row("s", 50, "parked", next_at=due)])
    assert lane.waits[-1][1] >= 8_000


def test_more_lanes_than_one_reads_share_the_last() -> None:
    every = lanes_of([label(f"s{number}") for number in range(50)], [row(f"s{number}", number) for number in range(50)])

    shown = folded(every, 10)

    assert len(shown) == 10
    assert [lane.name for lane in shown[:2]] == ["s49", "s48"]
    assert (shown[-1].several, shown[-1].label, len(shown[-1].marks)) == (41, "41 delivered", 41)
    assert names_of(shown)[-1] == "41 others"
    assert folded(every[:10], 10) == every[:10]


def test_lanes_to_one_endpoint_are_told_apart() -> None:
    shown = lanes_of([label("subscription-1", endpoint="http://x/"), label("subscription-2", endpoint="http://x/")], [])

    assert names_of(shown) == ["http://x/ · tion-1", "http://x/ · tion-2"]


def lane(*times: float) -> TimelineLane:
    return TimelineLane("s", "http://s/", "delivered", "", [Mark(at, at, "delivered", 1, True) for at in times])


def test_only_a_long_life_has_a_logarithmic_scale() -> None:
    for times, is_log, last in (((50, 300), False, "300 ms"), ((50, 3_000), True, "10 s"), ((), False, "1 ms")):
        found, marks = scale([lane(*times)])
        assert (found, marks[0], marks[-1][1]) == (is_log, (0, "0"), last)


def story(*deliveries: DeliveryStory) -> Story:
    steps = [
        Step(NOON, "accepted by the gateway"),
        Step(NOON + timedelta(milliseconds=9), "matched by the dispatch", "batch 1"),
        Step(None, "taken by the dispatch"),
    ]
    return Story("n1", True, "a/$_$", steps=steps, deliveries=deliveries, notes=["a note"])


def test_rows_of_the_table_have_times_and_causes_come_first() -> None:
    # By its own clock the dispatch pushed before it matched.
    pushed = DeliveryStory(
        "s", "http://s/", "a", "delivered", "", [Step(NOON + timedelta(milliseconds=7), "attempt 1")]
    )

    table = table_of(story(pushed))

    assert table.what.tolist() == ["accepted by the gateway", "matched by the dispatch", "attempt 1"]
    assert table.after_s.tolist() == [0, 0.009, 0.007]
    assert table["at"].notna().all()


def test_the_picture() -> None:
    rows = [row("s", 50, "parked", endpoint="http://s/?$_$"), row("s", 9_000_000, number=2), row("t", 5, "dead", 0)]

    found = timeline(story(label("s", endpoint="http://s/?$_$"), label("t", "dead")), rows, {})

    assert found.png().startswith(b"\x89PNG")
    assert found.outcomes is not None
    assert found.outcomes.attempts.to_dict() == {"s": 2, "t": 0}
    nobody = timeline(story(), [], {})
    assert nobody.png()
    assert nobody.outcomes is not None
    assert "no one is subscribed to this topic" in nobody.outcomes._repr_html_()
