"""Files of Spark: it compacts those of tables while their writer commits; those of a run are in the data directory."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from arborcast.dispatch.logs.attempts import encode
from arborcast.dispatch.recording import compaction
from arborcast.dispatch.recording.compaction import SparkCompactor
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.spark.source import remove_checkpoint
from arborcast.dispatch.tables import ATTEMPTS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from tests.support.realtime_setup import SETTINGS
from tests.support.table_rows import attempt
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_spark_compacts_while_the_writer_commits(tmp_path: Path, spark: SparkSession) -> None:
    location = str(tmp_path / "attempts")
    table = DeltaTableWriter(ATTEMPTS, location)
    written = 0

    def write(times: int) -> None:
        nonlocal written
        for _ in range(times):
            table.extend(rows_of([encode(attempt(f"n{written}", "s", "delivered"))]), {"query": written})
            written += 1

    write(9)
    # Both write checkpoints of the table's log at this time, over each other's.
    DeltaTable(location).alter.set_table_properties({"delta.checkpointInterval": "1"})
    joiner = SparkCompactor(spark, 8)
    upkeep = Upkeep(ATTEMPTS, location, joiner)
    for _ in range(2):
        beside = threading.Thread(target=write, args=(9,))
        beside.start()
        upkeep.step()
        beside.join()
    Upkeep(ATTEMPTS, location, joiner, unused_hours=0).step()

    found = DeltaTable(location)
    assert sorted(found.to_pyarrow_table()["notification"].to_pylist()) == sorted(f"n{each}" for each in range(written))
    assert table.progress("query") == written - 1
    assert len(found.file_uris()) < 8 < written
    assert len([*Path(location).glob("day=*/*.parquet")]) == len(found.file_uris()), "unused files are deleted"
    assert not Path(location, "_delta_log", "._last_checkpoint.crc").exists()
    engines = {
        json.loads(line)["commitInfo"].get("engineInfo", "")[:12]
        for commit in Path(location, "_delta_log").glob("*.json")
        for line in commit.read_text().splitlines()
        if "commitInfo" in line
    }
    assert any(engine.startswith("Apache-Spark") for engine in engines)
    assert spark.read.format("delta").load(location).count() == written


def test_a_compaction_that_hangs_is_cancelled(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for task slots here."""
    monkeypatch.setattr(compaction, "_LONGEST_S", 1.0)
    table, free = DeltaTableWriter(ATTEMPTS, str(tmp_path / "attempts")), tmp_path / "free"
    for number in range(9):
        table.extend(rows_of([encode(attempt(f"n{number}", "s", "delivered"))]), {})

    def hold(number: int) -> None:
        (tmp_path / f"{number}.held").touch()
        while not free.exists():
            time.sleep(0.1)

    slots = spark.sparkContext.defaultParallelism
    holding = threading.Thread(target=lambda: spark.sparkContext.range(0, slots, 1, slots).foreach(hold))
    holding.start()
    try:
        wait_until(lambda: len([*tmp_path.glob("*.held")]) == slots, "tasks have all slots")
        with pytest.raises(Exception, match="cancelled job group compaction of"):
            SparkCompactor(spark, slots)(table.location, "", 1 << 20)
    finally:
        free.touch()
        holding.join()


def test_a_checkpoint_is_in_a_data_directory_of_any_name(tmp_path: Path, spark: SparkSession) -> None:
    home = tmp_path / "my dätä 100%20 'a' #1?"
    settings = replace(SETTINGS, home=home)
    written = spark.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
    written.option("checkpointLocation", settings.checkpoint("push")).start().awaitTermination(300)
    assert (home / "checkpoints" / "push" / "commits").is_dir()
    assert [*tmp_path.iterdir()] == [home]
    remove_checkpoint(spark, settings.checkpoint("push"))
    assert not (home / "checkpoints" / "push").exists()
