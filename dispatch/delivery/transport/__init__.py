"""Transports of pushes: one contract, two implementations with one test suite, and datagrams and MQTT beside them.
`curl` is fast, `futures` is pure Python. Both fulfil `contract`."""

from __future__ import annotations

from arborcast.core.mqtt.settings import NO_MQTT, MqttSettings, check_installed
from arborcast.core.security.outbound import AddressPolicy
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.delivery.transport.datagrams import WithDatagrams
from arborcast.dispatch.settings import PushSettings


def make_transport(settings: PushSettings, policy: AddressPolicy, mqtt: MqttSettings = NO_MQTT) -> Transport:
    """The configured transport; `auto` is libcurl if it is installed. It connects only where `policy` permits. Raises
    ConfigError where the library for MQTT is missing."""
    if not mqtt.url:
        return WithDatagrams(_make(settings, policy), policy)
    check_installed()
    from arborcast.dispatch.delivery.transport.mqtt import WithMqtt

    return WithMqtt(WithDatagrams(_make(settings, policy), policy), settings, policy, mqtt)


def _make(settings: PushSettings, policy: AddressPolicy) -> Transport:
    if settings.transport != "futures":
        try:
            from arborcast.dispatch.delivery.transport.curl import CurlTransport
        except ImportError:
            if settings.transport == "curl":
                raise
        else:
            return CurlTransport(settings, policy)
    from arborcast.dispatch.delivery.transport.futures import FuturesTransport

    return FuturesTransport(settings, policy)
