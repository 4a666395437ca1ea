"""Settings of federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.security.signatures import NAME
from arborcast.core.settings import check_url, setting


@dataclass(frozen=True)
class FederationSettings:
    """Exchange of notifications with other engines (docs/federation.md)."""

    name: str = setting("", "Name of this engine; empty: no federation.")
    group: str = setting("", "Its group.")
    administrator: str = setting("", "Its URL, http://host:8095.")
    url: str = setting("", "This gateway's URL for other engines; empty: gateway.public_url.")
    key_file: str = setting("", "The shared secret. Of several lines the first signs, and all are accepted.")
    group_transport: Literal["confirmed", "fast"] = setting(
        "confirmed", "Transport within the group by default: pushes or datagrams."
    )
    datagram_port: int = setting(0, "UDP port of gateway.host; 0: none.", minimum=0, maximum=65_535)

    def __post_init__(self) -> None:
        for key, url in (("administrator", self.administrator), ("url", self.url)):
            if url:
                check_url(f"federation.{key}", url)
        if not self.name:
            return
        for key, value in (("name", self.name), ("group", self.group)):
            if not NAME.fullmatch(value):
                raise ConfigError(
                    f"federation.{key} = {value!r} must be up to 64 letters, digits, - and _, no - or _ in front"
                )
        if not self.administrator:
            raise ConfigError(
                f"federation.administrator = {self.administrator!r} must be the URL of the administrator, as "
                "federation.name is set"
            )
        if not self.key_file:
            raise ConfigError(
                "federation.key_file must be set when federation.name is: all engines of a federation share a secret"
            )

    @property
    def engine(self) -> str:
        """GROUP/NAME."""
        return f"{self.group}/{self.name}"
