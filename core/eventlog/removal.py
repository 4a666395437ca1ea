"""Removal of keys from a compacted log beside its other writers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing

from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings

_AT_ONCE = 500


def remove_keys(kafka: KafkaSettings, name: str, keys: Collection[bytes], ends: Mapping[int, int]) -> None:
    """Write a null for each of these keys of a log of one partition. A record that another writer has appended since
    these ends of the log, before the null, is written again. Raises InfrastructureError."""
    with closing(LogWriter(kafka, name)) as writer, LogScan(kafka, name) as log:
        nulls: list[tuple[bytes, None]] = [(key, None) for key in keys]
        for start in range(0, len(nulls), _AT_ONCE):
            writer.append_encoded(nulls[start : start + _AT_ONCE])
        newer: dict[bytes, bytes] = {}
        overtaken: dict[bytes, bytes] = {}
        for record in log.read_from(ends):
            if record.value is not None:
                newer[record.key] = record.value
                overtaken.pop(record.key, None)
            elif record.key in newer and record.key in keys:
                overtaken[record.key] = newer[record.key]
        if overtaken:
            writer.append_encoded(list(overtaken.items()))
