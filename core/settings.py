"""Settings of what every part shares, and the helper with which all packages declare theirs.

Settings are frozen data classes, declared beside the code that uses them and passed down; only
`engine.settings.loading` reads files and the environment. `setting()` puts the sentence for the reference page and the
allowed range next to the default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from arborcast.core.errors import ConfigError


@dataclass(frozen=True)
class SettingInfo:
    """What is known of one setting beside its type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    secret: bool = False


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str = "",
    secret: bool = False,
) -> Any:
    """A data class field that documents and bounds itself."""
    info = SettingInfo(help, minimum, maximum, unit, secret)
    return dataclasses.field(default=default, metadata={"setting": info}, repr=not secret)


@dataclass(frozen=True)
class KafkaSettings:
    """Where the logs are."""

    bootstrap_servers: str = setting("127.0.0.1:9092", "Brokers to start from, host:port, separated by commas.")
    prefix: str = setting("arborcast.", "Put before the name of every Kafka topic of this engine.")
    partitions: int = setting(
        4, "Partitions of the notifications and attempts logs, when we create them.", minimum=1, maximum=10_000
    )
    replication: int = setting(1, "Replicas of every log, when we create them.", minimum=1, maximum=16)
    retention_hours: int = setting(
        168, "How long notifications and attempts stay in Kafka, when we create the logs.", minimum=1, unit="h"
    )
    max_record_bytes: int = setting(
        8 * 1024 * 1024,
        "Largest record of any log. The logs are created with it; it must exceed gateway.max_body_bytes.",
        minimum=64 * 1024,
        maximum=256 * 1024 * 1024,
        unit="bytes",
    )
    request_timeout_s: float = setting(
        10.0, "After this the broker counts as away for one request.", minimum=1, maximum=300, unit="s"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "How to talk to the brokers."
    )
    ssl_ca_file: str = setting("", "PEM file with the authorities that sign the brokers' certificates.")
    ssl_check_hostname: bool = setting(True, "Whether a broker's certificate must name the host that we connected to.")
    ssl_certificate_file: str = setting("", "PEM file with our client certificate, for brokers that ask for one.")
    ssl_key_file: str = setting("", "PEM file with its key (PKCS#8); empty means that it is in the same file.")
    ssl_key_password: str = setting("", "Password of the key, if it has one.", secret=True)
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = setting("", "SASL mechanism, if any.")
    sasl_username: str = setting("", "SASL user.")
    sasl_password: str = setting("", "SASL password.", secret=True)

    def __post_init__(self) -> None:
        if self.security_protocol.startswith("SASL") and not self.sasl_mechanism:
            raise ConfigError(
                f"kafka.sasl_mechanism must be set when kafka.security_protocol is {self.security_protocol}"
            )

    @property
    def one_broker(self) -> bool:
        """Whether it looks as if there were only one: a cluster has several addresses, or replicas."""
        return self.replication == 1 and "," not in self.bootstrap_servers

    def topic(self, name: str) -> str:
        """Full name of one of our logs, for instance `control`."""
        return self.prefix + name


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
