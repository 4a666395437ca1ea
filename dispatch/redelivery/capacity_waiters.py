"""Lanes that could go on if there were room at their endpoint or host. Pure.

Whoever gets room and does not use it has to say so (`pass_on`), or the others would wait for ever.
"""

from __future__ import annotations

from collections import OrderedDict

from dispatch.delivery.capacity import InFlightLimiter, Limits, Scope, scopes_of


class CapacityWaiters:
    """The room at endpoints and hosts, and who waits for some."""

    def __init__(self, limits: Limits) -> None:
        self._room = InFlightLimiter(limits)
        # In order, and found by name: when ten thousand subscriptions at a host end, each leaves from the middle.
        self._waiting: dict[Scope, OrderedDict[str, None]] = {}
        self._where: dict[str, Scope] = {}

    def __len__(self) -> int:
        return len(self._where)

    def enter(self, address: str) -> None:
        """A push there begins."""
        self._room.enter(scopes_of(address))

    def leave(self, address: str) -> list[str]:
        """A push there has ended: who may go on now."""
        self._room.leave(scopes_of(address))
        return self.pass_on(address)

    def wait(self, lane: str, address: str) -> bool:
        """Whether there is no room; then the lane waits until it is named by `leave` or `pass_on`."""
        if lane in self._where:
            return True
        for scope in scopes_of(address):
            if self._room.full(scope):
                self._where[lane] = scope
                self._waiting.setdefault(scope, OrderedDict())[lane] = None
                return True
        return False

    def pass_on(self, address: str) -> list[str]:
        """Who may go on in place of a lane that did not use its room."""
        released = []
        for scope in scopes_of(address):
            waiting = self._waiting.get(scope)
            if waiting and not self._room.full(scope):
                lane, _ = waiting.popitem(last=False)
                del self._where[lane]
                released.append(lane)
                if not waiting:
                    del self._waiting[scope]
        return released

    def forget(self, lane: str) -> None:
        """The lane is over."""
        scope = self._where.pop(lane, None)
        if scope is not None:
            del self._waiting[scope][lane]
            if not self._waiting[scope]:
                del self._waiting[scope]
