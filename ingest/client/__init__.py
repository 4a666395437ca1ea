"""A client of WS-Notification brokers: ours, and any other that speaks the standard.

    values                  what goes in, what comes out, what can go wrong
    calls, replies          pure: a request as bytes, an answer read; `calls.Calls` describes each operation once
    session                 HTTP: one request and its repetitions
    client                  `Client`: each call returns when it is done
    futures                 `FuturesClient`: each call returns a future at once; notifications travel together

Receiving pushes is `ingest.client.listener`. The guide is docs/client.md.
"""

from __future__ import annotations

from ingest.client.client import Client
from ingest.client.futures import FuturesClient
from ingest.client.values import (
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
    Retries,
    UnreadableAnswer,
)

__all__ = [
    "Batching",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "Client",
    "ClientClosed",
    "ClientError",
    "Credentials",
    "Delivery",
    "FaultReceived",
    "FuturesClient",
    "Remote",
    "RemotePullPoint",
    "RemoteRegistration",
    "RemoteSubscription",
    "Retries",
    "UnreadableAnswer",
]
