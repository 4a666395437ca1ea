"""One Spark session for the whole test run, with the settings that the job has in production."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import properties
from arborcast.engine.embedded.engine import find_tools


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session, started on first use. A test stops the queries that it starts in the session."""
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def new_session(folder: Path) -> SparkSession:
    """A local session with eight task slots."""
    tools = find_tools()
    # Read when Spark's JVM starts, once per run.
    os.environ["JAVA_HOME"] = str(tools.java.executable.parent.parent)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    dispatch, classes = DispatchSettings(task_slots=8), tools.classes.get("dispatch")
    values = properties(dispatch, jars=tools.spark_jars, master="local", local_dir=folder, classes=classes)
    values["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    builder = SparkSession.builder
    for key, value in values.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
