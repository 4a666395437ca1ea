"""The Delta tables: which columns, what each means and in which unit, and where they are.

events, states      tables of what happened, and of what is
spec, location      what a table is made of; where it is
mending             a table after a crash of the machine
"""

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
