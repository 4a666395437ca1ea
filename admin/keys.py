"""Key files: of the keys that seal subscribers' secrets, and of the shared secrets of a federation."""

from __future__ import annotations

from pathlib import Path

from arborcast.core.errors import ConfigError, SecretError
from arborcast.core.files import exclusive, write_atomically
from arborcast.core.reasons import reason_of
from arborcast.core.security import keyring
from arborcast.core.security.signatures import new_secret
from arborcast.ingest.federation.keys import parse_secrets


def new(path: Path, key_id: str = "") -> str:
    """Add a new key at the beginning of the file, or create the file; returns the id, by default k and the time. Raises
    SecretError."""
    key_id = key_id or keyring.new_id()
    with exclusive(path):
        keyring.add_key(path, key_id)
    return key_id


def read(path: Path) -> dict[str, bytes]:
    """The keys by id; the first one seals. Raises SecretError."""
    try:
        return keyring.parse_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        advice = "; `arborcast keys new` creates one" if isinstance(error, FileNotFoundError) else ""
        raise SecretError(f"the key file {path} cannot be read: {reason_of(error)}{advice}") from error


def new_federation_secret(file: Path) -> None:
    """Add a new secret at the beginning of the file, or create the file. Raises ConfigError, OSError."""
    try:
        with exclusive(file):
            before, secret = file.read_text(encoding="utf-8") if file.exists() else "", new_secret()
            parse_secrets(f"{before}\n{secret}", str(file))
            write_atomically(file, f"{secret}\n{before}", mode=0o600)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no key file: it is not text; name another") from error
