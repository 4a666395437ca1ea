"""A Spark session for the tables."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch.tables import TABLES
from dispatch.tables.location import is_there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobs.settings import Settings


def spark(settings: Settings | None = None) -> SparkSession:
    """A ready session with Delta, in which every table that is there is a view of its name.

    The session that runs already is taken where there is one (it must have Delta's jars). A new one is local.
    """
    from pyspark.sql import SparkSession

    from jobs.settings import load_settings

    chosen = settings or load_settings()
    session = SparkSession.getActiveSession() or _new_session(chosen)
    for spec in TABLES:
        location = spec.location(chosen.tables, chosen.home)
        if is_there(location):
            session.read.format("delta").load(location).createOrReplaceTempView(spec.name)
    return session


def _new_session(settings: Settings) -> SparkSession:
    from pyspark.sql import SparkSession

    from dispatch.spark_properties import properties
    from jobs.stack import jars, java

    os.environ.setdefault("JAVA_HOME", str(java.find_java().executable.parent.parent))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = Path(tempfile.mkdtemp(prefix="arborcast-notebook-"))
    builder = SparkSession.builder.appName("arborcast notebook")
    values = properties(settings.dispatch, jars=jars.jar_paths("spark"), master="local", local_dir=folder)
    values["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    for key, value in values.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
