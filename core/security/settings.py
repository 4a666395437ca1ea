"""Settings of secrets: where the keys and certificates are that seal, sign and identify."""

from __future__ import annotations

from dataclasses import dataclass

from core.settings import setting


@dataclass(frozen=True)
class SecretSettings:
    """What subscriptions keep of secrets, and how it is kept."""

    key_file: str = setting(
        "",
        "File with the keys that secrets are sealed with, the same at gateways and on every host that pushes; empty "
        "means secrets.keys in the data directory. Made by: arborcast keys new.",
    )
    overlap_s: int = setting(
        86_400,
        "When a secret is replaced, pushes are signed with the old one too for so long, unless the request says else.",
        minimum=0,
        maximum=31_536_000,
        unit="s",
    )
    client_certificates: str = setting(
        "",
        "Folder with client certificates that subscribers may ask for by name: NAME.pem (certificate, chain, key) and "
        "NAME.hosts (the host names that it may be shown to), on every host that pushes; empty means none.",
    )
    credentials_over_http: bool = setting(
        False,
        "Take subscriptions that want credentials sent to plain http addresses, where anybody on the way reads them.",
    )
