"""An engine seen from outside: the last minutes, from whoever shows them."""

from __future__ import annotations

import http.client
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from jobs.monitoring.exposition import Readings
from jobs.monitoring.history import RECENT_S, decode_moments
from jobs.monitoring.moments import Moment, moment_of
from jobs.monitoring.stack_monitor import get
from topic_model.errors import ConfigError
from topic_model.metrics import merged


@dataclass(frozen=True)
class Seen:
    """What can be shown: the last minutes, the slowest endpoints, and what stands in the way of seeing more."""

    moments: Sequence[Moment] = ()
    endpoints: Sequence[dict[str, Any]] = ()
    problem: str = ""


@dataclass
class Watch:
    """Asks an embedded engine's monitor, which remembers the last minutes; or any number of gateways and jobs, whose
    figures are added up and remembered here."""

    urls: Sequence[str]
    fetch: Callable[[str], bytes] = get
    clock: Callable[[], float] = time.time
    _moments: deque[Moment] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.urls = [base_url(url) for url in self.urls]

    def look(self) -> Seen:
        """Never raises; what cannot be reached is said in `problem`."""
        texts, endpoints, problems = {}, [], []
        for url in self.urls:
            try:
                if len(self.urls) == 1 and (recent := self._optional(f"{url}/recent.json")) is not None:
                    status = self._optional(f"{url}/status.json")
                    slowest = json.loads(status)["slowest_endpoints"] if status else []
                    return Seen(decode_moments(recent), slowest)
                texts[urlsplit(url).netloc] = self.fetch(f"{url}/metrics").decode()
                if (status := self._optional(f"{url}/status.json")) is not None:
                    endpoints += json.loads(status)["slowest_endpoints"]
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                problems.append(f"{url}: {error}")
        if texts:
            self._moments.append(moment_of(self.clock(), Readings.of(merged(texts, "component"))))
            while self._moments[0].at < self._moments[-1].at - RECENT_S:
                self._moments.popleft()
        endpoints.sort(key=lambda one: -float(one["mean_s"]))
        return Seen(tuple(self._moments), endpoints, "; ".join(problems))

    def _optional(self, url: str) -> bytes | None:
        try:
            return self.fetch(url)
        except FileNotFoundError:
            return None


def base_url(url: str) -> str:
    """A metrics address as people give it, without the page. Raises ConfigError for what is none."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url} is not the address of an engine; it looks like http://host:port")
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/metrics').rstrip('/')}"
