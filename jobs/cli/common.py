"""Options and questions that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal import error_console
from topic_model.errors import ConfigError

if TYPE_CHECKING:
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


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    return typer.confirm(question, err=True)


def tell_of_more(number: int) -> None:
    """Say, where a list was cut off, how many are left; nothing when none is."""
    if number > 0:
        error_console().print(f"and {number:,} more: --limit shows them", highlight=False)
