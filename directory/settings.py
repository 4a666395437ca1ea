"""Settings of the directory: which one keeps the topic tree for people, and how it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import setting


@dataclass(frozen=True)
class DirectorySettings:
    """Where the topic tree is kept for people to edit."""

    kind: Literal["file", "ldap", "none"] = setting("file", "An LDIF file, an LDAP server, or none at all.")
    file: str = setting("", "The LDIF file; empty means topics.ldif in the data directory.")
    url: str = setting("ldap://127.0.0.1:389", "The LDAP server: ldap://, ldaps:// or ldapi://.")
    base_dn: str = setting("ou=topics,dc=arborcast", "The entry that is the tree's virtual root.")
    start_tls: bool = setting(False, "Upgrade an ldap:// connection with StartTLS before binding.")
    ca_file: str = setting("", "PEM file with the authorities that sign the server's certificate.")
    bind: Literal["anonymous", "simple", "external"] = setting("anonymous", "How to authenticate.")
    bind_dn: str = setting("", "With bind = simple: the entry to bind as.")
    password: str = setting("", "With bind = simple: its password.", secret=True)
    certificate_file: str = setting("", "With bind = external over TLS: our client certificate (PEM).")
    key_file: str = setting("", "With bind = external over TLS: its key (PEM).")
    poll_interval_s: float = setting(
        # An edit of the file takes this long to be seen, and another tenth of a second to have settled.
        0.5,
        "How often to look for changes where the server (or the file) cannot tell us.",
        minimum=0.05,
        unit="s",
    )

    def __post_init__(self) -> None:
        if self.bind == "simple" and not self.bind_dn:
            raise ConfigError("directory.bind_dn must be set when directory.bind is simple")
        if self.start_tls and self.url.startswith("ldaps://"):
            raise ConfigError("directory.start_tls is for ldap:// addresses; directory.url begins with ldaps://")
