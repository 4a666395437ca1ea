"""One row for each delivery that has ended.

Deliveries are appended when they end, not folded: at 1,000/s a month has 2.6 billion of them, and a merge costs what
the table holds. A second end of the same delivery can only come from a batch that Spark repeated after a crash, from
the redelivery, or from a new checkpoint that began far back in the log; those rows, and only those, are looked up
first. Ids sort by time, so the look-up reads the one or two
files that could hold them: 26 ms for 1,000 ids in a table of 2 million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dispatch.spark.checkpoint_repair import RANGE
from dispatch.tables import DELIVERIES
from dispatch.tables.delta_table import DeltaTableWriter

# The batches up to this one have been recorded, at least in part.
_NEWEST = "newest-batch"

# What was accepted by then (ms since the epoch) may have been delivered under an older checkpoint as well.
_CHECKPOINT = "newest-checkpoint-ms"

# Accepted and ended are told by clocks of several machines.
_CLOCKS_MS = 60_000

_Key = tuple[str, str]


class EndedDeliveries:
    """Writes the `deliveries` table from the rows of `attempts`."""

    def __init__(self, location: str) -> None:
        self.table = DeltaTableWriter(DELIVERIES, location)

    def append(self, attempts: pa.Table, progress: Mapping[str, int]) -> None:
        """Record the deliveries that ended with these attempts, and how far that is. May be repeated after a crash at
        any point."""
        ended = delivery_rows(attempts)
        keys = _keys(ended)
        batches, states = ended["batch"].to_pylist(), ended["state"].to_pylist()
        newest, checkpoint_ms = self.table.progress(_NEWEST), self.table.progress(_CHECKPOINT) or 0
        latest = max([newest or 0, *batches])
        if newest is not None and latest // RANGE > newest // RANGE:
            checkpoint_ms = max(_ms(ended["ended_at"])) + _CLOCKS_MS
        doubtful = [
            key
            for key, number, accepted_ms in zip(keys, batches, _ms(ended["accepted_at"]), strict=True)
            if newest is not None and (number <= newest or accepted_ms <= checkpoint_ms)
        ]
        known = self._states(doubtful) if doubtful else {}
        changed = [row for row, key in enumerate(keys) if key in known and known[key] != states[row]]
        if changed:
            # A dead letter that was sent again, mostly.
            self._overwrite(ended.take(changed))
        fresh = [row for row, key in enumerate(keys) if key not in known]
        self.table.extend(
            ended.take(pa.array(fresh, pa.int64())), {**progress, _NEWEST: latest, _CHECKPOINT: checkpoint_ms}
        )

    def _states(self, keys: Sequence[_Key]) -> dict[_Key, str]:
        """The states of those of the deliveries that the table has."""
        notifications = sorted({notification for notification, _ in keys})
        table = self.table.open()
        # Compaction, which is not our writing, may have put rows into other files.
        table.update_incremental()
        column = ds.field("notification")
        # The bounds, beside the ids, leave out whole files by their statistics.
        bounds = (column >= notifications[0]) & (column <= notifications[-1])
        found = DELIVERIES.read(table, ["notification", "subscription", "state"], bounds & column.isin(notifications))
        wanted = set(keys)
        states = zip(_keys(found), found["state"].to_pylist(), strict=True)
        return {key: state for key, state in states if key in wanted}

    def _overwrite(self, changed: pa.Table) -> None:
        bounds = pc.min_max(changed["notification"]).as_py()
        self.table.overwrite(
            changed,
            "t.notification = s.notification and t.subscription = s.subscription "
            f"and t.notification >= {_quoted(bounds['min'])} and t.notification <= {_quoted(bounds['max'])}",
        )


def delivery_rows(attempts: pa.Table) -> pa.Table:
    """Rows of `deliveries` for those of `attempts` that ended one: one row per delivery, the last of them says how."""
    ended = attempts.filter(pc.not_equal(attempts["state"], "parked"))
    last = {key: row for row, key in enumerate(_keys(ended))}
    ended = ended.take(pa.array(last.values(), pa.int64()))
    microseconds = pc.round(pc.multiply(ended["duration_ms"], 1000.0)).cast(pa.int64())
    ended_at = pc.add(ended["started_at"], microseconds.cast(pa.duration("us")))
    gap = pc.subtract(ended["started_at"].cast(pa.int64()), ended["accepted_at"].cast(pa.int64()))
    # The gateway's clock may be ahead of this one.
    waited = pc.divide(pc.max_element_wise(gap, 0).cast(pa.float64()), 1000.0)
    made = {
        "day": ended_at.cast(pa.date32()),
        "attempts": ended["number"],
        "ended_at": ended_at,
        "waited_ms": waited,
        "push_ms": ended["duration_ms"],
        "latency_ms": pc.add(waited, ended["duration_ms"]),
    }
    schema = DELIVERIES.arrow_schema()
    columns = [(made[each.name] if each.name in made else ended[each.name]).cast(each.type) for each in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _keys(rows: pa.Table) -> list[_Key]:
    return list(zip(rows["notification"].to_pylist(), rows["subscription"].to_pylist(), strict=True))


def _ms(times: pa.ChunkedArray) -> list[int]:
    """Milliseconds since the epoch."""
    return [each // 1000 for each in times.cast(pa.int64()).to_pylist()]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
