"""An engine from outside: its last minutes, read from its monitor."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.core.reasons import reason_of
from arborcast.core.telemetry.metrics import merged
from arborcast.engine.embedded.state import addresses
from arborcast.engine.monitoring.history import add_recent
from arborcast.engine.monitoring.samples import MetricsSample, Scrape, sample_of
from arborcast.engine.monitoring.stack_monitor import get
from arborcast.engine.processes.errors import StackError


def metrics_address(path: Path) -> str:
    """The monitor's address, from the state in the data directory. Raises StackError if no engine runs there."""
    known = addresses(path).get("metrics")
    if known is None:
        raise StackError(
            f"no engine runs in {path}; start one with: arborcast up, or name a remote one with: --url http://host:port"
        )
    return known


_ADVICE = ". Is it up, and is that where its metrics are? `arborcast status` shows both on its machine"


class _OtherServer(ValueError):
    """The answer of another program."""


@dataclass(frozen=True)
class EngineView:
    """The figures for display: the last minutes, the slowest endpoints, and the reason for missing figures. `failing`
    are endpoints with failures, worst first, and `failing_count` is their total number; `failing` is None if the
    dispatch job does not answer. `pushed` are all endpoints with pushes, as many as the job publishes."""

    samples: Sequence[MetricsSample] = ()
    endpoints: Sequence[dict[str, Any]] = ()
    problem: str = ""
    failing: Sequence[dict[str, Any]] | None = None
    failing_count: int = 0
    pushed: Sequence[dict[str, Any]] = ()


@dataclass
class EngineWatch:
    """Reads an embedded engine's monitor, which has the history of the last minutes, or any number of gateways and
    jobs, whose figures are summed and kept here. `find` returns an address that may change: an engine of this machine
    has other ports after each start."""

    urls: Sequence[str] = ()
    fetch: Callable[[str], bytes] = get
    clock: Callable[[], float] = time.time
    find: Callable[[], str] | None = None
    _samples: deque[MetricsSample] = field(default_factory=deque)
    _last: EngineView = EngineView()

    def __post_init__(self) -> None:
        self.urls = [base_url(url) for url in self.urls]

    def look(self) -> EngineView:
        """Never raises. `problem` names an unreachable address, beside the last figures."""
        try:
            urls = self.urls if self.find is None else [base_url(self.find())]
        except ArborcastError as error:
            self._last = replace(self._last, problem=str(error))
        else:
            self._last = self._read(urls)
        return self._last

    def _read(self, urls: Sequence[str]) -> EngineView:
        texts, problems = {}, []
        known = EngineView()
        for url in urls:
            try:
                if len(urls) == 1 and (recent := self._optional(f"{url}/recent.json")) is not None:
                    return replace(self._with_endpoints(known, url), samples=decoded(recent))
                texts[urlsplit(url).netloc] = _checked(self.fetch(f"{url}/metrics"))
                known = self._with_endpoints(known, url)
            except (OSError, ValueError) as error:
                problems.append(f"{url}: {reason_of(error)}")
        if not texts:
            advice = "" if self._last.samples else _ADVICE
            return replace(self._last, problem="; ".join(problems) + advice)
        add_recent(self._samples, sample_of(self.clock(), Scrape.of(merged(texts, "component"))))
        slowest = sorted(known.endpoints, key=lambda one: -float(one["mean_s"]))
        return replace(known, samples=tuple(self._samples), endpoints=slowest, problem="; ".join(problems))

    def _with_endpoints(self, known: EngineView, url: str) -> EngineView:
        """With the endpoints of the page of a job. A gateway has no such page."""
        page = self._optional(f"{url}/status.json")
        if not page:
            return known
        try:
            status = json.loads(page)
            failing = status.get("failing_endpoints")
            return replace(
                known,
                endpoints=[*known.endpoints, *status["slowest_endpoints"]],
                failing=known.failing if failing is None else [*(known.failing or ()), *failing],
                failing_count=known.failing_count + int(status.get("failing", 0)),
                pushed=[*known.pushed, *status.get("endpoints", ())],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _OtherServer("the server there is not Arborcast") from error

    def _optional(self, url: str) -> bytes | None:
        try:
            return self.fetch(url)
        except FileNotFoundError:
            return None


def decoded(recent: bytes) -> list[MetricsSample]:
    """An engine's samples. Raises ValueError for the answer of another program."""
    try:
        return msgspec.json.decode(recent, type=list[MetricsSample])
    except ValueError as error:
        raise _OtherServer("the server there is not Arborcast, or not of this version") from error


def _checked(page: bytes) -> str:
    text = page.decode(errors="replace")
    if not any(name.startswith("arborcast_") for name in Scrape.of(text).names):
        raise _OtherServer("the server there has no metrics of Arborcast")
    return text


def base_url(url: str) -> str:
    """A metrics address without the page. Raises ConfigError for an invalid one."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        parts.port  # noqa: B018  # raises ValueError for an invalid port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url} is not the address of an engine; it looks like http://host:port")
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/metrics').rstrip('/')}"
