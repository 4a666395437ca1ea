"""Whole engines on one broker, each with logs and a job of its own, that exchange what is wanted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.settings import KafkaSettings
from ingest.client import Client, ClientError
from jobs.administrator.members import GONE_S
from tests.support.federation import AdministratorRun, Arrivals, EngineRun, federation, until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

_AWAY_S = GONE_S + 10.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


def subscribe(engine: EngineRun, topic: str, url: str) -> None:
    with Client(engine.gateway.broker) as client:
        client.subscribe(topic, to=url)


def linked(engine: EngineRun, link: str, *topics: str) -> bool:
    """Whether the engine has a link that carries exactly these, or, without any, one that is open."""
    from jobs.cli.topics_work import read_subscriptions

    found = read_subscriptions(engine.kafka)[0].get(link)
    if found is None or found.terminates_ms is not None:
        return False
    return not topics or found.selector() == "|".join(topics)


def test_three_groups_get_what_they_want_and_once(tmp_path: Path, kafka: KafkaSettings, receiver: Receiver) -> None:
    """Each of three subscribers wants three topics, published one at each engine; and subscribers to ALL, ALL:ALARM and
    ALL:ALARM:ALARM1 get 3, 2 and 1 of three messages."""
    arrivals = Arrivals(receiver)
    with federation(tmp_path, kafka, ["G/a", "H/b", "I/c"], jobs=True) as (_, engines):
        a, b, c = engines
        for engine in engines:
            subscribe(engine, "func//.", receiver.url(f"/{engine.name}"))
        for engine, topic in zip(engines, ("ALL//.", "ALL/ALARM//.", "ALL/ALARM/ALARM1//."), strict=True):
            subscribe(engine, topic, receiver.url(f"/wide/{engine.name}"))
        for engine in engines:
            until(lambda: all(linked(engine, f"peer-group.{g}") for g in "GHI" if g != engine.name[0]))  # noqa: B023
        until(lambda: linked(a, "peer-group.I", "ALL/ALARM/ALARM1//.", "func//."))
        until(lambda: linked(b, "peer-group.G", "ALL//.", "func//."))
        for engine, topic in zip(engines, ("func/one", "func/two", "func/three"), strict=True):
            with Client(engine.gateway.broker) as client:
                for number in range(50):
                    client.notify(topic, f"<n>{number}</n>")
        with Client(b.gateway.broker) as client:
            for topic in ("ALL", "ALL/ALARM", "ALL/ALARM/ALARM1"):
                client.notify(topic, "<x/>")
        for engine in engines:
            receiver.wait_for(1, f"/{engine.name}")
            until(lambda: len(set(arrivals.ids(f"/{engine.name}"))) == 150, timeout=240)  # noqa: B023
        until(lambda: [len(set(arrivals.ids(f"/wide/{each.name}"))) for each in engines] == [3, 2, 1])
        time.sleep(5)  # whatever went in a circle would come again
        for engine in engines:
            there = arrivals.ids(f"/{engine.name}")
            assert len(there) == len(set(there)) == 150
            paths = [each.path for each in engine.notifications()]
            assert max(map(len, paths)) == 1, "nothing takes a way round"
            by_origin: dict[tuple[str, ...], list[bytes]] = {}
            for each in engine.notifications():
                if each.topic.startswith("func/"):
                    by_origin.setdefault(each.path, []).append(each.payload)
            assert all(found == [b"<n>%d</n>" % number for number in range(50)] for found in by_origin.values())
        assert [len(arrivals.ids(f"/wide/{each.name}")) for each in engines] == [3, 2, 1]

        # One group is not heard of until it is given up; it comes back, and has all of it in its order.
        os.kill(c.gateway.pid, signal.SIGSTOP)
        began = time.monotonic()
        with Client(a.gateway.broker) as client:
            number = 50
            while time.monotonic() < began + _AWAY_S:
                client.notify("func/one", f"<n>{number}</n>")
                number += 1
                time.sleep(0.1)
        os.kill(c.gateway.pid, signal.SIGCONT)
        until(lambda: len({each.id for each in c.notifications() if each.topic == "func/one"}) == number)
        arrived = [each.payload for each in c.notifications() if each.topic == "func/one"]
        assert arrived == [b"<n>%d</n>" % each for each in range(number)]


def test_the_representative_may_die(tmp_path: Path, kafka: KafkaSettings, receiver: Receiver) -> None:
    """Under load the next member takes over; what was acknowledged by either reaches the other group."""
    with federation(tmp_path, kafka, ["G/a", "G/d", "H/b"], jobs=True) as (administrator, engines):
        a, d, b = engines
        subscribe(b, "load//.", receiver.url("/b"))
        until(lambda: linked(a, "peer-group.H", "load//."))
        until(lambda: linked(d, "peer-a", "load//."))
        accepted: dict[str, list[str]] = {"a": [], "d": []}
        stop = threading.Event()
        threads = [
            threading.Thread(target=_publish, args=(engine, accepted[name], stop))
            for name, engine in (("a", a), ("d", d))
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(b.notifications()) > 50)
        a.kill()
        until(lambda: _represents(administrator, "G") == "d")
        until(lambda: linked(d, "peer-group.H", "load//."))
        before = len(b.notifications())
        until(lambda: len(b.notifications()) > before + 50)
        stop.set()
        for thread in threads:
            thread.join(120)
        assert len(accepted["d"]) > 100
        until(lambda: set(accepted["d"]) <= {each.id for each in b.notifications()}, lambda: _missing(accepted["d"], b))

        # What only the dead one had comes when it is started again.
        a.gateway.start()
        a.start_job()
        until(lambda: set(accepted["a"]) <= {each.id for each in b.notifications()}, lambda: _missing(accepted["a"], b))
        ids = [each.id for each in b.notifications()]
        assert len(ids) - len(set(ids)) == 0, "what came twice was known"
        again = administrator.topology.named("a")
        assert again is not None
        assert again.number > len(engines), "who comes back is the last"


def _publish(engine: EngineRun, accepted: list[str], stop: threading.Event) -> None:
    with Client(engine.gateway.broker) as client:
        while not stop.is_set():
            try:
                accepted.append(client.notify("load/x", "<x/>"))
            except ClientError:
                time.sleep(0.5)  # it is dead
            time.sleep(0.05)


def _represents(administrator: AdministratorRun, group: str) -> str:
    found = administrator.topology.representative(group)
    return found.name if found is not None else ""


def _missing(accepted: list[str], engine: EngineRun) -> str:
    there = {each.id for each in engine.notifications()}
    missing = [number for number, each in enumerate(accepted) if each not in there]
    return f"{len(missing)} of {len(accepted)} missing, the first at {missing[:1]}, the last at {missing[-1:]}"
