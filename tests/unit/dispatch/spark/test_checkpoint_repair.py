from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from arborcast.dispatch.spark.checkpoint_repair import is_cut_off, mend, settled

OLD_ID = "7d7fd3ab-0000-4000-8000-000000000000"
PLAN = 'v1\n{"batchTimestampMs":1}\n{"notifications":{"0":1}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def checkpoint(folder: Path) -> Path:
    for kind, content in (("offsets", PLAN), ("commits", COMMIT)):
        (folder / kind).mkdir(parents=True)
        for number in (8, 9, 10):
            (folder / kind / str(number)).write_text(content)
            (folder / kind / f".{number}.crc").write_bytes(b"crc")
    (folder / "metadata").write_text(json.dumps({"id": OLD_ID}))
    return folder


def test_whole_one_is_left_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)

    assert mend(str(folder)) == []
    assert mend(f"file://{folder}") == []
    assert len(list(folder.rglob("*"))) == 15


@pytest.mark.parametrize(
    "content", ["", "v1", 'v1\n{"batchTimestampMs":1}', 'v1\n{"batchTimestampMs":1}\n{"notif', "\0" * 40]
)
def test_torn_plan_is_removed_with_its_checksum(tmp_path: Path, content: str) -> None:
    folder = checkpoint(tmp_path)
    (folder / "offsets" / "10").write_text(content)

    assert mend(str(folder)) == [folder / "offsets" / "10", folder / "commits" / "10"]
    assert json.loads((folder / "metadata").read_text())["id"] == OLD_ID
    assert not (folder / "offsets" / ".10.crc").exists()
    assert (folder / "offsets" / "9").exists()


@pytest.mark.parametrize("content", ["", "v1", "v1\n{", "\0"])
def test_torn_commit_is_taken_for_not_made(tmp_path: Path, content: str) -> None:
    folder = checkpoint(tmp_path)
    (folder / "commits" / "10").write_text(content)

    assert mend(str(folder)) == [folder / "commits" / "10"]
    assert (folder / "offsets" / "10").exists()


def test_torn_query_id_is_made_anew(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "metadata").write_text("")

    assert mend(str(folder)) == [folder / "metadata"]
    assert uuid.UUID(json.loads((folder / "metadata").read_text())["id"])
    assert mend(str(folder)) == []


def test_nothing_there_yet_and_nothing_local(tmp_path: Path) -> None:
    assert mend(str(tmp_path / "none")) == []
    assert mend("s3a://bucket/checkpoint") == []


def planned(folder: Path, batch: int, **ends: int) -> None:
    for kind, lines in (
        ("offsets", ("v1", '{"batchTimestampMs":1}', json.dumps({"p-attempts": {k[1:]: v for k, v in ends.items()}}))),
        ("commits", ("v1", '{"nextBatchWatermarkMs":0}')),
    ):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / str(batch)).write_text("\n".join(lines))


def test_where_the_last_batch_that_is_done_ends(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    assert settled(str(folder), "p-attempts") == {}, "there is none yet"
    for batch in (7, 8, 9):
        planned(folder, batch, p0=10 * batch, p1=batch)
    assert settled(str(folder), "p-attempts") == {0: 90, 1: 9}
    (folder / "commits" / "9").write_text("v1")
    assert settled(str(folder), "p-attempts") == {0: 80, 1: 8}, "the last one is repeated, since its commit is torn"
    (folder / "offsets" / "8").write_text("torn")
    assert settled(str(folder), "p-attempts") is None
    assert settled("s3://bucket/push", "p-attempts") is None


def test_the_first_batch_of_a_checkpoint_may_be_the_last_that_is_done(tmp_path: Path) -> None:
    planned(tmp_path, 0, p0=5, p1=2)
    assert settled(str(tmp_path), "p-attempts") == {0: 5, 1: 2}
    (tmp_path / "commits" / "0").write_text("")
    assert settled(str(tmp_path), "p-attempts") == {}


def test_a_batch_that_is_planned_and_not_done_is_cut_off(tmp_path: Path) -> None:
    assert not is_cut_off(str(tmp_path / "none"))
    folder = checkpoint(tmp_path)
    assert not is_cut_off(str(folder))
    (folder / "commits" / "10").unlink()
    assert is_cut_off(folder.as_uri())
    for each in (folder / "commits").iterdir():
        each.unlink()
    assert is_cut_off(str(folder))
    assert not is_cut_off("s3a://bucket/checkpoint"), "nobody knows"
