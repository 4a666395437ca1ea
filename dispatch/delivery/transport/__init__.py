"""How a push leaves: one small contract, two implementations, one test-suite for both, and datagrams beside them.

`curl` is the fast one, `futures` the one in pure Python. Both promise what `contract` says.
"""

from __future__ import annotations

from core.security.outbound import AddressPolicy
from dispatch.delivery.transport.contract import Transport
from dispatch.delivery.transport.datagrams import WithDatagrams
from dispatch.settings import PushSettings


def make_transport(settings: PushSettings, policy: AddressPolicy) -> Transport:
    """The transport that the settings ask for; `auto` is libcurl where it is installed. It connects where `policy` lets
    it."""
    return WithDatagrams(_make(settings, policy), policy)


def _make(settings: PushSettings, policy: AddressPolicy) -> Transport:
    if settings.transport != "futures":
        try:
            from dispatch.delivery.transport.curl import CurlTransport
        except ImportError:
            if settings.transport == "curl":
                raise
        else:
            return CurlTransport(settings, policy)
    from dispatch.delivery.transport.futures import FuturesTransport

    return FuturesTransport(settings, policy)
