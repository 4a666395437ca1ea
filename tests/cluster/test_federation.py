"""Engines on one broker, each with its own logs and job, that exchange notifications by demand."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.client import Client, ClientError, LegacyClient
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.engine.administrator.members import GONE_S
from tests.support import legacy_messages as legacy
from tests.support.federation import AdministratorRun, EngineRun, carried, federation
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

_AWAY_S = GONE_S + 10.0

_APART_S = 60.0

# The default limit of a part that leaves on a topic with the routing word split.
_SPLIT_BYTES = 3_000


Pair = tuple[AdministratorRun, EngineRun, EngineRun]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaSettings) -> Iterator[Pair]:
    """The engines G/a and H/b with a link between them. H/b refuses unknown topics and other types."""
    folder, own = tmp_path_factory.mktemp("pair"), dataclasses.replace(kafka, prefix=f"{kafka.prefix}pair.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARBORCAST_TOPICS_CHECK_TYPES", "true")
        with federation(folder, own, ["G/a", "H/b"], jobs=True, lines=True, fixed=["H/b"]) as (administrator, (a, b)):
            yield administrator, a, b


def subscribe(engine: EngineRun, topic: str, url: str) -> None:
    with Client(engine.gateway.broker) as client:
        client.subscribe(topic, to=url)


def add_topic(engine: EngineRun, *arguments: str) -> None:
    done = CliRunner().invoke(app, ["topics", "add", *arguments, "--config", str(engine.gateway.config)])
    assert done.exit_code == 0, done.output


def linked(engine: EngineRun, link: str, *topics: str) -> bool:
    """Whether the engine has a link that carries exactly these, or, without any, one that is open."""
    found = carried(engine, link)
    return found == list(topics) if topics else bool(found)


def test_three_groups_get_messages_of_interest_once(
    tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver
) -> None:
    """Each of three subscribers has three topics, published one at each engine; and subscribers to ALL, ALL:ALARM and
    ALL:ALARM:ALARM1 get 3, 2 and 1 of three messages."""
    with federation(tmp_path, kafka_settings, ["G/a", "H/b", "I/c"], jobs=True) as (_, engines):
        a, b, c = engines
        for engine in engines:
            subscribe(engine, "func//.", receiver.url(f"/{engine.name}"))
        for engine, topic in zip(engines, ("ALL//.", "ALL/ALARM//.", "ALL/ALARM/ALARM1//."), strict=True):
            subscribe(engine, topic, receiver.url(f"/wide/{engine.name}"))
        for engine in engines:
            wait_until(lambda: all(linked(engine, f"peer-group.{g}") for g in "GHI" if g != engine.name[0]))  # noqa: B023  # called at once
        wait_until(lambda: linked(a, "peer-group.I", "ALL/ALARM/ALARM1//.", "func//."))
        wait_until(lambda: linked(b, "peer-group.G", "ALL//.", "func//."))
        for engine, topic in zip(engines, ("func/one", "func/two", "func/three"), strict=True):
            with Client(engine.gateway.broker) as client:
                for number in range(50):
                    client.notify(topic, f"<n>{number}</n>")
        with Client(b.gateway.broker) as client:
            for topic in ("ALL", "ALL/ALARM", "ALL/ALARM/ALARM1"):
                client.notify(topic, "<x/>")
        for engine in engines:
            receiver.wait_for(1, f"/{engine.name}")
            wait_until(lambda: len(set(receiver.names(f"/{engine.name}"))) == 150)  # noqa: B023  # called at once
        wait_until(lambda: [len(set(receiver.names(f"/wide/{each.name}"))) for each in engines] == [3, 2, 1])
        time.sleep(5)  # messages in a routing loop would be repeated
        for engine in engines:
            there = receiver.names(f"/{engine.name}")
            assert len(there) == len(set(there)) == 150
            paths = [each.path for each in engine.notifications()]
            assert max(map(len, paths)) == 1, "nothing takes a way round"
            by_origin: dict[tuple[str, ...], list[bytes]] = {}
            for each in engine.notifications():
                if each.topic.startswith("func/"):
                    by_origin.setdefault(each.path, []).append(each.payload)
            assert all(found == [b"<n>%d</n>" % number for number in range(50)] for found in by_origin.values())
        assert [len(receiver.names(f"/wide/{each.name}")) for each in engines] == [3, 2, 1]

        # One group is silent until it is removed; when it returns it gets all messages in order.
        os.kill(c.gateway.pid, signal.SIGSTOP)
        began = time.monotonic()
        with Client(a.gateway.broker) as client:
            number = 50
            while time.monotonic() < began + _AWAY_S:
                client.notify("func/one", f"<n>{number}</n>")
                number += 1
                time.sleep(0.1)
        os.kill(c.gateway.pid, signal.SIGCONT)
        wait_until(lambda: len({each.id for each in c.notifications() if each.topic == "func/one"}) == number)
        arrived = [each.payload for each in c.notifications() if each.topic == "func/one"]
        assert arrived == [b"<n>%d</n>" % each for each in range(number)]


def test_the_representative_may_die(tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver) -> None:
    """Under load the next member takes over; messages acknowledged by either reach the other group."""
    with federation(tmp_path, kafka_settings, ["G/a", "G/d", "H/b"], jobs=True) as (administrator, engines):
        a, d, b = engines
        subscribe(b, "load//.", receiver.url("/b"))
        wait_until(lambda: linked(a, "peer-group.H", "load//."))
        wait_until(lambda: linked(d, "peer-a", "load//."))
        accepted: dict[str, list[str]] = {"a": [], "d": []}
        stop = threading.Event()
        threads = [
            threading.Thread(target=_publish, args=(engine, accepted[name], stop))
            for name, engine in (("a", a), ("d", d))
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(b.notifications()) > 50)
        a.kill()
        wait_until(lambda: _represents(administrator, "G") == "d")
        wait_until(lambda: linked(d, "peer-group.H", "load//."))
        before = len(b.notifications())
        wait_until(lambda: len(b.notifications()) > before + 50)
        stop.set()
        for thread in threads:
            thread.join(120)
        assert len(accepted["d"]) > 100
        wait_until(
            lambda: set(accepted["d"]) <= {each.id for each in b.notifications()}, lambda: _missing(accepted["d"], b)
        )

        # Messages that only the dead engine had are delivered after its restart.
        a.gateway.start()
        a.start_job()
        wait_until(
            lambda: set(accepted["a"]) <= {each.id for each in b.notifications()}, lambda: _missing(accepted["a"], b)
        )
        ids = [each.id for each in b.notifications()]
        assert len(ids) - len(set(ids)) == 0, "what came twice was known"
        again = administrator.topology.named("a")
        assert again is not None
        assert again.number > len(engines), "who comes back is the last"


def test_a_minute_without_a_network_between_two_groups(pair: Pair, receiver: Receiver) -> None:
    """No packet passes in either direction, and the administrator is killed meanwhile: engines deliver to their own
    subscribers, and afterwards every message arrives, once and in order."""
    administrator, *engines = pair
    a, b = engines
    for topic in ("minute/one", "minute/two", "minute/three"):
        add_topic(b, topic)
    for engine in engines:
        subscribe(engine, "minute//.", receiver.url(f"/{engine.name}"))
    wait_until(lambda: all("minute//." in carried(*each) for each in ((a, "peer-group.H"), (b, "peer-group.G"))))
    accepted: dict[str, list[str]] = {"minute/one": [], "minute/two": [], "minute/three": []}
    stop = threading.Event()
    threads = [
        threading.Thread(target=_publish, args=(engine, accepted[topic], stop, topic))
        for engine, topic in zip((a, a, b), accepted, strict=True)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(_from_others(each)) > 20 for each in engines))

    for engine in engines:
        assert engine.line is not None
        engine.line.cut()
    # One more of each may have been accepted meanwhile.
    before = {topic: len(ids) + 1 for topic, ids in accepted.items()}
    administrator.kill()
    time.sleep(_APART_S / 2)
    near = {"minute/one": a, "minute/two": a, "minute/three": b}
    for topic, engine in near.items():
        so_far = set(accepted[topic])
        wait_until(lambda: so_far <= set(receiver.names(f"/{engine.name}")))  # noqa: B023  # called at once
    administrator.start()
    wait_until(lambda: [each.state for each in administrator.topology.members] == ["live", "live"])
    time.sleep(_APART_S / 2)
    meanwhile = {topic: set(ids[before[topic] :]) for topic, ids in accepted.items()}
    passed = {each for engine in engines for each in _from_others(engine)}
    assert all(meanwhile.values())
    assert not passed & set().union(*meanwhile.values()), "nothing passes"
    for engine in engines:
        assert engine.line is not None
        engine.line.mend()

    wait_until(
        lambda: all(
            set(_from_others(far)) & meanwhile[topic] for topic, far in (("minute/one", b), ("minute/three", a))
        )
    )
    stop.set()
    for thread in threads:
        thread.join(120)
    for topic, ids in accepted.items():
        far = b if near[topic] is a else a
        wait_until(lambda: set(ids) <= {each.id for each in far.notifications()}, lambda: _missing(ids, far))  # noqa: B023  # called at once
        known = set(ids)
        assert [each.id for each in far.notifications() if each.id in known] == ids, "once, and in order"
        wait_until(lambda: known <= set(receiver.names(f"/{far.name}")))  # noqa: B023  # called at once
        assert list(dict.fromkeys(each for each in receiver.names(f"/{far.name}") if each in known)) == ids


@pytest.mark.parametrize("alone", [False, True])
def test_messages_in_parts_reach_old_and_new_subscribers_elsewhere(pair: Pair, alone: bool) -> None:
    """Of an old publisher, assembled where they are accepted or, with p = 1, each part alone. The topic has the routing
    word split in both trees: old subscribers get parts."""
    got: dict[str, list[ReceivedMessage]] = {"old": [], "old apart": [], "new": [], "new apart": []}
    old, new = Listener(got["old"].append), Listener(got["new"].append)
    old_apart = Listener(got["old apart"].append, parts="apart")
    new_apart = Listener(got["new apart"].append, parts="apart")
    _, a, b = pair
    topic = "alone" if alone else "together"
    with old, old_apart, new, new_apart:
        for engine in (a, b):
            add_topic(engine, topic, "--routing", "everywhere split")
        with LegacyClient(b.gateway.base) as legacy_client, Client(b.gateway.broker) as client:
            for each in (old, old_apart):
                legacy_client.subscribe(topic, to=each.url)
            for each in (new, new_apart):
                client.subscribe(f"{topic}//.", to=each.url)
        wait_until(lambda: f"{topic}//." in carried(a, "peer-group.H"))
        contents = [f"<m n='{parts}'>{'é<v>some words</v>' * (60 * parts)}</m>" for parts in (1, 3, 10)]
        for number, content in enumerate(contents):
            for text in legacy.in_parts(topic, content, 2_000, alone=alone, identification=f"me:{number}"):
                assert "success!" in legacy.post(f"{a.gateway.base}/wsnprocess/", text).text
        for name in ("old", "new"):
            wait_until(lambda: len(got[name]) >= len(contents), lambda: got)  # noqa: B023  # called at once
            assert sorted(each.payload.decode() for each in got[name]) == sorted(contents)
        for name in ("old apart", "new apart"):
            wait_until(lambda: len("".join(_contents(got[name]))) >= len("".join(contents)), lambda: got)  # noqa: B023  # called at once
            assert sorted(_contents(got[name])) == sorted(contents)
        assert all(len(each.payload) <= _SPLIT_BYTES for each in got["old apart"])
        assert len(got["old apart"]) > len(contents)
        # A new subscriber gets the publisher's parts with their numbers; an assembled message is no part.
        assert all((each.part is not None) == alone for each in got["new apart"])
        assert (len(got["new apart"]) > len(contents)) == alone


def _datagrams(engine: EngineRun) -> list[str]:
    """The numbers of datagrams, by outcome."""
    page = engine.gateway.session.get(f"{engine.gateway.base}/metrics", timeout=60).text
    return [line for line in page.splitlines() if line.startswith("arborcast_federation_datagrams_total{")]


def test_within_a_group_fast_topics_leave_as_datagrams_and_others_are_confirmed(
    tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver
) -> None:
    """Small ones of a topic with the routing word fast, unless they are reliable; with the same ids, and their
    transport in the rows."""
    with federation(tmp_path, kafka_settings, ["G/a", "G/b"], jobs=True, datagrams=True) as (administrator, (a, b)):
        assert all(each.datagram_port for each in administrator.topology.members)
        add_topic(a, "fast", "--routing", "group fast")
        subscribe(b, "fast//.", receiver.url("/b"))
        subscribe(b, "sure//.", receiver.url("/b"))
        wait_until(lambda: linked(a, "peer-fast.b", "fast//.", "sure//."), a.gateway.log.read_text)
        wait_until(lambda: linked(a, "peer-b", "fast//.", "sure//."))
        small: list[str] = []
        confirmed: list[str] = []
        with Client(a.gateway.broker) as client:
            for number in range(50):
                small.append(client.notify("fast/x", f"<n>{number}</n>"))
                confirmed.append(client.notify("sure/x", f"<n>{number}</n>"))
                time.sleep(0.02)
            confirmed.append(client.notify("fast/x", f"<n>{'1' * 20_000}</n>"))
            confirmed.append(client.notify("fast/x", "<n/>", reliable=True))
        wait_until(lambda: set(confirmed) <= set(receiver.names("/b")), lambda: _missing(confirmed, b))
        # On one machine none is lost, unless the kernel has had no room for it.
        arrived = 'arborcast_federation_datagrams_total{outcome="taken"}'
        wait_until(lambda: b.gateway.metric(arrived) == len(small), lambda: _datagrams(b))
        wait_until(lambda: set(small) <= set(receiver.names("/b")), lambda: _missing(small, b))
        ids = receiver.names("/b")
        assert len(ids) == len(set(ids)) == len(small) + len(confirmed)
        assert {each.path for each in b.notifications()} == {("G/a",)}

        def sent() -> dict[str, tuple[str, str, str]]:
            with LogScan(a.kafka, "attempts") as log:
                found = [row for each in log.read_all() for row in attempts.decode(each.value).attempts]
            rows = [row for row in found if row.subscription.startswith("peer-")]
            return {row.notification: (row.subscription, row.state, row.detail) for row in rows}

        wait_until(lambda: sent().keys() == {*small, *confirmed}, sent)
        said = "sent as a datagram, without confirmation"
        assert {sent()[each] for each in small} == {("peer-fast.b", "delivered", said)}
        assert {sent()[each][:2] for each in confirmed} == {("peer-b", "delivered")}


def test_an_engine_drops_notifications_that_it_refuses(pair: Pair, receiver: Receiver) -> None:
    """Its tree is fixed, or its topic has other message types: this is counted, and logged once; the rest arrives."""
    _, a, b = pair
    add_topic(b, "plant/known")
    add_topic(b, "plant/typed", "--type", "temperature")
    subscribe(b, "plant//.", receiver.url("/b"))
    wait_until(lambda: "plant//." in carried(a, "peer-group.H"))
    wanted: list[str] = []
    with Client(a.gateway.broker) as client:
        for number in range(40):
            wanted.append(client.notify("plant/known", f"<n>{number}</n>"))
            client.notify("plant/unknown", f"<n>{number}</n>")
            client.notify("plant/typed", f"<pressure>{number}</pressure>")
            wanted.append(client.notify("plant/typed", f"<temperature>{number}</temperature>"))
    wait_until(lambda: set(wanted) <= set(receiver.names("/b")), lambda: _missing(wanted, b))
    wait_until(lambda: b.gateway.metric('arborcast_federation_dropped_total{reason="topic"}') == 80)
    assert {each.id for each in b.notifications() if each.topic.startswith("plant/")} == set(wanted)
    for topic in ("plant/known", "plant/typed"):
        ids = [each.id for each in b.notifications() if each.topic == topic]
        assert ids == [each for each in wanted if each in set(ids)], "in order, and once"
    log = b.gateway.log.read_text()
    for topic in ("plant/unknown", "plant/typed"):
        assert log.count(f"on the topic {topic} are dropped") == 1


def _contents(messages: list[ReceivedMessage]) -> list[str]:
    """The texts of messages and of parts of messages, each message's parts in their order."""
    whole = [each.payload.decode() for each in messages if each.part is None]
    parts: dict[str, dict[int, bytes]] = {}
    for each in messages:
        if each.part is not None:
            parts.setdefault(each.part.identification, {})[each.part.fragment.number] = each.part.content
    return [*whole, *(b"".join(found[key] for key in sorted(found)).decode() for found in parts.values())]


def _from_others(engine: EngineRun) -> list[str]:
    """The ids of notifications from other engines."""
    return [each.id for each in engine.notifications() if each.path]


def _publish(engine: EngineRun, accepted: list[str], stop: threading.Event, topic: str = "load/x") -> None:
    with Client(engine.gateway.broker) as client:
        while not stop.is_set():
            try:
                accepted.append(client.notify(topic, "<x/>"))
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
