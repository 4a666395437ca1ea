"""Settings of access: how much one client may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from topic_model.settings import setting


@dataclass(frozen=True)
class LimitSettings:
    """What one client may have of the gateway, so that it cannot starve the others.

    A client is a user where there is authentication, else an address (of IPv6, the network of 64 bits: one machine has
    all of it). Rates hold for each worker. 0 means no limit.
    """

    requests_per_s: float = setting(0.0, "Requests per second of one client; more get 429.", minimum=0, unit="1/s")
    request_burst: int = setting(
        100, "So many requests at once, before requests_per_s counts.", minimum=1, maximum=1_000_000
    )
    bytes_per_s: int = setting(
        0, "Bytes of request bodies per second of one client; more get 429.", minimum=0, unit="bytes/s"
    )
    byte_burst: int = setting(
        16 * 1024 * 1024, "So many bytes at once, before bytes_per_s counts.", minimum=1024, unit="bytes"
    )
    clients: int = setting(
        10_000,
        "So many clients are remembered; beyond this those not seen for longest are forgotten.",
        minimum=16,
        maximum=1_000_000,
    )
    connections_per_client: int = setting(
        0, "Connections of one address at a time; more get 503 (per worker).", minimum=0
    )
    send_timeout_s: float = setting(
        30.0,
        "A client that does not read its answer for so long is cut off, so that it holds no memory.",
        minimum=0.1,
        unit="s",
    )
