"""Spark's files of a run are in the data directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.dispatch.spark.source import remove_checkpoint
from tests.support.realtime_setup import SETTINGS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_checkpoint_is_in_a_data_directory_of_any_name(tmp_path: Path, spark: SparkSession) -> None:
    home = tmp_path / "my dätä 100%20 'a' #1?"
    settings = replace(SETTINGS, home=home)
    written = spark.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
    written.option("checkpointLocation", settings.checkpoint("push")).start().awaitTermination(300)
    assert (home / "checkpoints" / "push" / "commits").is_dir()
    assert [*tmp_path.iterdir()] == [home]
    remove_checkpoint(spark, settings.checkpoint("push"))
    assert not (home / "checkpoints" / "push").exists()
