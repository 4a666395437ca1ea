"""Charts as SVG: thresholds and outages."""

from __future__ import annotations

from lxml import html

from arborcast.engine.monitoring.figures import line_plot


def drawn(values: list[tuple[float, float | None]], limit: float | None = None) -> html.HtmlElement:
    return html.fragment_fromstring(line_plot("lag", {"": values}, "seconds", 20.0, (0.0, 100.0), None, 0.0, limit))


def test_a_threshold_is_drawn_where_the_scale_has_it() -> None:
    points: list[tuple[float, float | None]] = [(0.0, 10.0), (10.0, 40.0)]
    assert drawn(points, 30.0).xpath("//*[@class='limit']")
    assert not drawn(points, 3_000.0).xpath("//*[@class='limit']")
    assert not drawn(points).xpath("//*[@class='limit']")


def test_a_time_without_samples_is_marked() -> None:
    (gap,) = drawn([(0.0, 1.0), (10.0, 1.0), (60.0, 1.0), (70.0, None)]).xpath("//*[@class='gap']")
    assert (gap.get("x"), gap.get("width")) == ("100.0", "500.0")
