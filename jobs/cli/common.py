"""Options and output that several commands share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topic_model.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.settings import Scalar, Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Settings file (default: arborcast.toml here, if there is one).", metavar="FILE"
    ),
]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Data directory of the engine (default: .arborcast here).", metavar="DIR"),
]
NamespaceOption = Annotated[
    list[str] | None,
    typer.Option("--namespace", "-n", help="Declare a prefix used in a topic; may be repeated.", metavar="PREFIX=URI"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ListedOption = Annotated[int, typer.Option("--limit", help="At most so many.", min=1)]


def settings_of(config: Path | None, home: Path | None, overrides: dict[str, Scalar] | None = None) -> Settings:
    """The effective settings for a command."""
    from jobs.settings import load_settings

    return load_settings(config, home, overrides)


def namespaces_of(declarations: list[str] | None) -> dict[str, str]:
    """The prefixes given with --namespace. Raises ConfigError."""
    found = {}
    for declaration in declarations or ():
        prefix, equals, uri = declaration.partition("=")
        if not equals or not prefix:
            raise ConfigError(f"--namespace {declaration}: a prefix and a URI are needed, for instance p=urn:x")
        found[prefix] = uri
    return found


def console() -> Console:
    """Where people read."""
    from rich.console import Console

    # Topics and addresses have colons, which would be taken for the names of emoji.
    return Console(emoji=False)


def error_console() -> Console:
    """Where complaints go."""
    from rich.console import Console

    return Console(stderr=True, emoji=False)


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    return typer.confirm(question, err=True)


def tell_of_more(number: int) -> None:
    """Say, where a list was cut off, how many are left; nothing when none is."""
    if number > 0:
        error_console().print(f"and {number:,} more: --limit shows them", highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")
