"""The subscribed prefixes of receivers, by connection.

A prefix ends when each connection that subscribed to it has cancelled, or is closed. A cancellation by another
connection is ignored: XPUB forwards those of peers without a subscription, too. `sweep` finds closed connections.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from arborcast.ingest.zeromq.messages import MessageError

Peer = tuple[int, int]
"""A connection of this process: the number of its file and its inode, which no later connection has."""

LONGEST_PREFIX = 1_024

# The framed edge's maximum of subscriptions on a connection.
MOST_PREFIXES = 1_000
_MOST_BYTES = 256 * 1024

# With more than half of all prefixes in use, a connection with this number gets no further one.
_MOST_OF_ONE = 100

# Closed connections are removed when a prefix has this many more than after the last sweep.
_CHECK_AFTER = 64


def peer_of(file: int) -> Peer | None:
    """The connection with this file descriptor; None for a closed one."""
    try:
        return file, os.fstat(file).st_ino
    except OSError:
        return None


def is_open(peer: Peer) -> bool:
    return peer_of(peer[0]) == peer


class Prefixes:
    """The prefixes of all connections. `alive` is the test for an open connection."""

    def __init__(self, alive: Callable[[Peer], bool] = is_open) -> None:
        self._alive = alive
        self._peers: dict[bytes, set[Peer]] = {}
        self._last_count: dict[bytes, int] = {}
        self._bytes = 0

    def begin(self, prefix: bytes, peer: Peer | None) -> bool:
        """A connection subscribes to a prefix; returns whether it is the first one. Raises MessageError."""
        if peer is None:
            return False
        peers = self._peers.get(prefix)
        if peers is not None:
            peers.add(peer)
            if len(peers) >= self._last_count[prefix] + _CHECK_AFTER:
                peers -= {each for each in peers if not self._alive(each)}
                self._last_count[prefix] = max(len(peers), _CHECK_AFTER)
            return False
        if len(prefix) > LONGEST_PREFIX:
            raise MessageError("prefix", f"a prefix may have {LONGEST_PREFIX} bytes, not {len(prefix)}")
        if len(self._peers) >= MOST_PREFIXES or self._bytes + len(prefix) > _MOST_BYTES:
            raise MessageError(
                "prefix", f"{len(self._peers)} prefixes of {self._bytes} bytes are subscribed to: no further one"
            )
        if len(self._peers) >= MOST_PREFIXES // 2:
            own = sum(peer in each for each in self._peers.values())
            if own >= _MOST_OF_ONE:
                raise MessageError("prefix", f"a connection has {own} of {len(self._peers)} prefixes: no further one")
        self._peers[prefix], self._last_count[prefix] = {peer}, 0
        self._bytes += len(prefix)
        return True

    def end(self, prefix: bytes, peer: Peer | None) -> bool:
        """A connection takes a prefix back; whether no other one has it."""
        peers = self._peers.get(prefix)
        if peers is None or peer not in peers:
            return False
        peers.discard(peer)
        return not peers and self._forget(prefix)

    def sweep(self) -> Iterator[bytes]:
        """The prefixes of which all connections are closed; they are forgotten."""
        for prefix, peers in list(self._peers.items()):
            while peers:
                peer = next(iter(peers))
                if self._alive(peer):
                    break
                peers.discard(peer)
            if not peers and self._forget(prefix):
                yield prefix

    def _forget(self, prefix: bytes) -> bool:
        del self._peers[prefix], self._last_count[prefix]
        self._bytes -= len(prefix)
        return True
