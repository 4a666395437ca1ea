"""The routing table: a deterministic fold over the control log that knows who gets what.

selectors   what a subscription's topic filters compile to, and under which keys a table keeps it
groups      subscriptions of equal selector, stored once
members     many subscriptions in pieces, so that a change costs one of them
resolver    from a topic to its subscriptions: few look-ups the first time, one from then on
rest        patterns with steps below their anchor, found by where they begin and how they end
expiry      which subscriptions are due
sharing     equal parts of a million subscriptions, stored once
links       the expansion of selectors that are more than one such key, in step with the tree
overlay     checkpoints, from which snapshots are made, and what changed since
history     recent changes: the recipients of a notification accepted before them
steps       the same two in small steps, for a view that lives as long as they come
table       the fold itself
"""

from __future__ import annotations

from arborcast.topic_model.routing.history import Found, History, PackedPast, Recipients
from arborcast.topic_model.routing.overlay import Checkpoint, Delta, Overlay
from arborcast.topic_model.routing.steps import ViewStep, ViewSteps
from arborcast.topic_model.routing.table import Route, RoutingTable, Statistics

__all__ = [
    "Checkpoint",
    "Delta",
    "Found",
    "History",
    "Overlay",
    "PackedPast",
    "Recipients",
    "Route",
    "RoutingTable",
    "Statistics",
    "ViewStep",
    "ViewSteps",
]
