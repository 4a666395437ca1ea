"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from topic_model.settings import setting


@dataclass(frozen=True)
class GatewaySettings:
    """How the gateway listens and what it grants."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8080, "Port to listen on.", minimum=0, maximum=65_535)
    public_url: str = setting(
        "",
        "Base URL under which clients reach us, used in subscription addresses; empty means http://host:port.",
    )
    max_body_bytes: int = setting(
        4 * 1024 * 1024, "Larger request bodies are refused with 413.", minimum=1024, unit="bytes"
    )
    max_connections: int = setting(2_000, "Beyond this many connections new ones get 503.", minimum=1)
    default_termination_s: int = setting(
        0, "Granted when a Subscribe names no termination time; 0 means no end.", minimum=0, unit="s"
    )
    keep_alive_s: int = setting(30, "Idle connections are closed after this.", minimum=1, unit="s")
