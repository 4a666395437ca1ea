"""Tables on S3 are a matter of settings, and two writers cannot overwrite each other's commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dispatch.settings import TableSettings
from dispatch.tables import ATTEMPTS
from tests.support.s3 import s3_server

pytest.importorskip("moto", reason="the S3 server is one of the development packages: make setup")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server(tmp_path, "tables") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield "s3://tables/arborcast"


def test_the_path_is_all_that_changes(root: str, tmp_path: Path) -> None:
    location = ATTEMPTS.location(TableSettings(path=root), tmp_path)
    ATTEMPTS.ensure(location)

    again = ATTEMPTS.ensure(location)

    assert location == f"{root}/{ATTEMPTS.name}"
    assert again.version() == 0
    assert again.schema().fields[0].name == ATTEMPTS.columns[0].name


def test_commits_at_the_same_moment_are_all_kept(root: str) -> None:
    location = f"{root}/numbers"
    write_deltalake(location, pa.table({"writer": [-1], "number": [-1]}))
    begin = threading.Barrier(4)
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        begin.wait()
        try:
            for number in range(5):
                write_deltalake(location, pa.table({"writer": [writer], "number": [number]}), mode="append")
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(each,)) for each in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()

    assert not failures
    rows = DeltaTable(location).to_pyarrow_table().to_pylist()
    found = sorted((row["writer"], row["number"]) for row in rows if row["writer"] >= 0)
    assert found == [(writer, number) for writer in range(4) for number in range(5)]
    assert DeltaTable(location).version() == 20, "each commit took a number of its own"
