"""Settings of the directory of the topic tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import check_url, setting


@dataclass(frozen=True)
class DirectorySettings:
    """The editable directory of the topic tree."""

    kind: Literal["file", "ldap", "none"] = setting("file", "An LDIF file, an LDAP server, or none.")
    file: str = setting("", "The LDIF file; empty: topics.ldif in the data directory.")
    url: str = setting("ldap://127.0.0.1:389", "ldap://, ldaps:// or ldapi://.")
    base_dn: str = setting("ou=topics,dc=arborcast", "The entry of the tree's virtual root.")
    start_tls: bool = setting(False, "Upgrade ldap:// connections with StartTLS.")
    ca_file: str = setting("", "Authorities of the server's certificate (PEM).")
    bind: Literal["anonymous", "simple", "external"] = setting("anonymous", "Authentication method.")
    bind_dn: str = setting("", "Entry of a simple bind.")
    password: str = setting("", "Its password.", secret=True)
    certificate_file: str = setting("", "Client certificate (PEM) of an external bind.")
    key_file: str = setting("", "Its key (PEM).")
    poll_interval_s: float = setting(
        # An edit of the file is detected within this time, and read a tenth of a second later.
        0.5,
        "For the file, or a server without syncrepl.",
        minimum=0.05,
        unit="s",
    )

    def __post_init__(self) -> None:
        if self.bind == "simple" and not self.bind_dn:
            raise ConfigError("directory.bind_dn must be set when directory.bind is simple")
        if self.kind == "ldap":
            check_url("directory.url", self.url, ("ldap", "ldaps", "ldapi"))
        if self.start_tls and self.url.startswith("ldaps://"):
            raise ConfigError("directory.start_tls is for ldap:// addresses; directory.url begins with ldaps://")
