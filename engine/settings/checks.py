"""Checks of settings that depend on several sections, or on files; before Kafka and other parts start."""

from __future__ import annotations

import os

from arborcast.core.errors import ConfigError
from arborcast.core.reasons import reason_of
from arborcast.core.security.ip_addresses import is_loopback
from arborcast.engine.settings.loading import OWN_FILES, Settings, declarations


def check_gateway(settings: Settings) -> None:
    """Raises ConfigError for settings with which a gateway does not start."""
    _check_exposed(settings)
    _check_sizes(settings)
    if settings.mqtt.url and not settings.mqtt.rules_file:
        raise ConfigError("mqtt.url requires mqtt.rules_file, the file with the incoming and outgoing topics")
    if settings.mqtt.url and settings.access.chosen() and not settings.mqtt.act_as:
        raise ConfigError("mqtt.act_as must name the user whose rights the bridge has, as access.methods is set")


def check_files(settings: Settings) -> None:
    """Raises ConfigError with all files and folders of the settings that cannot be read, except those that an engine
    creates."""
    wrong = []
    for each in declarations():
        path = getattr(getattr(settings, each.section), each.name)
        if each.is_path and path and each.key not in OWN_FILES:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            except OSError as error:
                wrong.append(f"{settings.origins[each.key]}: {each.key} = {path!r} cannot be read: {reason_of(error)}")
    if wrong:
        raise ConfigError("\n".join(wrong))


def _check_exposed(settings: Settings) -> None:
    """Refuse a gateway without authentication on the network: its clients could read and send everything."""
    host = settings.gateway.host
    if settings.access.chosen() or settings.access.open_network or is_loopback(host):
        return
    raise ConfigError(
        f"gateway.host = {host!r} is reachable from the network without authentication: set access.methods "
        '(for instance "basic", then `arborcast users add NAME`), or listen on 127.0.0.1, or, where a network or a '
        "proxy keeps strangers out, set access.open_network = true"
    )


def _check_sizes(settings: Settings) -> None:
    """Raises ConfigError unless the largest accepted body or frame fits into a record: stored as UTF-8, with its
    namespaces, it is larger."""
    for name, size in (
        ("gateway.max_body_bytes", settings.gateway.max_body_bytes),
        ("framed.max_frame_bytes", settings.framed.max_frame_bytes if settings.framed.port else 0),
    ):
        needed = 3 * size // 2 + 128 * 1024
        if settings.kafka.max_record_bytes < needed:
            raise ConfigError(
                f"kafka.max_record_bytes = {settings.kafka.max_record_bytes} is too small for {name} = {size}: at "
                f"least {needed} are needed"
            )
    whole = 3 * settings.fragments.max_bytes // 2 + 128 * 1024
    for name, size in (
        ("kafka.max_record_bytes", settings.kafka.max_record_bytes),
        ("gateway.max_unacknowledged_bytes", settings.gateway.max_unacknowledged_bytes),
    ):
        if size < whole:
            raise ConfigError(
                f"{name} = {size} is too small for fragments.max_bytes = {settings.fragments.max_bytes}: at least "
                f"{whole} are needed"
            )
