"""Which prefixes are subscribed to, whatever connections say."""

from __future__ import annotations

import os
import socket

import pytest

from arborcast.ingest.zeromq.messages import MessageError
from arborcast.ingest.zeromq.prefixes import LONGEST_PREFIX, MOST_PREFIXES, Peer, Prefixes, is_open, peer_of


class Peers:
    """Connections that tests close."""

    def __init__(self) -> None:
        self.closed: set[Peer] = set()
        self.asked = 0

    def is_alive(self, peer: Peer) -> bool:
        self.asked += 1
        return peer not in self.closed


A, B, C = (1, 10), (2, 20), (3, 30)


def test_the_first_connection_begins_a_prefix_and_the_last_one_ends_it() -> None:
    prefixes = Prefixes(Peers().is_alive)
    assert [prefixes.begin(b"p", A), prefixes.begin(b"p", B), prefixes.begin(b"p", A)] == [True, False, False]
    assert [prefixes.end(b"p", A), prefixes.end(b"p", B), prefixes.end(b"p", B)] == [False, True, False]
    assert prefixes.begin(b"p", C)


def test_who_has_not_asked_takes_nothing_back() -> None:
    """Nor does a later connection with the same number of a file."""
    peers = Peers()
    prefixes = Prefixes(peers.is_alive)
    assert prefixes.begin(b"p", A)
    assert not prefixes.begin(b"p", B)
    peers.closed.add(B)
    for stranger in (B, (2, 21), (1, 11), None):
        assert not prefixes.end(b"p", stranger)
    assert list(prefixes.sweep()) == []
    assert prefixes.end(b"p", A)


def test_a_prefix_ends_when_all_its_connections_are_closed() -> None:
    peers = Peers()
    prefixes = Prefixes(peers.is_alive)
    for peer in (A, B):
        prefixes.begin(b"p", peer)
    prefixes.begin(b"q", B)
    peers.closed.add(B)
    assert list(prefixes.sweep()) == [b"q"]
    peers.closed.add(A)
    assert list(prefixes.sweep()) == [b"p"]
    assert len(prefixes) == 0


def test_prefixes_are_bounded_in_length_in_number_and_by_connection() -> None:
    prefixes = Prefixes(Peers().is_alive)
    with pytest.raises(MessageError, match="1024 bytes"):
        prefixes.begin(b"x" * (LONGEST_PREFIX + 1), A)
    for number in range(MOST_PREFIXES // 2):
        assert prefixes.begin(b"%d" % number, A)
    with pytest.raises(MessageError, match="a connection has"):
        prefixes.begin(b"half of all are left for others", A)
    for number in range(MOST_PREFIXES // 2):
        assert prefixes.begin(b"more %d" % number, (number, 1))
    with pytest.raises(MessageError, match="no further one"):
        prefixes.begin(b"one more", B)
    assert len(prefixes) == MOST_PREFIXES
    assert not prefixes.begin(b"0", B), "one that is there is no further one"
    long = Prefixes(Peers().is_alive)
    for number in range(256):
        assert long.begin(b"%01024d" % number, (number, 1))
    with pytest.raises(MessageError, match="262144 bytes"):
        long.begin(b"x", B)


def test_connections_that_come_and_go_leave_nothing_and_cost_a_look_each() -> None:
    peers = Peers()
    prefixes = Prefixes(peers.is_alive)
    prefixes.begin(b"p", A)
    for number in range(10_000):
        peer = (4, number)
        prefixes.begin(b"p", peer)
        peers.closed.add(peer)
    assert len(prefixes._peers[b"p"]) < 200
    assert peers.asked < 30_000


def test_a_connection_is_the_number_of_its_file_and_its_inode() -> None:
    one, other = socket.socketpair()
    file = one.fileno()
    peer = peer_of(file)
    assert peer is not None
    assert is_open(peer)
    one.close()
    assert not is_open(peer)
    os.dup2(other.fileno(), file)
    assert not is_open(peer), "the number has another connection now"
    os.close(file)
    assert peer_of(file) is None
    other.close()
