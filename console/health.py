"""Whether the engine is well: for the overview, and for the header of each page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arborcast.engine.monitoring.attention import Concern, HealthWord, Level, concerns, endpoint_health
from arborcast.engine.monitoring.watching import EngineView, EngineWatch, metrics_address
from arborcast.engine.settings.loading import Settings

# A view of this age is reused: however many pages are open, the engine is queried once in this time.
_FRESH_S = 4.0

# An assessment of this age is not shown any more.
_KNOWN_S = 15.0


@dataclass(frozen=True)
class Assessment:
    """The problems, worst first, and their summary as one sentence. `words` are for the header."""

    level: Level
    sentence: str
    words: str
    concerns: Sequence[Concern] = ()


UNKNOWN = Assessment("unknown", "The state of the engine is not known yet.", "checking")


def assess(found: Sequence[Concern]) -> Assessment:
    """The assessment of an engine with these concerns, worst first."""
    if not found:
        return Assessment("good", "All is well.", "healthy")
    bad = sum(each.level == "bad" for each in found)
    sentence = ". ".join(each.text for each in found[:3]) + (f". And {len(found) - 3} more" if len(found) > 3 else "")
    count = bad or len(found)
    words = f"{count} {'problem' if bad else 'warning'}{'s' if count > 1 else ''}"
    return Assessment("bad" if bad else "warn", f"{sentence}.", words, found)


class EndpointsHealth:
    """The health of endpoints, of one view of the engine."""

    def __init__(self, seen: EngineView) -> None:
        self.known = seen.failing is not None and not seen.problem
        self._complete = self.known and seen.failing_count <= len(seen.failing or ())
        self._failing: Mapping[str, Mapping[str, Any]] = {each["endpoint"]: each for each in seen.failing or ()}
        others = (*seen.endpoints, *seen.pushed)
        self._others: Mapping[str, Mapping[str, Any]] = {each["endpoint"]: each for each in others}

    def figures(self, endpoint: str) -> Mapping[str, Any] | None:
        """The pushes of the last minutes; None if they are not published, or there were none."""
        return self._failing.get(endpoint) or self._others.get(endpoint)

    def word(self, endpoint: str) -> HealthWord:
        """The health of an endpoint; "healthy" only if its pushes do not fail."""
        one = self._failing.get(endpoint)
        if not self.known:
            return "unknown"
        if one is None:
            return "healthy" if self._complete else "unknown"
        return endpoint_health(one)

    def of(self, word: HealthWord) -> frozenset[str]:
        """The endpoints with this health."""
        return frozenset(each for each, one in self._failing.items() if self.known and endpoint_health(one) == word)


class EngineHealth:
    """Looks at the engine of the data directory, else at the dispatch job that the settings name; from one event loop.
    `more` are concerns that the console finds in its own state."""

    def __init__(self, settings: Settings, more: Callable[[], Iterable[Concern]]) -> None:
        self._watches = [EngineWatch(find=lambda: metrics_address(settings.home))]
        if settings.job_metrics_url:
            self._watches.append(EngineWatch([settings.job_metrics_url]))
        self._more = more
        self._lock = asyncio.Lock()
        self._looked = float("-inf")
        self._seen = EngineView()
        self._own: tuple[float, list[Concern]] = (float("-inf"), [])

    async def look(self) -> EngineView:
        """The engine, at most some seconds ago. Never raises."""
        async with self._lock:
            if not 0 <= time.time() - self._looked < _FRESH_S:
                self._seen = await asyncio.to_thread(self._view)
                self._looked = time.time()
            return self._seen

    async def assessment(self) -> Assessment:
        await self.look()
        return self.known()

    def known(self) -> Assessment:
        """The last one, without a look at the engine."""
        now = time.time()
        if not 0 <= now - self._own[0] < _FRESH_S:
            self._own = now, list(self._more())
        more = self._own[1]
        if not 0 <= now - self._looked < _KNOWN_S:
            return assess(more) if more else UNKNOWN
        found = [*more, *concerns(self._seen, now)]
        return assess(sorted(found, key=lambda each: each.level))

    def _view(self) -> EngineView:
        views = []
        for watch in self._watches:
            views.append(watch.look())
            if not views[-1].problem:
                return views[-1]
        return views[0]
