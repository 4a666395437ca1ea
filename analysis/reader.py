"""One table, read through delta-rs: no JVM, and only the required files and columns."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

from arborcast.analysis.rows import Rows
from arborcast.core.errors import ArborcastError
from arborcast.dispatch.tables import TABLES
from arborcast.dispatch.tables.spec import TableSpec, open_table, table_exists
from arborcast.engine.settings.loading import Settings, load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark(settings: Settings | None = None) -> SparkSession:
    """A Spark session with Delta and a view for each table. A running session is used (it needs Delta's jars); a new
    one is local."""
    from pyspark.sql import SparkSession

    chosen = settings or load_settings()
    session = SparkSession.getActiveSession() or _new_session(chosen)
    for spec in TABLES:
        location = spec.location(chosen.tables, chosen.home)
        if table_exists(location):
            session.read.format("delta").load(location).createOrReplaceTempView(spec.name)
    return session


def _new_session(settings: Settings) -> SparkSession:
    from pyspark.sql import SparkSession

    from arborcast.dispatch.spark.properties import properties
    from arborcast.engine.install import jars, java

    # As for the engine: of several, the one that Spark runs on.
    os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find_java(), jars.default_cache()))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = Path(tempfile.mkdtemp(prefix="arborcast-notebook-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    builder = SparkSession.builder.appName("arborcast notebook")
    values = properties(settings.dispatch, jars=jars.jar_paths("spark"), master="local", local_dir=folder)
    values["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    for key, value in values.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


TimeOrAge = datetime | timedelta
"""A time with a zone, or a duration before now."""


class NoSuchTable(ArborcastError):
    """The table, or a column, does not exist (yet)."""


class TableReader:
    """A table, opened again for each read."""

    def __init__(self, spec: TableSpec, location: str) -> None:
        self.spec = spec
        self.location = location

    def __repr__(self) -> str:
        return f"<table {self.spec.name} at {self.location}: {self.spec.help}>"

    def __len__(self) -> int:
        """The number of rows, from the table's log."""
        return int(self.delta().count())

    def delta(self) -> DeltaTable:
        """The DeltaTable. Raises NoSuchTable."""
        if not table_exists(self.location):
            raise NoSuchTable(
                f"there is no table at {self.location}: the engine creates it some seconds after its start; "
                "ARBORCAST_HOME or ARBORCAST_CONFIG selects the engine"
            )
        return open_table(self.location)

    def dataset(self) -> ds.Dataset:
        """For pyarrow, and readers of its datasets (DuckDB, Polars)."""
        return self.spec.dataset(self.delta())

    def arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        since: TimeOrAge | None = None,
        until: TimeOrAge | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """Rows as an Arrow table.

        `since` and `until` refer to the table's time column (`spec.time`); files of other days are not opened. `where`
        is a pyarrow expression.
        """
        begin, end = (None if each is None else as_time(each) for each in (since, until))
        condition = _and(self._between(begin, end), where)
        return self.spec.read(self.delta(), columns, condition, self._days(begin, end))

    def pandas(
        self,
        columns: Sequence[str] | None = None,
        *,
        since: TimeOrAge | None = None,
        until: TimeOrAge | None = None,
        where: ds.Expression | None = None,
    ) -> pd.DataFrame:
        """Rows as a pandas frame; see `arrow`."""
        frame: pd.DataFrame = self.arrow(columns, since=since, until=until, where=where).to_pandas()
        return frame

    def query(self, sql: str) -> pd.DataFrame:
        """The result of a query in SQL, in which the table has its own name. Only the result is in memory."""
        found = QueryBuilder().register(self.spec.name, self.delta()).execute(sql).read_all()
        frame: pd.DataFrame = pa.table(found).to_pandas()
        return frame

    @property
    def columns(self) -> pd.DataFrame:
        """The meaning of the columns."""
        rows = [(each.name, each.type, each.unit, each.help) for each in self.spec.columns]
        frame = pd.DataFrame(rows, columns=["column", "type", "unit", "meaning"]).set_index("column")
        return Rows.of(frame, "it has no columns")

    def _between(self, since: datetime | None, until: datetime | None) -> ds.Expression | None:
        if since is None and until is None:
            return None
        if not self.spec.time:
            raise NoSuchTable(f"the table {self.spec.name} has no column of time: it has the current state only")
        field = ds.field(self.spec.time)
        # The end is exclusive: consecutive periods contain every row once.
        return _and(None if since is None else field >= since, None if until is None else field < until)

    def _days(self, since: datetime | None, until: datetime | None) -> str | None:
        """The condition of files with days between these times."""
        if "day" not in self.spec.partition_by:
            return None
        bounds = [f"day {sign} '{when.date()}'" for sign, when in ((">=", since), ("<=", until)) if when]
        return " and ".join(bounds) or None


def as_time(when: TimeOrAge) -> datetime:
    """The time. Raises ValueError for one without a zone."""
    if isinstance(when, timedelta):
        return datetime.now(UTC) - when
    if when.tzinfo is None:
        raise ValueError(f"{when} has no time zone: write datetime(..., tzinfo=UTC)")
    return when.astimezone(UTC)


def _and(first: ds.Expression | None, second: ds.Expression | None) -> ds.Expression | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second
