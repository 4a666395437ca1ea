"""A client of WS-Notification brokers: Arborcast, and others that implement the standard.

    values      parameters, results, and exceptions
    calls       requests as values: each operation is defined once, for both clients
    client      `Client`: synchronous; and the common base of all clients
    transport   HTTP requests; replaceable
    futures     `FuturesClient`: each call returns a future at once; notifications can be batched
    legacy      `LegacyClient`, `LegacyFuturesClient`: the same for old brokers of the HPwsn family
    received    parsing of answers and pushes
    assembler   joining messages from their parts
    later       results of pushes that are reported later
    listener    receiving pushes; on http_server, a small HTTP server
    testing     for tests of programs: a transport in memory, a listener that collects, an engine
    triggers    callbacks and waits for messages of certain topics

The guide is docs/client.md. The distribution arborcast-client, on which the engine depends, contains this package and
the packages that it imports (client/pyproject.toml). Code for programs that publish or subscribe belongs here. It does
not import the engine, and no packages other than requests-futures, lxml and msgspec.
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
    """`__version__`, the version of the distribution arborcast-client, is read on access."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    return metadata.version("arborcast-client")
