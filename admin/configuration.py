"""Settings: the effective ones, and an example file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from arborcast.core.security.uris import without_password
from arborcast.engine.settings.loading import (
    DEFAULT_HOME,
    SECTIONS,
    Declaration,
    Scalar,
    Settings,
    declarations,
    toml,
)

HIDDEN = "********"

INTRODUCTION = """\
# Settings of Arborcast. Commands read this file where it is in the current folder, or as --config FILE names it.
#
# Everything here is commented out and has its default: remove the # in front of what you change.
# docs/settings.md has all settings; arborcast config show lists the settings in force and their sources.
# A variable such as ARBORCAST_KAFKA_PREFIX is stronger than this file.

# The data directory, relative to this file. Without this line it is .arborcast in the current folder.
"""

# All settings of the other sections are included.
_MOST_USED: Mapping[str, tuple[str, ...]] = {
    "kafka": (
        "bootstrap_servers",
        "prefix",
        "partitions",
        "replication",
        "retention_hours",
        "security_protocol",
        "ssl_ca_file",
        "sasl_mechanism",
        "sasl_username",
    ),
    "directory": ("kind", "file", "url", "base_dn", "start_tls", "bind", "bind_dn"),
    "gateway": ("host", "port", "public_url", "trusted_proxies", "workers", "max_body_bytes", "default_termination_s"),
    "tls": ("certificate_file", "key_file", "client_ca_file"),
    "access": ("methods", "open_network", "users", "users_file", "policy_file", "jwks_file", "jwt_issuer"),
    "limits": ("requests_per_s", "bytes_per_s", "deliveries_per_minute", "connections_per_client"),
    "dispatch": ("task_slots", "driver_memory_mb", "max_rows_per_batch", "starting_offsets"),
    "push": ("connect_timeout_s", "total_timeout_s", "max_notify_messages", "max_in_flight_per_endpoint", "proxy"),
    "retry": ("retransmissions", "first_wait_s", "factor", "longest_wait_s", "lifespan_s", "suspend_after_s"),
    "tables": ("path", "interval_s", "archive", "notifications_days", "deliveries_days", "history_days"),
    "secrets": ("key_file", "overlap_s", "client_certificates"),
    "stack": ("broker", "job", "home_access", "kafka_port", "kafka_heap_mb", "kafka_fsync", "min_free_disk_mb"),
}

_WIDTH = 110


class SettingInForce(NamedTuple):
    """A setting with its value, hidden if it is a secret, and its origin."""

    key: str
    value: Scalar
    origin: str


def in_force(settings: Settings) -> list[SettingInForce]:
    found = [SettingInForce("home", str(settings.home), settings.origins["home"])]
    for declaration in declarations():
        value = getattr(getattr(settings, declaration.section), declaration.name)
        shown = HIDDEN if declaration.info.secret and value else value
        if isinstance(shown, str):
            shown = without_password(shown)  # of a proxy or a collector
        found.append(SettingInForce(declaration.key, shown, settings.origins[declaration.key]))
    return found


def example() -> str:
    """A settings file with the settings that are changed most often, commented out, with their defaults."""
    everything = declarations()
    lines = [INTRODUCTION + f"#home = {toml(DEFAULT_HOME)}"]
    for section, cls in SECTIONS.items():
        own = [each for each in everything if each.section == section]
        chosen = [each for each in own if each.name in _MOST_USED.get(section, (each.name,))]
        lines += ["", "", *_comment((cls.__doc__ or "").strip()), f"[{section}]"]
        for each in chosen:
            lines += ["", *_comment(_words(each)), f"#{each.name} = {toml(each.default)}"]
        if others := len(own) - len(chosen):
            lines += ["", f"# {others} more: docs/settings.md"]
    return "\n".join(lines) + "\n"


def _words(each: Declaration) -> str:
    return f"{each.info.help} ({each.info.unit})" if each.info.unit else each.info.help


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
