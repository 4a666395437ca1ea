"""The embedded engine's own key file."""

from __future__ import annotations

from pathlib import Path

from topic_model.keyring import add_key

DEFAULT_NAME = "secrets.keys"


def ensure_keys(key_file: str, home: Path) -> None:
    """Make the key file in the data directory when it is the one that is used and there is none yet.

    One that the settings name is never made by itself: several machines would make several. Raises SecretError.
    """
    path = home / DEFAULT_NAME
    if Path(key_file) == path and not path.exists():
        add_key(path, "k1")
