"""A client of WS-Notification brokers: ours, and any other that speaks the standard.

    values      what goes in, what comes out, what can go wrong
    calls       requests as values: each operation described once, for both clients
    client      `Client`: each call returns when it is done; and what both repeat
    transport   how requests travel; may be replaced
    futures     `FuturesClient`: each call returns a future at once; notifications travel together
    legacy      `LegacyClient`, `LegacyFuturesClient`: the same for old brokers of the HPwsn family
    received    reading answers and pushes
    assembler   joining the parts in which messages come
    later       saying later how a push ended
    listener    receiving pushes; on http_server, a small HTTP server
    testing     for tests of programs: a transport in memory, a listener that collects, an engine
    triggers    who is called, or waits, for messages of certain topics

The guide is docs/client.md. The distribution arborcast-client, on which the engine depends, is this package and the
floors below it (client/pyproject.toml). May live here: what a program needs that publishes or subscribes. May not: an
import of the engine, or of a package beside requests-futures, lxml and msgspec.
"""

from __future__ import annotations

from arborcast.client.client import Client
from arborcast.client.futures import FuturesClient
from arborcast.client.legacy import LegacyClient, LegacyFuturesClient, LegacySubscription
from arborcast.client.transport import HttpAnswer, RequestsTransport, Transport
from arborcast.client.values import (
    Batching,
    BrokerUnavailable,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    Credentials,
    Delivery,
    FaultReceived,
    Remote,
    RemotePullPoint,
    RemoteRegistration,
    RemoteSubscription,
    ResultNotTaken,
    Retries,
    UnreadableAnswer,
)
from arborcast.core.errors import ArborcastError, ExpressionError, SecretError, SignatureError

__all__ = [
    "ArborcastError",
    "Batching",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "Client",
    "ClientClosed",
    "ClientError",
    "Credentials",
    "Delivery",
    "ExpressionError",
    "FaultReceived",
    "FuturesClient",
    "HttpAnswer",
    "LegacyClient",
    "LegacyFuturesClient",
    "LegacySubscription",
    "Remote",
    "RemotePullPoint",
    "RemoteRegistration",
    "RemoteSubscription",
    "RequestsTransport",
    "ResultNotTaken",
    "Retries",
    "SecretError",
    "SignatureError",
    "Transport",
    "UnreadableAnswer",
]


def __getattr__(name: str) -> str:
    """`__version__`: that of the distribution arborcast-client, read when it is asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    return metadata.version("arborcast-client")
