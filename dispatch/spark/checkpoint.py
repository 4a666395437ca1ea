"""The checkpoint of a query: Spark's files about a run, of no use to the next one."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def remove_checkpoint(spark: SparkSession, location: str) -> None:
    """Remove the folder, on any file system of Hadoop's, if it is there."""
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001  # Spark offers no public way to Hadoop's file systems
    configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001  # the same
    path = jvm.org.apache.hadoop.fs.Path(location)
    path.getFileSystem(configuration).delete(path, True)
