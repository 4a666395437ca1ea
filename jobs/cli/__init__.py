"""The `arborcast` command: one module per group of commands, assembled here.

    engine, configuration, keys     the embedded engine, settings, the key file
    messages, topics, subscriptions a client for the shell; what the engine knows
    users, access                   who may come in, and who might not any more
    trace, audit, dead_letters, replay  what became of notifications, and what to do about it
    watching, backup                how it is; what to keep
    common, log_access, topics_work, topics_output      what several of them share

Everything heavy (Spark, Kafka, the HTTP client) is imported inside the command that needs it, so that `--help` and
`status` answer at once.
"""

from __future__ import annotations

import sys

import typer

from core.errors import ArborcastError, ConfigError
from jobs.cli import (
    access,
    audit,
    backup,
    configuration,
    dead_letters,
    engine,
    keys,
    messages,
    replay,
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
keys.register(app)
topics.register(app)
subscriptions.register(app)
users.register(app)
access.register(app)
trace.register(app)
watching.register(app)
audit.register(app)
dead_letters.register(app)
replay.register(app)
backup.register(app)

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
