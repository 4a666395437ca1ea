"""The Delta tables: which columns, what each means and in which unit, where they are, and the writer of one."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.tables.schemas import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    INCOMPLETE,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TOPICS,
)
from dispatch.tables.spec import Column, TableSpec

__all__ = [
    "ATTEMPTS",
    "DEAD_LETTERS",
    "DELIVERIES",
    "ENDPOINT_HEALTH",
    "INCOMPLETE",
    "NOTIFICATIONS",
    "RETRIES",
    "ROUTES",
    "SUBSCRIPTIONS",
    "TABLES",
    "TOPICS",
    "Column",
    "TableSpec",
]

TABLES: Sequence[TableSpec] = (
    TOPICS,
    SUBSCRIPTIONS,
    ROUTES,
    NOTIFICATIONS,
    ATTEMPTS,
    DELIVERIES,
    RETRIES,
    DEAD_LETTERS,
    ENDPOINT_HEALTH,
    INCOMPLETE,
)
