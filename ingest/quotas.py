"""How much one owner may have, and how much one publisher may cause."""

from __future__ import annotations

from collections.abc import Iterable

from ingest.envelope import Request
from ingest.errors import OperationRefused
from ingest.gateway import Gateway
from topic_model.topics import TopicPath


def check_room(gateway: Gateway, owner: str) -> None:
    """Raises OperationRefused when an owner has as many subscriptions as may be. Those without one are not counted.

    Several requests of one owner at the same moment may go beyond the bound by their number.
    """
    limit = gateway.settings.subscriptions_per_owner
    if not limit or not owner:
        return
    held = gateway.owners.subscriptions(owner)
    if held >= limit:
        raise OperationRefused(
            f"{owner!r} has {held} subscriptions, and {limit} may be: end some that are not needed any more",
            "SubscribeCreationFailedFault",
        )


def check_fan_out(gateway: Gateway, request: Request, topics: Iterable[TopicPath]) -> None:
    """Raises TooManyRequests for a publisher whose notifications have been pushed too often in the last minute.

    Counted by who subscribes to these topics now, in our view: those who subscribe a moment later do not count.
    """
    if gateway.gate is not None:
        table = gateway.table
        gateway.gate.publishes(request.client, lambda: sum(map(table.fan_out, topics)))
