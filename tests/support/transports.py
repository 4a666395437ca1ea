"""Pushes over a transport, to their end."""

from __future__ import annotations

import time

from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult, Transport

HEADERS = (("Content-Type", "text/xml"), ("X-Test", "1"))


def finish(transport: Transport, timeout_s: float = 240.0) -> None:
    """Drive a transport until no push is in flight."""
    deadline = time.monotonic() + timeout_s
    while transport.in_flight:
        assert time.monotonic() < deadline, f"{transport.in_flight} pushes are still in flight"
        transport.drive(0.2)


def push(
    transport: Transport,
    url: str,
    body: bytes = b"<x/>",
    headers: tuple[tuple[str, str], ...] = HEADERS,
    certificate: str = "",
) -> PushResult:
    """The result of one push."""
    (result,) = push_many(transport, [url], body, headers, certificate)
    return result


def push_many(
    transport: Transport,
    urls: list[str],
    body: bytes = b"<x/>",
    headers: tuple[tuple[str, str], ...] = HEADERS,
    certificate: str = "",
) -> list[PushResult]:
    """The results of concurrent pushes, in the order of their ends."""
    results: list[PushResult] = []
    for url in urls:
        transport.submit(PushRequest(url, headers, body, certificate), results.append)
    assert not results, "callbacks run in drive"
    finish(transport)
    assert len(results) == len(urls), "each callback runs exactly once"
    return results
