"""Subscriptions and topics in an operator's words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from arborcast.admin import control_log
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.expressions import parse_friendly, with_codes
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.subscriptions import queue_topic
from arborcast.topic_model.topics import TopicPath


def subscription_id(text: str) -> str:
    """The id of a subscription, from its id or its address, which ends with it. The id of a queue may have slashes."""
    return text if queue_topic(text) is not None else text.rstrip("/").rpartition("/")[2]


MOST_GROUPS = 20
"""Groups of a list of deliveries."""


# Limit of selected deliveries named in the record of an operation.
_MOST_NAMED = 20


def options_text(conditions: Mapping[str, str], chosen: Collection[tuple[str, str]]) -> str:
    """The conditions of a filter as the options of a command, and pairs of notification and subscription."""
    options = [f"--{name} {value}" for name, value in conditions.items() if value]
    named = [f"{notification} for {subscription}" for notification, subscription in sorted(chosen)]
    if len(named) > _MOST_NAMED:
        named[_MOST_NAMED:] = [f"{len(named) - _MOST_NAMED} more"]
    return " ".join([*options, ", ".join(named)]).strip() or "all"


class DeliveryGroup(NamedTuple):
    """A number of deliveries to one endpoint, for one reason."""

    endpoint: str
    reason: str
    number: int


class TopicTest(NamedTuple):
    """The topics selected by an expression; all, if `text` is empty. `namespaces` are pairs of prefix and URI."""

    text: str = ""
    namespaces: tuple[tuple[str, str], ...] = ()

    def test(self, kafka: KafkaSettings, control: ControlView | None = None) -> Callable[[TopicPath], bool]:
        """The test of a topic. Topic codes (`code:1.4.A`) are looked up in `control`, or in the log. Raises
        ExpressionError, InfrastructureError."""
        normal = self.normal(kafka, control)
        return parse_normal(normal).matches if normal else lambda _path: True

    def normal(self, kafka: KafkaSettings, control: ControlView | None = None) -> str:
        """The normal form of the expression, empty for all topics. Raises as `test`."""
        if not self.text:
            return ""
        text, namespaces = self.text, dict(self.namespaces)
        if "code:" in text:
            tree = control.table.topics if control is not None else control_log.read_tree(kafka)
            text = with_codes(text, namespaces, tree.paths_with_code)
        return parse_friendly(text, namespaces).normal
