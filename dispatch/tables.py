"""The Delta tables: which columns, what each means and in which unit, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from dispatch.settings import TableSettings


@dataclass(frozen=True)
class Column:
    """One column. `type` is a Delta primitive type."""

    name: str
    type: str
    help: str
    unit: str = ""

    @property
    def comment(self) -> str:
        """Description with its unit, as stored in the table itself."""
        return f"{self.help} [{self.unit}]" if self.unit else self.help


@dataclass(frozen=True)
class TableSpec:
    """One table. `properties` are Delta's table properties."""

    name: str
    help: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] | None = None

    def location(self, settings: TableSettings, home: Path) -> str:
        """Where the table is: below `tables.path`, or below the data directory when that is not set."""
        root = settings.path.rstrip("/") or str((home / "tables").absolute())
        return f"{root}/{self.name}"

    def schema(self) -> Schema:
        """As Delta stores it, the descriptions included."""
        return Schema(
            [
                Field(column.name, PrimitiveType(column.type), nullable=False, metadata={"comment": column.comment})
                for column in self.columns
            ]
        )

    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow types."""
        return pa.schema([pa.field(column.name, _ARROW[column.type], nullable=False) for column in self.columns])

    def ensure(self, location: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable:
        """The table, created when it is not there."""
        return DeltaTable.create(
            location,
            self.schema(),
            mode="ignore",
            partition_by=list(self.partition_by),
            name=self.name,
            description=self.help,
            configuration=dict(self.properties or {}),
            storage_options=dict(storage_options or {}),
        )


_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

ATTEMPTS = TableSpec(
    name="attempts",
    help="Every try to bring a notification to a subscription, one row each.",
    columns=(
        Column("day", "date", "Day of started_at; the table is partitioned by it.", "UTC"),
        Column("notification", "string", "The notification's id, the same on every attempt."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column("number", "integer", "1 for the first attempt of this delivery, 2 for the next."),
        Column("push", "string", "The HTTP request; attempts with the same value travelled in one wsnt:Notify."),
        Column("state", "string", "delivered: the receiver answered 2xx; failed: it did not."),
        Column("error", "string", "Class of the failure, empty when delivered; see dispatch/attempts.py."),
        Column("detail", "string", "What went wrong, in words; empty when delivered."),
        Column("status", "integer", "HTTP status; 0 when there was no answer."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("started_at", "timestamp", "When the push began.", "UTC"),
        Column("duration_ms", "double", "From the push's beginning to its end.", "ms"),
        Column("messages", "integer", "How many notifications travelled in this push."),
        Column("request_bytes", "long", "Size of the request's body, shared by all its notifications.", "bytes"),
        Column("response_bytes", "long", "How much of the answer's body was read.", "bytes"),
        Column("response", "binary", "Beginning of the answer's body."),
        Column("reused", "boolean", "Whether the push went over a connection that was already open."),
        Column("batch", "long", "The batch of the dispatch query that made the attempt."),
    ),
    partition_by=("day",),
    # A checkpoint of the Delta log every 100 commits: at one commit per 5 s that is one every 8 minutes.
    properties={"delta.checkpointInterval": "100"},
)

TABLES: Sequence[TableSpec] = (ATTEMPTS,)
