"""`arborcast queues`: work queues, what waits in them, who works, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.admin.moments import moment
from arborcast.cli.common import (
    FATES,
    ConfigOption,
    HomeOption,
    JsonOption,
    ListedOption,
    NamespaceOption,
    kafka_of,
    one_topic,
    settings_of,
    tell_of_more,
)
from arborcast.core.printable import one_line
from arborcast.engine.terminal import complain, print_json, say

if TYPE_CHECKING:
    from arborcast.engine.monitoring.samples import Scrape
    from arborcast.topic_model.projections.suspensions import Suspensions
    from arborcast.topic_model.routing import RoutingTable
    from arborcast.topic_model.topics import TopicPath

queues_app = typer.Typer(help="Work queues: requests, and those who do them.", no_args_is_help=True)

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="Where the metrics of a dispatch job are (default: the engine of --home)."),
]


def register(app: typer.Typer) -> None:
    app.add_typer(queues_app, name="queues", rich_help_panel=FATES)


@queues_app.command("list")
def list_queues(
    url: UrlOption = None, config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False
) -> None:
    """List the queues: how many requests wait and are executed, and how many servers there are."""
    from arborcast.admin.control_log import read_control

    control = read_control(kafka_of(config, home))
    table, suspensions = control.table, control.suspensions
    seen, problem = _figures(url, config, home)
    queues = [_queue(table, suspensions, seen, path) for path in sorted(table.topics.paths()) if _is_queue(table, path)]
    if json:
        print_json(queues)
        return
    for each in queues:
        waits = f", the oldest for {each['oldest_s']:.0f} s" if each["waiting"] else ""
        counts = f"{each['waiting']} waiting{waits}, {each['executing']} executing" if seen is not None else "unknown"
        say(one_line(f"{each['queue']}  {counts}  {len(each['servers'])} servers"))
    if not queues:
        complain("no topic is a queue: arborcast topics add TOPIC --queue")
    _tell(problem)


@queues_app.command("show")
def show_queue(
    queue: Annotated[str, typer.Argument(help="The topic that is the queue.")],
    limit: ListedOption = 100,
    url: UrlOption = None,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show a queue: its servers, what each works on for how long, and what waits or is executed."""
    from arborcast.admin.control_log import read_control
    from arborcast.dispatch.operations.waiting import Asked, Waiting
    from arborcast.topic_model.subscriptions import queue_of

    kafka = kafka_of(config, home)
    path = one_topic(queue, namespace, config, home)
    control = read_control(kafka)
    table, suspensions = control.table, control.suspensions
    seen, problem = _figures(url, config, home)
    facts = _queue(table, suspensions, seen, path)
    lane = queue_of(path).id
    waits, more = Waiting(kafka).oldest(Asked(lambda each: each == lane, lambda _: True), limit)
    facts["requests"] = [
        {
            "notification": each.notification,
            "priority": each.priority,
            "accepted": moment(each.accepted_ms),
            "attempts": each.tries.number,
            "next": moment(each.tries.due_ms) if each.tries.due_ms else "",
        }
        for each in waits
    ]
    if json:
        print_json({**facts, "more": more})
        return
    for server in facts["servers"]:
        busy = "" if server["busy_s"] is None else f", at work for {server['busy_s']:.1f} s"
        line = f"server {server['subscription']} at {server['endpoint']}, {server['capacity']} at a time"
        say(one_line(f"{line}, {server['state']}{busy}"))
    if not facts["servers"]:
        complain("nobody serves this queue")
    for request in facts["requests"]:
        line = f"{request['accepted']}  {request['notification']}  priority {request['priority']}"
        again = f", sent {request['attempts']} times" * bool(request["attempts"])
        say(one_line(line + again))
    if not facts["requests"]:
        complain("nothing waits")
    tell_of_more(more)
    _tell(problem)


def _tell(problem: str) -> None:
    if problem:
        complain(f"who works is not known: {problem}")


def _is_queue(table: RoutingTable, path: TopicPath) -> bool:
    return table.topics.policy(path).queue


def _queue(table: RoutingTable, suspensions: Suspensions, seen: Scrape | None, path: TopicPath) -> dict[str, Any]:
    """What is known of a queue; what only the job knows is None when that cannot be asked."""
    servers = [each for each in table.match(path) if each.queue]
    busy = {} if seen is None else seen.by("arborcast_queue_server_busy_seconds", "server", queue=path)
    requests = None if seen is None else seen.by("arborcast_queue_requests", "state", queue=path)
    return {
        "queue": path,
        "merge": table.topics.policy(path).merge,
        "waiting": None if requests is None else int(requests.get("waiting", 0)),
        "executing": None if requests is None else int(requests.get("executing", 0)),
        "oldest_s": None if seen is None else round(seen.most("arborcast_queue_oldest_seconds", queue=path), 1),
        "servers": [
            {
                "subscription": each.id,
                "endpoint": each.consumer.address,
                "capacity": each.queue,
                "state": suspensions.state_of(each),
                "busy_s": round(busy[each.id], 1) if each.id in busy else None,
            }
            for each in sorted(servers, key=lambda each: each.created_ms)
        ],
    }


def _figures(url: str | None, config: Path | None, home: Path | None) -> tuple[Scrape | None, str]:
    """What the job says of its queues; or why it could not be asked."""
    from arborcast.core.errors import ArborcastError
    from arborcast.core.reasons import reason_of
    from arborcast.engine.monitoring.samples import Scrape
    from arborcast.engine.monitoring.stack_monitor import get
    from arborcast.engine.monitoring.watching import base_url, metrics_address

    try:
        address = base_url(url) if url is not None else metrics_address(settings_of(config, home).home)
        return Scrape.of(get(f"{address}/metrics").decode()), ""
    except ArborcastError as error:
        return None, str(error)
    except (OSError, ValueError) as error:
        return None, reason_of(error)
