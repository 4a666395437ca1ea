"""The key file, with the keys that seal subscribers' secrets."""

from __future__ import annotations

import time
from pathlib import Path

from arborcast.core.errors import SecretError
from arborcast.core.reasons import reason_of
from arborcast.core.security.keyring import add_key, parse_keys
from arborcast.engine.settings.loading import Settings


def key_file(settings: Settings) -> Path:
    return Path(settings.secrets.key_file)


def new(path: Path, key_id: str = "") -> str:
    """Put a new key first in the file, or make the file; returns the id, by default k and the time. Raises
    SecretError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_id = key_id or time.strftime("k%Y%m%dT%H%M%S", time.gmtime())
    add_key(path, key_id)
    return key_id


def read(path: Path) -> dict[str, bytes]:
    """The keys by id, first the one that seals. Raises SecretError."""
    try:
        return parse_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        advice = "; `arborcast keys new` makes one" if isinstance(error, FileNotFoundError) else ""
        raise SecretError(f"the key file {path} cannot be read: {reason_of(error)}{advice}") from error
