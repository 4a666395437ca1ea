"""Delta tables: repair after a power failure, lookups by key, and options of their storage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from arborcast.core.errors import ConfigError
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.operations.trace.gathering import attempt_rows
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import ATTEMPTS, TOPICS, repair
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.dispatch.tables.repair import repair_table
from arborcast.dispatch.tables.spec import newest, open_table, options_of, rows_with
from tests.support.table_rows import NOON, attempt, neutral, record


def commit(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020}.json"


def written(folder: Path, *numbers: int) -> DeltaTableWriter:
    """A table with a commit for each number, which is also its position."""
    table = DeltaTableWriter(ATTEMPTS, str(folder))
    for number in numbers:
        rows = rows_of([attempts.encode(attempt(f"n{number}", "s", "delivered"))])
        table.extend(rows, {"attempts-0": number})
    return table


def ids(folder: Path) -> list[str]:
    return sorted(DeltaTable(str(folder)).to_pyarrow_table().column("notification").to_pylist())


def opened(folder: Path) -> tuple[dict[int, int], list[str]]:
    """The positions in a table that its writer opens, and its notifications."""
    return DeltaTableWriter(ATTEMPTS, str(folder)).positions("attempts"), ids(folder)


def data_file(folder: Path, version: int) -> Path:
    """The data file of a commit."""
    actions = [json.loads(line) for line in commit(folder, version).read_text().splitlines()]
    (added,) = [action["add"]["path"] for action in actions if "add" in action]
    return folder / str(added)


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def missing(path: Path) -> None:
    path.unlink()


def test_a_commit_during_the_repair_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path, 0, 1)
    is_commit = repair._is_commit

    def with_a_commit(path: Path) -> bool:
        if path == commit(tmp_path, 2):
            table.extend(rows_of([attempts.encode(attempt("n9", "s", "delivered"))]), {"attempts-0": 9})
        return is_commit(path)

    monkeypatch.setattr(repair, "_is_commit", with_a_commit)
    assert not repair_table(ATTEMPTS, str(tmp_path))
    assert ids(tmp_path) == ["n0", "n1", "n9"]


def test_intact_tables_are_not_changed(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    before = sorted(tmp_path.rglob("*"))
    for location in (tmp_path, tmp_path / "none", "s3://bucket/attempts"):
        assert not repair_table(ATTEMPTS, str(location))
    assert sorted(tmp_path.rglob("*")) == before

    strange = 'a\u2028b\x85c\x1cd\n\r\0"'
    made = attempt("n4", "s", "dead", error="connect", detail=strange, endpoint=strange)
    DeltaTableWriter(ATTEMPTS, str(tmp_path)).extend(rows_of([attempts.encode(made)]), {"attempts-0": 4})
    assert not repair_table(ATTEMPTS, str(tmp_path))
    assert ids(tmp_path) == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("damage", [half, empty, zeros])
def test_a_torn_commit_is_removed_with_later_commits(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    written(tmp_path, 1, 2, 3, 4)
    damage(commit(tmp_path, 3))

    assert opened(tmp_path) == ({0: 2}, ["n1", "n2"])
    assert len(list(tmp_path.glob("_damaged/*/*.json"))) == 2, "a copy is kept"
    # Writes continue from there.
    written(tmp_path, 3, 4)
    assert ids(tmp_path) == ["n1", "n2", "n3", "n4"]
    assert not repair_table(ATTEMPTS, str(tmp_path))


@pytest.mark.parametrize("damage", [half, empty, zeros, missing])
def test_a_damaged_data_file_reverts_its_commit(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    written(tmp_path, 1, 2, 3, 4)
    damage(data_file(tmp_path, 3))
    assert opened(tmp_path) == ({0: 2}, ["n1", "n2"])


def test_a_damaged_joined_file_is_replaced_by_its_sources(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3, 4)
    DeltaTable(str(tmp_path)).optimize.compact()
    assert written(tmp_path, 5).location == str(tmp_path)
    half(data_file(tmp_path, 5))
    assert opened(tmp_path) == ({0: 4}, ["n1", "n2", "n3", "n4"])


@pytest.mark.parametrize("damage", [half, empty, zeros, missing])
def test_a_torn_checkpoint_loses_no_rows(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    written(tmp_path, 1, 2)
    DeltaTable(str(tmp_path)).create_checkpoint()
    written(tmp_path, 3)
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    damage(checkpoint)
    half(tmp_path / "_delta_log" / "_last_checkpoint")
    assert opened(tmp_path) == ({0: 3}, ["n1", "n2", "n3"])


def test_old_damage_loses_only_the_rows_of_its_file(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    damaged = data_file(tmp_path, 1)
    DeltaTable(str(tmp_path)).create_checkpoint()
    written(tmp_path, 3)
    for version in range(3):  # not needed after a checkpoint
        commit(tmp_path, version).unlink()
    assert not repair_table(ATTEMPTS, str(tmp_path))
    assert ids(tmp_path) == ["n1", "n2", "n3"]

    half(damaged)
    assert opened(tmp_path) == ({0: 3}, ["n2", "n3"])


def test_a_table_that_cannot_be_reverted_begins_empty(tmp_path: Path) -> None:
    written(tmp_path / "attempts", 1, 2)
    empty(commit(tmp_path / "attempts", 0))
    assert opened(tmp_path / "attempts") == ({}, [])
    (kept,) = tmp_path.glob("attempts.damaged-*")
    assert len(list(kept.rglob("*.parquet"))) == 2

    # A damaged data file also empties a table of states: its log contains all states.
    topics = tmp_path / "topics"
    table = DeltaTableWriter(TOPICS, str(topics))
    table.replace(TOPICS.arrow([]), {"control-0": 1})
    table.extend(TOPICS.arrow([neutral(TOPICS, topic="a")]), {"x": 1})
    DeltaTable(str(topics)).create_checkpoint()
    damaged = data_file(topics, 2)
    for version in range(3):
        commit(topics, version).unlink()
    half(damaged)
    assert DeltaTableWriter(TOPICS, str(topics)).positions("control") == {}


ROWS = [
    attempt("n1", "good", "delivered", 40),
    attempt("n1", "bad", "parked", 61, next_ms=1_767_355_200_123, error="server-error", detail="HTTP 503"),
    attempt("n2", "it's", "delivered", 62, response=b"\xff\x00"),
]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    record(tmp_path, *ROWS)
    return open_table(ATTEMPTS.location(TableSettings(), tmp_path))


def test_rows_equal_those_of_pyarrow(table: DeltaTable) -> None:
    names: list[list[str]] = [["n1"], ["n1", "n2"], ["' OR 1 = 1 --"], ["N1"], []]
    for column, values in (*(("notification", each) for each in names), ("subscription", ["it's"])):
        expected = ATTEMPTS.read(table, where=ds.field(column).isin(values)).to_pylist() if values else []
        found = rows_with(table, column, values)
        assert sorted(found, key=lambda row: row["push"]) == sorted(expected, key=lambda row: row["push"])
    assert list(attempt_rows(ROWS)) == rows_of([attempts.encode(*ROWS)]).to_pylist(), "equal to the rows of the log"


def test_rows_are_changed_by_key(tmp_path: Path) -> None:
    """Files without a row that differs stay."""
    names = ["a'b", "a\\b", "a\nb", "%", "Ä/\U0001f600", "a;--", "zz"]
    table = DeltaTableWriter(TOPICS, str(tmp_path))
    rows = {name: neutral(TOPICS, topic=name) for name in names}
    for row in rows.values():
        table.extend(TOPICS.arrow([row]), {"w-0": 1})
    files = DeltaTable(str(tmp_path)).file_uris()
    assert len(files) == len(names)

    table.change(names, lambda existing: existing.values(), {"w-0": 2})
    assert (table.positions("w"), DeltaTable(str(tmp_path)).file_uris()) == ({0: 2}, files)

    def changed(existing: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        assert existing == rows
        yield from (row | {"code": "7"} for name, row in existing.items() if name != "%")
        yield neutral(TOPICS, topic="new")

    table.change([*names, "new", "missing"], changed, {"w-0": 3})
    found = {row["topic"]: row for row in DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()}
    others = {name: row | {"code": "7"} for name, row in rows.items() if name != "%"}
    assert found == others | {"new": neutral(TOPICS, topic="new")}
    assert not {*files} & {*DeltaTable(str(tmp_path)).file_uris()}


def test_changes_of_many_rows_do_not_overflow_the_stack(tmp_path: Path) -> None:
    table = DeltaTableWriter(TOPICS, str(tmp_path))
    table.change(["t1"], lambda _: [neutral(TOPICS, topic="t1")], {})
    rows = {f"t{number}": neutral(TOPICS, topic=f"t{number}", code="1") for number in range(60_000)}
    table.change(rows, lambda _: rows.values(), {})
    assert {*TOPICS.read(open_table(str(tmp_path)), ["topic"])["topic"].to_pylist()} == {*rows}


def test_the_newest_row_and_a_damaged_file(table: DeltaTable) -> None:
    assert newest(table, ATTEMPTS.time) == NOON + timedelta(milliseconds=62)
    assert newest(table, "detail of nothing") is None
    for file in Path(table.table_uri.removeprefix("file://")).rglob("*.parquet"):
        file.write_bytes(b"nothing")
    with pytest.raises(DeltaError, match="damaged"):
        rows_with(table, "notification", ["n1"])


@pytest.mark.parametrize(("hours", "named"), [(23, True), (25, False)])
def test_checkpoints_name_removed_files_for_a_day(tmp_path: Path, hours: int, named: bool) -> None:
    written(tmp_path, 0)
    DeltaTable(str(tmp_path)).delete()
    removal = commit(tmp_path, 2)
    actions = [json.loads(line) for line in removal.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] -= hours * 3_600_000
    removal.write_text("\n".join(map(json.dumps, actions)))

    DeltaTable(str(tmp_path)).create_checkpoint()

    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    removed = pq.read_table(checkpoint).column("remove").to_pylist()
    assert any(removed) is named


def test_storage_options_of_the_location_of_a_table() -> None:
    settings = TableSettings(path="s3://bucket/x/", storage_options="AWS_REGION=eu  AWS_SECRET_ACCESS_KEY=a/b+c==\nX=")
    location = ATTEMPTS.location(settings, Path("home"))
    assert location == "s3://bucket/x/attempts"
    assert options_of(location) == {"AWS_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "a/b+c==", "X": ""}
    assert options_of("s3://bucket/x/attempts") == {}


@pytest.mark.parametrize("text", ["AWS_REGION=eu hunter2", "=hunter2"])
def test_invalid_options_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"its part \d is not NAME=VALUE") as caught:
        TableSettings(storage_options=text).storage()
    assert "hunter2" not in str(caught.value)


def test_options_are_not_shown_with_settings_or_location() -> None:
    settings = TableSettings(storage_options="KEY=hunter2")
    assert "hunter2" not in repr(settings) + repr(ATTEMPTS.location(settings, Path("home")))
