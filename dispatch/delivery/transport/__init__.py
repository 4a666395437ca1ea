"""How a push leaves: one small contract, two implementations, one test-suite for both, and datagrams beside them.

`curl` is the fast one, `futures` the one in pure Python. Both promise what `contract` says.
"""

from __future__ import annotations

from arborcast.core.security.outbound import AddressPolicy
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.delivery.transport.datagrams import WithDatagrams
from arborcast.dispatch.settings import PushSettings


def make_transport(settings: PushSettings, policy: AddressPolicy) -> Transport:
    """The transport that the settings ask for; `auto` is libcurl where it is installed. It connects where `policy` lets
    it."""
    return WithDatagrams(_make(settings, policy), policy)


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
