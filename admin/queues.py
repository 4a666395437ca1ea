"""Work queues: their servers, and the requests that wait or are executed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from arborcast.core.errors import ArborcastError, NotFound
from arborcast.core.reasons import reason_of
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.views import DeliveryViews, ViewFilter
from arborcast.dispatch.operations.waiting import Waiting
from arborcast.engine.monitoring import stack_monitor
from arborcast.engine.monitoring.samples import Scrape
from arborcast.engine.monitoring.watching import base_url, metrics_address
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.subscriptions import queue_of
from arborcast.topic_model.topics import TopicPath


class ServerStatus(msgspec.Struct, frozen=True):
    """A subscription that serves a queue. `busy_s` is the time since it got its current request; None if it executes
    none, or the job does not answer."""

    subscription: str
    endpoint: str
    capacity: int
    state: State
    busy_s: float | None


class QueueStatus(msgspec.Struct, frozen=True):
    """A queue. Its numbers are the job's; None if the job does not answer."""

    queue: TopicPath
    merge: bool
    waiting: int | None
    executing: int | None
    oldest_s: float | None
    servers: tuple[ServerStatus, ...]

    @property
    def served(self) -> bool:
        """Whether it has a server that gets requests."""
        return any(each.state == "active" for each in self.servers)


class RequestStatus(msgspec.Struct, frozen=True):
    """A waiting or executing request. `next_ms` is the time of its next attempt; 0 if it waits for its turn."""

    notification: str
    priority: int
    accepted_ms: int
    attempts: int
    next_ms: int


class QueueRequests(NamedTuple):
    """The requests that wait longest, and the number of the others."""

    requests: tuple[RequestStatus, ...] = ()
    more: int = 0


class JobFigures(NamedTuple):
    """The metrics of the dispatch job; None with the reason if it does not answer."""

    scrape: Scrape | None = None
    problem: str = ""


def job_figures(home: Path, url: str = "") -> JobFigures:
    """The metrics of the job at this address, or of the engine that runs in this data directory. Never raises."""
    try:
        address = base_url(url) if url else metrics_address(home)
        return JobFigures(Scrape.of(stack_monitor.get(f"{address}/metrics").decode()))
    except ArborcastError as error:
        return JobFigures(problem=str(error))
    except (OSError, ValueError) as error:
        return JobFigures(problem=reason_of(error))


def queues(control: ControlView, scrape: Scrape | None) -> list[QueueStatus]:
    """All queues, by topic."""
    return [queue(control, scrape, each) for each in sorted(control.table.topics.queues())]


def queue(control: ControlView, scrape: Scrape | None, path: TopicPath) -> QueueStatus:
    """One queue. Raises NotFound for a topic that is not a queue."""
    if not control.table.topics.policy(path).queue:
        raise NotFound(f"{path} is no work queue: `arborcast queues list` lists them")
    servers = [each for each in control.table.match(path) if each.queue]
    busy = {} if scrape is None else scrape.by("arborcast_queue_server_busy_seconds", "server", queue=path)
    requests = None if scrape is None else scrape.by("arborcast_queue_requests", "state", queue=path)
    return QueueStatus(
        queue=path,
        merge=control.table.topics.policy(path).merge,
        waiting=None if requests is None else int(requests.get("waiting", 0)),
        executing=None if requests is None else int(requests.get("executing", 0)),
        oldest_s=None if scrape is None else round(scrape.most("arborcast_queue_oldest_seconds", queue=path), 1),
        servers=tuple(
            ServerStatus(
                subscription=each.id,
                endpoint=each.consumer.address,
                capacity=each.queue,
                state=control.suspensions.state_of(each),
                busy_s=round(busy[each.id], 1) if each.id in busy else None,
            )
            for each in sorted(servers, key=lambda each: each.created_ms)
        ),
    )


def requests(kafka: KafkaSettings, path: TopicPath, limit: int, views: DeliveryViews | None = None) -> QueueRequests:
    """The requests of a queue. Raises InfrastructureError."""
    waits, more, _ = Waiting(kafka, views).oldest(ViewFilter(subscription=queue_of(path).id), limit)
    found = (
        RequestStatus(each.notification, each.priority, each.accepted_ms, each.tries.number, each.tries.due_ms)
        for each in waits
    )
    return QueueRequests(tuple(found), more)
