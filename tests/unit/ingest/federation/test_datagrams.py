"""Datagrams at the door: what is stored, and what everything else comes to."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.federation import datagrams
from arborcast.ingest.federation.datagrams import DatagramDoor
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.peers import encode_datagram, encode_push
from arborcast.topic_model.subscriptions import Peer
from tests.unit.ingest.federation.test_receiver import Engine, notification


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def door(engine: Engine) -> DatagramDoor:
    return DatagramDoor(engine.receiver, Registry())


def datagram(
    engine: Engine, *sent: Notification, sender: str = "G/b", to: str = "G/a", key: bytes = b"", ago_s: int = 0
) -> bytes:
    body = encode_push(sent, Peer(sender, to, "only"))
    at = int(engine.keys._now()) - ago_s
    signature = sign([key or engine.keys.current], "msg_1", at, body)
    return encode_datagram({ID_HEADER: "msg_1", TIMESTAMP_HEADER: str(at), SIGNATURE_HEADER: signature}, body)


def take(at: DatagramDoor, *sent: bytes) -> dict[str, int]:
    for each in sent:
        at.datagram_received(each, ("192.0.2.1", 1))
    asyncio.run(at.work())
    return dict(at.counts)


def test_what_is_not_from_a_member_is_dropped_and_counted(engine: Engine) -> None:
    one = notification()
    found = take(
        door(engine),
        b"anything",
        b"ACD1" + bytes(9_000),
        datagram(engine, one, key=b"another key, of somebody else"),
        datagram(engine, one, ago_s=301),
        datagram(engine, one, sender="H/x"),
        datagram(engine, one, sender="G/a"),
        datagram(engine, one, to="G/other"),
        datagram(engine, *(notification(f"n{number}") for number in range(6))),
        b"ACD1not signed",
    )
    assert found == {"garbage": 2, "unsigned": 2, "refused": 3, "unreadable": 2}
    assert engine.accepted == []


def test_before_the_start_and_without_kafka_they_are_lost(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    at = door(engine)
    engine.parts.started = False
    assert take(at, datagram(engine, notification())) == {"unstored": 1}
    engine.parts.started = True

    async def away(*_: object) -> None:
        raise InfrastructureError("no broker", 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(engine.parts.notifications, "append", away)
        assert take(at, datagram(engine, notification())) == {"unstored": 2}
    assert take(at, datagram(engine, notification())) == {"unstored": 2, "taken": 1}


def test_what_waits_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "_MOST_WAITING", 3)
    assert take(door(engine), *(datagram(engine, notification(f"n{number}")) for number in range(5))) == {
        "full": 2,
        "taken": 3,
    }


def test_over_a_socket_amid_a_flood_of_garbage(engine: Engine) -> None:
    """What nobody has signed neither stops the door nor keeps the event loop from others."""
    chance = random.Random(7)

    async def run() -> int:
        at, came_round = door(engine), 0
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
        ):
            bound.bind(("127.0.0.1", 0))
            bound.setblocking(False)
            where = bound.getsockname()
            running = asyncio.create_task(at.run(bound))
            good = datagram(engine, notification())
            while not engine.accepted:
                for _ in range(50):
                    out.sendto(chance.choice((b"", b"ACD1")) + chance.randbytes(chance.randrange(1_000)), where)
                out.sendto(good, where)
                came_round += 1
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert at.counts["garbage"] > 0
        return came_round

    assert asyncio.run(run()) > 0
    assert [each.id for each in engine.accepted] == ["n1"]
