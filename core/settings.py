"""Declaration of settings, and the settings that all parts share.

Settings are frozen data classes, declared beside the code that uses them and passed down; only
`engine.settings.loading` reads files and the environment. `setting()` puts the sentence for the reference page and the
allowed range next to the default.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from arborcast.core.errors import ConfigError

# Kafka allows 249 characters in the name of a topic.
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,200}")

LONGEST_S = 1_000_000_000
"""Maximum of settings in seconds without another: a time that is so far from now is a date, and a possible wait."""


@dataclass(frozen=True)
class SettingInfo:
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
    """A data class field with its description and range."""
    maximum = LONGEST_S if maximum is None and unit == "s" else maximum
    info = SettingInfo(help, minimum, maximum, unit, secret)
    return dataclasses.field(default=default, metadata={"setting": info}, repr=not secret)


def check_url(key: str, url: str, schemes: tuple[str, ...] = ("http", "https"), *, secret: bool = False) -> None:
    """Raises ConfigError unless the setting `key` is a URL with one of these schemes, a host (LDAP has a default) and a
    possible port. A `secret` one may contain a password, and is not shown."""
    try:
        parts = urlsplit(url)
        if parts.scheme in schemes and (parts.hostname or "http" not in schemes) and parts.port != 0:
            return
    except ValueError:  # the port, or unpaired brackets
        pass
    begins = " or ".join(f"{each}://" for each in schemes)
    shown = "" if secret else f" = {url!r}"
    raise ConfigError(f"{key}{shown} must begin with {begins}, then a host, and a port up to 65535 if it is not usual")


@dataclass(frozen=True)
class KafkaSettings:
    """The Kafka cluster with the logs."""

    bootstrap_servers: str = setting("127.0.0.1:9092", "host:port of brokers, separated by commas.")
    prefix: str = setting("arborcast.", "Prefix of this engine's Kafka topics.")
    partitions: int = setting(
        4, "Partitions of notifications and attempts, at their creation.", minimum=1, maximum=10_000
    )
    replication: int = setting(1, "Replicas of each log at its creation.", minimum=1, maximum=16)
    retention_hours: int = setting(
        168,
        "Retention of notifications and attempts (external broker: at creation).",
        minimum=1,
        maximum=1_000_000,
        unit="h",
    )
    max_record_bytes: int = setting(
        8 * 1024 * 1024,
        "Maximum record size (external broker: at creation); above gateway.max_body_bytes.",
        minimum=64 * 1024,
        maximum=256 * 1024 * 1024,
        unit="bytes",
    )
    request_timeout_s: float = setting(10.0, "Of requests to Kafka.", minimum=1, maximum=300, unit="s")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "Security protocol of the brokers."
    )
    ssl_ca_file: str = setting("", "Authorities of the brokers' certificates (PEM).")
    ssl_check_hostname: bool = setting(True, "Check the host name in a broker's certificate.")
    ssl_certificate_file: str = setting("", "Client certificate (PEM), if brokers require one.")
    ssl_key_file: str = setting("", "Its key (PEM, PKCS#8); empty: the same file.")
    ssl_key_password: str = setting("", "Password of the key.", secret=True)
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = setting("", "SASL mechanism.")
    sasl_username: str = setting("", "SASL user.")
    sasl_password: str = setting("", "SASL password.", secret=True)

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):  # a gateway would wait for Kafka for ever
            raise ConfigError(
                f"kafka.prefix = {self.prefix[:100]!r} must be up to 200 ASCII letters, digits, and . _ -, as names of "
                "Kafka topics begin with it"
            )
        if self.security_protocol.startswith("SASL") and not self.sasl_mechanism:
            raise ConfigError(
                f"kafka.sasl_mechanism must be set when kafka.security_protocol is {self.security_protocol}"
            )

    @property
    def one_broker(self) -> bool:
        """Whether a single broker is configured: one address, one replica."""
        return self.replication == 1 and "," not in self.bootstrap_servers

    def topic(self, name: str) -> str:
        """The Kafka topic of a log, for instance `control`."""
        return self.prefix + name


@dataclass(frozen=True)
class SecretSettings:
    """Secrets of subscriptions."""

    key_file: str = setting(
        "",
        "Keys (`arborcast keys`), the same at gateways and pushing hosts; empty: secrets.keys in the data directory.",
    )
    overlap_s: int = setting(
        86_400,
        "A replaced secret signs this long, unless the request sets a time.",
        minimum=0,
        maximum=31_536_000,
        unit="s",
    )
    client_certificates: str = setting(
        "", "Folder on every pushing host: NAME.pem (certificate, chain, key), NAME.hosts (allowed hosts)."
    )
    credentials_over_http: bool = setting(False, "Accept credentials for plain http addresses.")
