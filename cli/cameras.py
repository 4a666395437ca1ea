"""`arborcast cameras`: ONVIF devices whose events the engine fetches."""

from __future__ import annotations

from typing import Annotated

import typer

from arborcast.admin.documents import document
from arborcast.cli.common import MESSAGES, CommandGroup, JsonOption, kafka_of, settings_of
from arborcast.cli.users import StdinOption, read_password
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_error, print_json, print_line

cameras_app = CommandGroup(help="Events of ONVIF cameras.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Its name: events are published below cameras/NAME.")]


def register(app: typer.Typer) -> None:
    app.add_typer(cameras_app, name="cameras", rich_help_panel=MESSAGES)


@cameras_app.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Argument(help="Its host, or the address of its device service.", metavar="URL")],
    user: Annotated[str, typer.Option("--user", help="A user of the camera.", metavar="USER")] = "",
    stdin: StdinOption = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not verify its TLS certificate.")] = False,
) -> None:
    """Fetch the events of a camera, or change the address, user and password of one. The password is prompted for."""
    from arborcast.admin import cameras

    password = read_password(stdin, confirm=False) if user else ""
    cameras.add(settings_of(), kafka_of(), cameras.CameraRequest(name, url, user, password, insecure))
    print_line(one_line(f"events of {name} are published below cameras/{name}"))


@cameras_app.command()
def remove(name: NameArgument) -> None:
    """Fetch no more events of a camera, and forget it. Its topics stay."""
    from arborcast.admin import cameras

    cameras.remove(kafka_of(), name)


@cameras_app.command()
def pause(name: NameArgument) -> None:
    """Fetch no events of a camera until `resume`. The camera drops them meanwhile."""
    from arborcast.admin import cameras

    cameras.set_paused(kafka_of(), name, True)


@cameras_app.command()
def resume(name: NameArgument) -> None:
    """Fetch the events of a paused camera again."""
    from arborcast.admin import cameras

    cameras.set_paused(kafka_of(), name, False)


@cameras_app.command("list")
def list_cameras(json: JsonOption = False) -> None:
    """List the cameras: state, last event, renewals, offset of the clock, last error."""
    from arborcast.admin import cameras, control_log
    from arborcast.admin.times import moment

    figures = cameras.figures(settings_of())
    found = cameras.listed(control_log.read_control(kafka_of()), figures)
    if json:
        print_json(document(found))
        return
    for each in found:
        since = f" since {moment(each.since_ms)}" if each.since_ms else ""
        last = f", last event {moment(each.last_event_ms)}" if each.last_event_ms else ""
        clock = "" if each.clock_offset_s is None else f", clock {each.clock_offset_s:+.0f} s"
        counts = "" if each.events is None else f", {each.events} events, {each.renewals or 0} renewals"
        print_line(one_line(f"{each.camera}  {each.state}{since}  {each.url}{last}{counts}{clock}"))
        if each.error:
            print_line(one_line(f"  {each.error}"))
    if not found:
        print_error("no cameras: arborcast cameras add NAME URL --user USER")
    if figures.problem:
        print_error(f"live states unavailable: {figures.problem}")
