"""The outbound policy of gateway and job, from the settings."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from arborcast.core.security.ip_addresses import EVERYWHERE, is_loopback
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings, place_of
from arborcast.engine.embedded.kafka_broker import remembered_controller_port
from arborcast.engine.processes.processes import LOOPBACK
from arborcast.engine.settings.loading import Settings

_SCOPES = {
    "public": "globally routable addresses only",
    "private": "globally routable addresses and private networks",
    "loopback": "globally routable addresses and this machine",
}


def policy_of(
    settings: Settings, gateway_port: int | None = None, more: Iterable[tuple[str, int]] = ()
) -> AddressPolicy:
    """The address policy of the gateway and the job.

    The engine's own services are looked up here, once: a name that cannot be looked up is still refused as a name.
    `gateway_port` is the port of a gateway if the system has chosen it; `more` are further own ports that are not in
    the settings.
    """
    own: set[tuple[str, int]] = set()
    for host, port in (*_services(settings, gateway_port or settings.gateway.port), *more):
        if not port:
            continue  # chosen by the system, and not known yet
        name = host.lower().removesuffix(".")
        own.add((name, port))
        own.update((address, port) for address in _addresses(name, port))
    if urlsplit(settings.gateway.public_url).hostname:
        # Not looked up: a reverse proxy may serve other systems, too.
        own.add(place_of(settings.gateway.public_url))
    return AddressPolicy(settings.outbound, frozenset(own))


def outbound_of(settings: Settings) -> OutboundSettings:
    """With broker and gateway on loopback, subscribers are on this machine, too."""
    chosen = settings.origins.get("outbound.scope", "default") != "default"
    if chosen or settings.stack.broker == "external" or not is_loopback(settings.gateway.host):
        return settings.outbound
    return dataclasses.replace(settings.outbound, scope="loopback")


def describe(settings: OutboundSettings) -> str:
    """The permitted addresses, as text for a log."""
    parts = [_SCOPES[settings.scope]]
    if settings.allow:
        parts.append(f"also {settings.allow}")
    if settings.deny:
        parts.append(f"never {settings.deny}")
    if settings.ports:
        parts.append(f"ports {settings.ports}")
    if settings.https_only:
        parts.append("https only")
    return f"{'; '.join(parts)} (outbound.scope = {settings.scope})"


def _services(settings: Settings, gateway_port: int) -> Iterator[tuple[str, int]]:
    yield settings.gateway.host, gateway_port
    yield settings.gateway.host, settings.framed.port
    yield settings.gateway.host, settings.federation.datagram_port
    yield settings.console.host, settings.console.port
    yield settings.metrics.host, settings.metrics.port
    yield settings.metrics.host, settings.metrics.job_port
    if settings.zmq.enabled:
        zmq = settings.zmq
        yield settings.metrics.host, zmq.metrics_port
        for address in (zmq.subscribe, zmq.publish, zmq.pipeline, zmq.requests, zmq.tasks, zmq.results):
            if not address.startswith(">"):  # an address to connect to
                yield from _place(address.removeprefix("tcp://"))
    if urlsplit(settings.federation.administrator).hostname:
        yield place_of(settings.federation.administrator)
    if settings.stack.broker == "embedded":
        yield LOOPBACK, remembered_controller_port(settings.home / "kafka")
    for server in settings.kafka.bootstrap_servers.split(","):
        yield from _place(server.strip())
    if settings.directory.kind == "ldap":
        url = urlsplit(settings.directory.url)
        if url.hostname:
            yield url.hostname, url.port or (636 if url.scheme == "ldaps" else 389)


def _place(text: str) -> Iterator[tuple[str, int]]:
    host, _, port = text.rpartition(":")
    if host and port.isdecimal():
        yield EVERYWHERE if host == "*" else host.strip("[]"), int(port)


def _addresses(host: str, port: int) -> Iterator[str]:
    if not host:
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return
    yield from {str(address[0]) for *_, address in found}
