"""`arborcast queues`: work queues, waiting requests, workers, and working times."""

from __future__ import annotations

from typing import Annotated

import typer

from arborcast.admin.documents import document
from arborcast.admin.times import moment
from arborcast.cli.common import (
    FATES,
    CommandGroup,
    JsonOption,
    ListedOption,
    NamespaceOption,
    kafka_of,
    note_omitted,
    one_topic,
    settings_of,
)
from arborcast.core.printable import one_line
from arborcast.engine.monitoring.figures import many
from arborcast.engine.terminal import print_error, print_json, print_line

queues_app = CommandGroup(help="Work queues: requests and workers.", no_args_is_help=True)

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="Where the metrics of a dispatch job are (default: the engine of --home)."),
]


def register(app: typer.Typer) -> None:
    app.add_typer(queues_app, name="queues", rich_help_panel=FATES)


@queues_app.command("list")
def list_queues(url: UrlOption = None, json: JsonOption = False) -> None:
    """List the queues: requests that wait and are executed, and workers."""
    from arborcast.admin import control_log
    from arborcast.admin import queues as admin

    control = control_log.read_control(kafka_of())
    figures = admin.job_figures(settings_of().home, url or "")
    queues = admin.queues(control, figures.scrape)
    if json:
        print_json(document(queues))
        return
    for each in queues:
        waits = f", the oldest {each.oldest_s:.0f} s" if each.waiting else ""
        counts = "unknown" if each.waiting is None else f"{each.waiting} pending{waits}, {each.executing} in progress"
        print_line(one_line(f"{each.queue}  {counts}  {many(len(each.servers), 'worker')}"))
    if not queues:
        print_error("no topic is a queue: arborcast topics add TOPIC --queue")
    _note_problem(figures.problem)


@queues_app.command("show")
def show_queue(
    queue: Annotated[str, typer.Argument(help="The topic that is the queue.")],
    limit: ListedOption = 100,
    url: UrlOption = None,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show a queue: its workers and requests."""
    from arborcast.admin import control_log
    from arborcast.admin import queues as admin

    kafka = kafka_of()
    path = one_topic(queue, namespace)
    control = control_log.read_control(kafka)
    figures = admin.job_figures(settings_of().home, url or "")
    found = admin.queue(control, figures.scrape, path)
    waits = admin.requests(kafka, path, limit)
    if json:
        print_json(document(found) | document(waits))
        return
    for server in found.servers:
        busy = "" if server.busy_s is None else f", busy for {server.busy_s:.1f} s"
        line = f"worker {server.subscription} at {server.endpoint}, concurrency {server.capacity}"
        print_line(one_line(f"{line}, {server.state}{busy}"))
    if not found.servers:
        print_error("no workers")
    for request in waits.requests:
        line = f"{moment(request.accepted_ms)}  {request.notification}  priority {request.priority}"
        again = f", sent {request.attempts} times" * bool(request.attempts)
        print_line(one_line(line + again))
    if not waits.requests:
        print_error("no requests")
    note_omitted(waits.more)
    _note_problem(figures.problem)


def _note_problem(problem: str) -> None:
    if problem:
        print_error(f"live counts unavailable: {problem}")
