"""How much one owner may have."""

from __future__ import annotations

from ingest.errors import OperationRefused
from ingest.gateway import Gateway


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
