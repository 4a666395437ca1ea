"""The routing table: a deterministic fold over the control log that returns the recipients of notifications.

selectors   compiled topic filters of a subscription, and their keys in the table
groups      subscriptions with the same selector
members     large sets of subscriptions in pieces, so that a change copies one piece
resolver    from a topic to its subscriptions: few look-ups the first time, one afterwards
rest        patterns with steps below their anchor, in a trie
expiry      subscriptions by termination time
sharing     equal parts of a million subscriptions, stored once
links       selectors with several keys, updated with the tree
overlay     checkpoints, from which snapshots are made, and later changes
history     recent changes: the recipients of a notification accepted before them
steps       later changes and history in small steps, for long-lived views
table       the fold
"""

from __future__ import annotations

from arborcast.topic_model.routing.history import Found, History, PackedHistory, Recipients
from arborcast.topic_model.routing.overlay import Checkpoint, Delta, Overlay
from arborcast.topic_model.routing.steps import ViewStep, ViewSteps
from arborcast.topic_model.routing.table import Route, RoutingTable, Statistics

__all__ = [
    "Checkpoint",
    "Delta",
    "Found",
    "History",
    "Overlay",
    "PackedHistory",
    "Recipients",
    "Route",
    "RoutingTable",
    "Statistics",
    "ViewStep",
    "ViewSteps",
]
