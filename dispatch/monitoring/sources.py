"""Figures of the job that are only looked up when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dispatch.monitoring.lag import Lag
from dispatch.monitoring.progress import Progress


class ViewSize(NamedTuple):
    """The workers' view: entries of the base, when it was made (seconds since the epoch), entries of the overlay, bytes
    of both."""

    base: int = 0
    made_at: float = 0.0
    overlay: int = 0
    base_bytes: int = 0
    overlay_bytes: int = 0


class Sources(Protocol):
    """Where the figures come from that are only looked up when somebody asks."""

    def lag(self) -> Mapping[str, Lag]:
        """By query."""

    def progress(self) -> Mapping[str, Progress]:
        """By query."""

    def view(self) -> ViewSize:
        """The workers' view."""

    def waiting(self) -> Mapping[str, float]:
        """By kind: `parked`, `due`."""

    def breakers(self) -> Mapping[str, float]:
        """Endpoints by the state of their breaker."""

    def pushes(self) -> Mapping[str, float]:
        """Pushes under way, by whose they are: `batch`, if that can be known, `redelivery`."""


class NoSources:
    """A job that has not begun."""

    def lag(self) -> Mapping[str, Lag]:
        return {}

    def progress(self) -> Mapping[str, Progress]:
        return {}

    def view(self) -> ViewSize:
        return ViewSize()

    def waiting(self) -> Mapping[str, float]:
        return {}

    def breakers(self) -> Mapping[str, float]:
        return {}

    def pushes(self) -> Mapping[str, float]:
        return {}
