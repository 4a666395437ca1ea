"""The state of the control log, and changes to it. Only Kafka is needed, not the gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_log import ControlFollower, ControlLog
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.tree.tree import TopicTree

# A log of a million records is read in well under a minute.
READ_SECONDS = 120.0

# Records per write: single writes would be slow, and one large write could exceed the timeout.
_AT_ONCE = 2_000


def read_tree(kafka: KafkaSettings) -> TopicTree:
    """The topic tree at the end of the control log. Raises InfrastructureError."""
    tree = TopicTree()
    _fold(kafka, lambda record, _offset: tree.apply(record))
    return tree


def read_table(kafka: KafkaSettings) -> RoutingTable:
    """The routing table at the end of the control log. Raises InfrastructureError."""
    table = RoutingTable()
    _fold(kafka, table.apply)
    return table


def read_control(kafka: KafkaSettings) -> ControlView:
    """The routing table and the suspensions at the end of the control log. Raises InfrastructureError."""
    control = ControlView()
    _fold(kafka, control.apply)
    return control


def _fold(kafka: KafkaSettings, apply: Callable[[ControlRecord, int], None]) -> None:
    with closing(ControlFollower(kafka, apply)) as follower:
        follower.read_to_end(READ_SECONDS)


def append(kafka: KafkaSettings, records: Sequence[ControlRecord], progress: Progress = no_progress) -> None:
    """Append records and wait until they are stored. Raises InfrastructureError; earlier ones may then be stored."""
    with closing(ControlLog(kafka)) as log:
        for start in range(0, len(records), _AT_ONCE):
            progress("writing topics", start, len(records))
            log.append(records[start : start + _AT_ONCE])
