"""Settings of federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.security.signatures import NAME
from arborcast.core.settings import setting


@dataclass(frozen=True)
class FederationSettings:
    """Several engines that exchange what their subscribers want. See docs/federation.md."""

    name: str = setting("", "What this engine is called among the others; empty for an engine by itself.")
    group: str = setting("", "The group that it is a member of.")
    administrator: str = setting(
        "", "URL of the administrator (python -m arborcast.engine.administrator): http://host:8095."
    )
    url: str = setting("", "URL under which the other engines reach this one's gateway; empty: gateway.public_url.")
    key_file: str = setting(
        "",
        "File with the secret that all engines of the federation and the administrator share: whsec_ and base64, made "
        "by: arborcast federation key. Of several lines the first signs, and each is known.",
    )
    summary: int = setting(
        250,
        "So many topics and subtrees does the engine name as what it wants; what is more is widened to whole subtrees.",
        minimum=1,
        maximum=256,  # alternatives of a topic expression
    )

    inside: Literal["confirmed", "fast"] = setting(
        "confirmed",
        "How messages leave for the engines of the group where their topic does not say fast or reliable: confirmed, "
        "or fast, as datagrams.",
    )
    datagram_port: int = setting(
        0,
        "UDP port of gateway.host at which the first worker of a gateway takes datagrams of engines of the group, who "
        "hear of it from the administrator; 0: none, they push everything.",
        minimum=0,
        maximum=65_535,
    )

    def __post_init__(self) -> None:
        if not self.name:
            return
        for key, value in (("name", self.name), ("group", self.group)):
            if not NAME.fullmatch(value):
                raise ConfigError(
                    f"federation.{key} = {value!r} must be up to 64 letters, digits, - and _, no - or _ in front"
                )
        if not self.administrator.startswith(("http://", "https://")):
            raise ConfigError(
                f"federation.administrator = {self.administrator!r} must be the URL of the administrator, as "
                "federation.name is set"
            )
        if not self.key_file:
            raise ConfigError(
                "federation.key_file must be set when federation.name is: all engines of a federation share a secret"
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"federation.url must begin with http:// or https://, not {self.url!r}")

    @property
    def engine(self) -> str:
        """GROUP/NAME."""
        return f"{self.group}/{self.name}"
