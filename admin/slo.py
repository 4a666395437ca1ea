"""The service level objective of deliveries, and the attempts of a subscription by hour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from arborcast.admin.filters import subscription_id
from arborcast.core.errors import InfrastructureError
from arborcast.engine.settings.loading import Settings

if TYPE_CHECKING:
    from arborcast.dispatch.operations.slo import HourAttempts, Objectives


def measured(settings: Settings, limit: int, subscription: str = "", owner: str | None = None) -> Objectives:
    """The objective over 28 days of one subscription (id or address), of the subscriptions of one owner, or of all,
    with those that have spent most of the budget. Raises InfrastructureError for a table that cannot be read."""
    # Sixty MB of libraries, only for this query.
    from arborcast.dispatch.operations.slo import objectives

    with _table(settings) as location:
        return objectives(location, settings.slo, limit, subscription_id(subscription), owner)


def attempts(settings: Settings, subscription: str) -> tuple[HourAttempts, ...]:
    """The attempts of a subscription by hour, over a day. Raises InfrastructureError, as `measured`."""
    from arborcast.dispatch.operations.slo import attempts_by_hour

    with _table(settings) as location:
        return attempts_by_hour(location, subscription)


@contextmanager
def _table(settings: Settings) -> Iterator[str]:
    """The location of the table."""
    from deltalake.exceptions import DeltaError

    from arborcast.dispatch.tables import SLO

    location = SLO.location(settings.tables, settings.home)
    try:
        yield location
    except (OSError, DeltaError) as error:
        raise InfrastructureError(f"the table at {location} cannot be read: {str(error).splitlines()[0]}") from error
