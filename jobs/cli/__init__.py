"""The `arborcast` command: one module per group of commands, assembled here.

Everything heavy (Spark, Kafka, the HTTP client) is imported inside the command that needs it, so that `--help` and
`status` answer at once.
"""

from __future__ import annotations

import sys

import click
import typer

from jobs.cli import configuration, engine, messages
from jobs.cli.common import error_console
from topic_model.errors import ArborcastError, ConfigError

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

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point: what we raise on purpose becomes one line and an exit status, never a stack trace."""
    try:
        result = app(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        error_console().print(f"[bold red]error:[/] {_plain(error)}", highlight=False)
        sys.exit(EXIT_USAGE)
    except ArborcastError as error:
        error_console().print(f"[bold red]error:[/] {_plain(error)}", highlight=False)
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, click.exceptions.Abort):
        sys.exit(EXIT_INTERRUPTED)


def _plain(error: Exception) -> str:
    from rich.markup import escape

    return escape(str(error))
