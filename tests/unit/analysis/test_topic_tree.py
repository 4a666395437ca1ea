from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arborcast.analysis.topic_tree import Cell, branches, edges_of, fold
from arborcast.topic_model.topics import TopicPath


def cells(counts: dict[str, int], rows: int = 32) -> list[Cell]:
    paths = {TopicPath(topic): count for topic, count in counts.items()}
    return fold(branches(paths, {topic: ["s"] for topic in paths}, ""), rows)


def drawn(found: list[Cell]) -> list[str]:
    return [f"{'  ' * cell.column}{cell.text}" for cell in found]


def test_a_small_tree_is_shown_whole_the_busiest_first() -> None:
    found = cells({"a": 1, "a/x": 2, "a/y": 5, "b": 30})

    assert drawn(found) == ["b", "a  (3)", "  y", "  x"]
    assert [(cell.row, cell.rows) for cell in found] == [(0, 1), (1, 2), (1, 1), (2, 1)]
    assert [cell.branch.notifications for cell in found] == [30, 8, 5, 2]


def test_a_path_without_a_choice_is_one_cell() -> None:
    assert drawn(cells({"a/b/c": 1, "a/b/d": 1})) == ["a/b  (2)", "  c", "  d"]
    # A topic of its own stays.
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
