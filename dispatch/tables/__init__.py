"""The Delta tables: which columns, what each means and in which unit, and where they are."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.tables.events import ATTEMPTS, DELIVERIES, ENDPOINT_HEALTH, NOTIFICATIONS
from dispatch.tables.spec import Column, TableSpec
from dispatch.tables.states import DEAD_LETTERS, RETRIES, ROUTES, SUBSCRIPTIONS, TOPICS

__all__ = [
    "ATTEMPTS",
    "DEAD_LETTERS",
    "DELIVERIES",
    "ENDPOINT_HEALTH",
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
)
