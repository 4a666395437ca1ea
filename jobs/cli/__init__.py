"""The `arborcast` command: one module per group of commands, assembled here.

    engine, configuration           the embedded engine; settings, and what a Spark cluster gets
    messages, topics, subscriptions a client for the shell; what the engine knows
    users                           who may come in, and who might not any more
    trace, audit, dead_letters      what became of notifications, and what to do about it
    watching, maintenance           how it is; backups and keys
    common, topics_work             what several of them share

Everything heavy (Spark, Kafka, the HTTP client) is imported inside the command that needs it, so that `--help` and
`status` answer at once.
"""

from __future__ import annotations

import sys

import typer

from core.errors import ArborcastError, ConfigError
from jobs.cli import (
    audit,
    configuration,
    dead_letters,
    engine,
    maintenance,
    messages,
    subscriptions,
    topics,
    trace,
    users,
    watching,
)
from jobs.terminal import error_console, guard

app = typer.Typer(
    name="arborcast",
    help="A WS-Notification broker: takes notifications, keeps them, pushes them, and can prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
engine.register(app)
messages.register(app)
configuration.register(app)
topics.register(app)
subscriptions.register(app)
users.register(app)
trace.register(app)
watching.register(app)
audit.register(app)
dead_letters.register(app)
maintenance.register(app)

EXIT_FAILED = 1
EXIT_USAGE = 2


def main() -> None:
    """Entry point: what we raise on purpose becomes one line and an exit status, never a stack trace."""
    guard()
    try:
        app()
    except ConfigError as error:
        _complain(error)
        sys.exit(EXIT_USAGE)
    except ArborcastError as error:
        _complain(error)
        sys.exit(EXIT_FAILED)


def _complain(error: Exception) -> None:
    from rich.text import Text

    error_console().print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
