"""A client of an MQTT 5 broker that connects under the outbound policy."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import certifi
from paho.mqtt import packettypes, properties
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from arborcast.core.errors import InfrastructureError
from arborcast.core.mqtt.settings import MqttSettings, for_mqtt
from arborcast.core.security.outbound import AddressPolicy


class ConnectFailed(InfrastructureError):
    """No connection. `failure` is its class as in results of pushes."""

    def __init__(self, failure: Any, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


def properties_of(packet: str) -> Any:
    """An empty property set for a packet, CONNECT or PUBLISH; properties are set as attributes."""
    untyped: Any = properties.Properties
    return untyped(getattr(packettypes.PacketTypes, packet))


def make_client(settings: MqttSettings, client_id: str, timeout_s: float, *, manual_ack: bool = False) -> Client:
    """A client for one connection, without reconnects. Raises ConnectFailed for an unreadable certificate."""
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id,
        protocol=MQTTProtocolVersion.MQTTv5,
        reconnect_on_failure=False,
        manual_ack=manual_ack,
    )
    client.connect_timeout = timeout_s
    client.max_inflight_messages = 0
    if settings.user:
        client.username_pw_set(settings.user, settings.password or None)
    scheme, host, _ = settings.place
    if scheme == "mqtts":
        try:
            client.tls_set_context(_context(settings, host))
        except OSError as error:
            raise ConnectFailed("tls", f"the certificates of the settings cannot be read: {error}") from error
    return client


def connect(client: Client, settings: MqttSettings, policy: AddressPolicy, properties: Any, *, clean: bool) -> None:
    """Connect to the first allowed address of the broker that accepts, and send CONNECT. Blocks. Raises
    ConnectFailed."""
    _, host, port = settings.place
    refusal = for_mqtt(policy).check_url(settings.base)
    if refusal is not None:
        raise ConnectFailed("address", f"{settings.base} {refusal}")
    try:
        addresses = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise ConnectFailed("dns", f"{host} cannot be resolved: {error.strerror}") from error
    failed = ConnectFailed("dns", f"{host} has no address")
    for address in dict.fromkeys(addresses):
        refusal = policy.check_address(address, port)
        if refusal is not None:
            failed = ConnectFailed("address", str(refusal))
            continue
        try:
            client.connect(address, port, settings.keep_alive_s, clean_start=clean, properties=properties)
        except (OSError, ValueError) as error:
            tls = isinstance(error, ssl.SSLError)
            failed = ConnectFailed("tls" if tls else "connect", f"{host}:{port}: {error}")
        else:
            return
    raise failed


def refusal_of(reason: Any, host: str) -> str:
    """The message for the reason code of a negative CONNACK."""
    name = reason.getName()
    if name == "Unsupported protocol version":
        return f"{host} does not speak MQTT 5, only an earlier version: the bridge needs a broker with MQTT 5"
    return f"{host} refuses the connection: {name}"


class _NamedContext(ssl.SSLContext):
    """Verifies the host name, though the client connects to an address."""

    name = ""

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        # With the handshake: after a failed handshake of its own, the library leaves the socket open.
        return super().wrap_socket(*args, **{**more, "server_hostname": self.name, "do_handshake_on_connect": True})


def _context(settings: MqttSettings, host: str) -> ssl.SSLContext:
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.name = host
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(settings.ca_file or certifi.where())
    if settings.certificate_file:
        context.load_cert_chain(settings.certificate_file)
    return context
