"""Settings of the bridge to an MQTT 5 broker."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import in_url
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import setting

SCHEMES = ("mqtt", "mqtts")

_PORTS = {"mqtt": 1883, "mqtts": 8883}

# A client identifier of 23 letters and digits is accepted by every broker; `-` and `_` by all that are in use.
_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

LOOP_PROPERTY = "Arborcast-Engine"
"""The user property of outgoing messages with the client id of their engine."""

EXPIRES_HEADER = "Expires-Ms"
"""The header of a push with the end of the message's validity, in milliseconds since the epoch. It becomes the Message
Expiry Interval instead of a user property."""


@dataclass(frozen=True)
class MqttSettings:
    """The bridge to an MQTT 5 broker (docs/mqtt.md). Needs the extra mqtt at gateways and where pushes are made."""

    url: str = setting("", "The broker: mqtt://host:1883, or mqtts://host:8883 with TLS; empty: no bridge.")
    rules_file: str = setting("", "TOML file with the rules, at gateways.")
    client_id: str = setting(
        "arborcast",
        "Client identifier of the session for incoming messages, different for each engine; for outgoing ones"
        " with a random ending.",
    )
    user: str = setting("", "User at the broker.")
    password: str = setting("", "Its password.", secret=True)
    ca_file: str = setting(
        "", "Authorities of the broker's certificate (PEM), on every connecting host; empty: those of certifi."
    )
    certificate_file: str = setting("", "Client certificate and key (PEM).")
    act_as: str = setting("", "The bridge's user of the gateway; required with access.methods.")
    session_hours: int = setting(
        168, "Retention of session and messages without a gateway.", minimum=1, maximum=1_000_000, unit="h"
    )
    receive_maximum: int = setting(100, "Maximum of incoming messages in progress.", minimum=1, maximum=65_535)
    keep_alive_s: int = setting(30, "Interval of PINGREQ.", minimum=1, maximum=3_600, unit="s")

    def __post_init__(self) -> None:
        if not self.url:
            return
        try:
            parts = urlsplit(self.url)
            bare = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            bare = False
        if not bare or "@" in self.url or parts.path.strip("/") or parts.query or parts.fragment:
            # Not shown: it may hold a password.
            raise ConfigError(
                "mqtt.url must be mqtt://host:port or mqtts://host:port, with nothing else; user and password are in "
                "mqtt.user and mqtt.password"
            )
        if not _CLIENT_ID.fullmatch(self.client_id):
            raise ConfigError(f"mqtt.client_id = {self.client_id!r} must have 1 to 64 letters, digits, - and _")
        if self.password and not self.user:
            raise ConfigError("mqtt.password is set without mqtt.user: set both, or neither")
        for key in ("ca_file", "certificate_file"):
            file = getattr(self, key)
            if file and parts.scheme != "mqtts":
                raise ConfigError(f"mqtt.{key} is set, but mqtt.url is without TLS: use mqtts://host:8883")
            if file and not Path(file).is_file():
                raise ConfigError(f"mqtt.{key} = {file!r}: no such file")

    @property
    def place(self) -> tuple[str, str, int]:
        """Scheme, host and port of the broker."""
        parts = urlsplit(self.url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS[parts.scheme]

    @property
    def base(self) -> str:
        """The URL of the broker in the addresses of its topics, with its port and a slash at the end."""
        scheme, host, port = self.place
        return f"{scheme}://{in_url(host)}:{port}/"


NO_MQTT = MqttSettings()


def for_mqtt(policy: AddressPolicy) -> AddressPolicy:
    """The policy for addresses of MQTT topics."""
    return dataclasses.replace(policy, schemes=SCHEMES)


def check_installed() -> None:
    """Raises ConfigError if the extra is not installed."""
    try:
        import paho.mqtt.client  # noqa: F401  # only whether it is installed
    except ModuleNotFoundError as error:
        raise ConfigError("the MQTT bridge needs the extra mqtt: pip install 'arborcast[mqtt]'") from error
