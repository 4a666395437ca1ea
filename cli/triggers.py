"""`arborcast triggers`: have the engine publish something when a notification matches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from arborcast.admin.documents import document
from arborcast.cli.common import (
    SUBSCRIBING,
    CommandGroup,
    JsonOption,
    ListedOption,
    NamespaceOption,
    kafka_of,
    namespaces_of,
    note_omitted,
)
from arborcast.cli.messages import (
    IntervalOption,
    TogetherOption,
    TypesOption,
    UrlOption,
    client_of,
    duration,
    read_file,
    topic_of,
    xml_element,
)
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.core.printable import one_line
from arborcast.engine.terminal import error_console, print_json, print_line

triggers_app = CommandGroup(help="Publish when a notification matches.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Its name: letters, digits, and . _ - in between.")]


def register(app: typer.Typer) -> None:
    app.add_typer(triggers_app, name="triggers", rich_help_panel=SUBSCRIBING)


@triggers_app.command()
def add(
    name: NameArgument,
    on: Annotated[
        str, typer.Option("--on", help="The topics that set it off: a/b, 'a//.' (a and all below).", metavar="TOPIC")
    ],
    publish: Annotated[str, typer.Option("--publish", help="The topic that it publishes on.", metavar="TOPIC")],
    payload: Annotated[
        str | None,
        typer.Option("--payload", help="Publish this XML element, or that in this file; - is standard input."),
    ] = None,
    same: Annotated[bool, typer.Option("--same", help="Publish the payload that matched, as it is.")] = False,
    content: Annotated[
        list[str] | None,
        typer.Option("--filter", help="Only if the payload fulfils this; may be repeated.", metavar="XPATH"),
    ] = None,
    kinds: TypesOption = None,
    interval: IntervalOption = None,
    together: TogetherOption = False,
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Publish something whenever a notification matches. You must be allowed to subscribe to the one topic, and to
    publish on the other. Prints its id, for `why`."""
    if same == (payload is not None):
        raise ConfigError("name the payload: --payload XML (or FILE), or --same for that of the matching notification")
    fixed = None
    if payload is not None:
        given = payload.lstrip().startswith("<")
        fixed = xml_element(payload.encode() if given else read_file(payload), "--payload" if given else payload)
    on, publish = (topic_of(each, url, namespace) for each in (on, publish))
    after = {"on": on, "publishes": publish, "payload": payload}
    with client_of(url) as client, _recorded("triggers add", name, after, url):
        made = client.create_trigger(
            name,
            on,
            publish,
            fixed,
            content=content or (),
            types=kinds or (),
            minimum_interval=duration(interval),
            interval_per_topic=not together,
            namespaces=namespaces_of(namespace),
        )
    if json:
        print_json({"trigger": name, "id": made})
    else:
        print_line(made)


@triggers_app.command()
def remove(name: NameArgument, url: UrlOption = None) -> None:
    """Remove a trigger."""
    with client_of(url) as client, _recorded("triggers remove", name, None, url):
        client.destroy_trigger(name)


@triggers_app.command("list")
def list_triggers(limit: ListedOption = 100, json: JsonOption = False) -> None:
    """List the triggers."""
    from arborcast.admin import control_log, triggers

    found = triggers.listed(control_log.read_control(kafka_of()), limit)
    if json:
        print_json(document(found))
        return
    if not found.triggers:
        error_console().print("there is no trigger")
    for each in found.triggers:
        only_if = f", if {each.only_if}" if each.only_if else ""
        what = "the same" if each.payload is None else each.payload
        print_line(one_line(f"{each.trigger}  {each.state}  {each.expression or 'every topic'}{only_if}"))
        print_line(one_line(f"  publishes on {each.publishes}: {what}"))
    note_omitted(found.more)


def _recorded(what: str, name: str, after: object, url: str | None) -> AbstractContextManager[object]:
    """The record of an operator's change; none for a broker elsewhere, or without access to the logs, where
    the command is an ordinary client."""
    if url:
        return nullcontext()
    from arborcast.admin import control_log, triggers
    from arborcast.admin.operations import recorded
    from arborcast.topic_model.records.operations import change

    try:
        kafka = kafka_of()
    except InfrastructureError:
        return nullcontext()
    before = triggers.one(control_log.read_control(kafka), name)
    return recorded(kafka, what, [change(name, before, after)])
