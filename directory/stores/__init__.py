"""Stores of the directory: an LDIF file or an LDAP server, with one contract."""

from __future__ import annotations

from pathlib import Path

from arborcast.core.errors import ConfigError
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.errors import DnError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.contract import Directory


def open_directory(settings: DirectorySettings) -> Directory | None:
    """The configured directory; None for kind = none. No I/O. Raises ConfigError."""
    if settings.kind == "none":
        return None
    try:
        if not parse_dn(settings.base_dn):
            raise ConfigError("directory.base_dn is empty; it must be the DN of the entry above the root topics")
    except DnError as error:
        raise ConfigError(f"directory.base_dn: {error}") from error
    if settings.kind == "file":
        from arborcast.directory.stores.file import FileDirectory

        return FileDirectory(Path(settings.file), settings)
    # Imported here, so that an engine with a file does not load ldap3.
    from arborcast.directory.stores.ldap import LdapDirectory

    return LdapDirectory(settings)
