"""The one place that chooses which directory there is."""

from __future__ import annotations

from pathlib import Path

from topic_model.directory.directory import Directory
from topic_model.directory.dn import parse_dn
from topic_model.directory.errors import DnError
from topic_model.errors import ConfigError
from topic_model.settings import DirectorySettings


def open_directory(settings: DirectorySettings, default_file: Path) -> Directory | None:
    """The directory that the settings ask for, None for kind = none. Touches neither file nor server yet.

    Raises ConfigError for settings with which no directory can be reached.
    """
    if settings.kind == "none":
        return None
    try:
        if not parse_dn(settings.base_dn):
            raise ConfigError("directory.base_dn is empty; it must be the DN of the entry above the root topics")
    except DnError as error:
        raise ConfigError(f"directory.base_dn: {error}") from error
    if settings.kind == "file":
        from topic_model.directory.file_directory import FileDirectory

        return FileDirectory(Path(settings.file) if settings.file else default_file, settings)
    if not settings.url.startswith(("ldap://", "ldaps://", "ldapi://")):
        raise ConfigError(f"directory.url is {settings.url!r}; it must begin with ldap://, ldaps:// or ldapi://")
    # Only here, so that an engine with a file never pays for (or is warned by) ldap3.
    from topic_model.directory.ldap_directory import LdapDirectory

    return LdapDirectory(settings)
