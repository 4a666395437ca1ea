"""`arborcast keys`: the key file that subscribers' secrets are sealed with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.common import ConfigOption, HomeOption, settings_of


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(help="The keys that subscribers' secrets are sealed with.", no_args_is_help=True)
    group.command("new")(new)
    group.command("list")(list_keys)
    app.add_typer(group, name="keys")


def new(
    key_id: Annotated[
        str, typer.Option("--id", help="What to call the key (default: k and the time).", metavar="ID")
    ] = "",
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Put a new key first in the key file, which is made if there is none; older keys stay and still open secrets.

    The same file has to be at every gateway and on every host that pushes: bring it to those that push first.
    """
    from topic_model.keyring import add_key

    path = Path(settings_of(config, home).secrets.key_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    key_id = key_id or time.strftime("k%Y%m%dT%H%M%S", time.gmtime())
    add_key(path, key_id)
    print(f"{path}: secrets are sealed with {key_id} from now on")


def list_keys(config: ConfigOption = None, home: HomeOption = None) -> None:
    """Print the ids of the keys; the first one seals."""
    from topic_model.errors import SecretError
    from topic_model.keyring import parse_keys

    path = Path(settings_of(config, home).secrets.key_file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"the key file {path} cannot be read: {error}") from error
    for key_id in parse_keys(text):
        print(key_id)
