"""Where the engine may connect to: the one policy of gateway and job, from the settings."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from core.security.outbound import AddressPolicy, OutboundSettings
from jobs.settings.loading import Settings

_SCOPES = {
    "public": "globally routable addresses only",
    "private": "globally routable addresses and private networks",
    "loopback": "globally routable addresses and this machine",
}


def policy_of(settings: Settings, gateway_port: int | None = None) -> AddressPolicy:
    """The one policy that the gateway and the job connect by.

    The engine's own services are looked up here, once: a name for one of them that cannot be looked up now is still
    refused as a name. `gateway_port` is for a gateway whose port was chosen by the system.
    """
    own: set[tuple[str, int]] = set()
    for host, port in _services(settings, gateway_port or settings.gateway.port):
        if not port:
            continue  # chosen by the system, and not known yet
        name = host.lower().removesuffix(".")
        own.add((name, port))
        own.update((address, port) for address in _addresses(name, port))
    public = urlsplit(settings.gateway.public_url)
    if public.hostname:
        # Not looked up: behind one reverse proxy there are others than us.
        own.add((public.hostname.lower(), public.port or (443 if public.scheme == "https" else 80)))
    return AddressPolicy(settings.outbound, frozenset(own))


def describe(settings: OutboundSettings) -> str:
    """Where requests may go, in words for a log."""
    words = [_SCOPES[settings.scope]]
    if settings.allow:
        words.append(f"also {settings.allow}")
    if settings.deny:
        words.append(f"never {settings.deny}")
    if settings.ports:
        words.append(f"ports {settings.ports}")
    if settings.https_only:
        words.append("https only")
    return f"{'; '.join(words)} (outbound.scope = {settings.scope})"


def _services(settings: Settings, gateway_port: int) -> Iterator[tuple[str, int]]:
    yield settings.gateway.host, gateway_port
    yield settings.metrics.host, settings.metrics.port
    yield settings.metrics.host, settings.metrics.job_port
    for server in settings.kafka.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if host and port.isdecimal():
            yield host.strip("[]"), int(port)
    if settings.directory.kind == "ldap":
        url = urlsplit(settings.directory.url)
        if url.hostname:
            yield url.hostname, url.port or (636 if url.scheme == "ldaps" else 389)


def _addresses(host: str, port: int) -> Iterator[str]:
    if not host:
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return
    yield from {str(address[0]) for *_, address in found}
