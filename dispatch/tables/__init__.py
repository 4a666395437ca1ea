"""The Delta tables: which columns, what each means and in which unit, and where they are.

events, states      tables of what happened, and of what is
spec, location      what a table is made of; where it is
mending             a table after a crash of the machine
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.tables.schemas import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ENDPOINT_HEALTH,
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
