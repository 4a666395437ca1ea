"""Edits of entries for changes of topics; the stores' tests have the results."""

from __future__ import annotations

import tracemalloc

import pytest

from arborcast.directory.entries.changes import Change, Move, Put, Remove, Workspace
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import Listing
from arborcast.topic_model.topics import parse_path
from tests.support.directory import topic

TOPICS = 20_000
N1, N2 = parse_path("n/t1"), parse_path("n/t2")


@pytest.mark.parametrize(
    "changes",
    [
        [Remove(N1), Remove(N2)],
        [Move(N1, parse_path("n/u")), Put(topic("n/u", code="7"))],
        [Move(parse_path("m"), parse_path("n/m")), Put(topic("n/m/x/y", code="7"))],
    ],
)
def test_a_change_does_not_copy_the_entries_beside_it(changes: list[Change]) -> None:
    workspace = Workspace(EntrySet(), Listing(), parse_dn("ou=topics"))
    workspace.write([Put(topic(f"n/t{number}")) for number in range(TOPICS)])
    workspace.write([Put(topic("m")), Put(topic("m/x/y"))])
    tracemalloc.start()
    try:
        assert workspace.write(changes) == ([], 0)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < TOPICS
