"""`routes`: the expansion, written anew when topics or subscriptions have changed.

A snapshot and no fold: one wide subscription that comes or goes changes a row of every topic. It is bounded, because a
million topics with a hundred subscribers each are nothing that anybody looks at; `arborcast why` asks the routing
table itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dispatch.recording.held import HeldTable
from dispatch.tables import ROUTES
from topic_model.routing.routes import Route
from topic_model.suspensions import State

logger = logging.getLogger(__name__)


class RoutesSnapshot:
    """Writes the table when `version` has changed."""

    name = "routes"

    def __init__(
        self,
        location: str,
        limit: int,
        version: Callable[[], int],
        routes: Callable[[int], Sequence[tuple[Route, State]]],
    ) -> None:
        """`version` is a number that grows with each change, over restarts too; `routes` gives so many at most."""
        self._table = HeldTable(ROUTES, location)
        self._limit = limit
        self._version = version
        self._routes = routes
        self._told = False

    def step(self) -> bool:
        """Write the table if something has changed."""
        version = self._version()
        try:
            if self._table.progress(self.name) == version:
                return False
            # Read after the version: what changed in between is written once more, not left out.
            routes = self._routes(self._limit)
            if len(routes) >= self._limit and not self._told:
                logger.warning("there are more routes than the table takes: tables.max_routes = %d", self._limit)
                self._told = True
            rows = [
                {
                    "topic": route.topic,
                    "subscription": route.subscription_id,
                    "expression": route.expression,
                    "state": state,
                    "endpoint": route.subscription.consumer.address,
                }
                for route, state in routes
            ]
            self._table.replace(ROUTES.arrow(rows), {self.name: version})
        except BaseException:
            self._table.reopen()
            raise
        return False

    def close(self) -> None:
        """Nothing is held."""
