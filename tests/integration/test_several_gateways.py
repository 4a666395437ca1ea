"""Two gateways of one engine, as behind a load balancer: one view, and exclusive duties."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.admin.control_log import read_tree
from arborcast.client import Client, ClientError, FuturesClient
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.engine.gateway import lease
from arborcast.engine.gateway.lease import LeaseRecord
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records import fragments
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.broker import notifications_in, records_in
from tests.support.gateway_process import GatewayRun, gateway_run, post

pytestmark = [pytest.mark.kafka]

Pair = tuple[GatewayRun, GatewayRun]

# A single record may arrive in time without the wait for the other gateway's changes.
ROUNDS = 20


@pytest.fixture(scope="module")
def settings(kafka: KafkaSettings) -> KafkaSettings:
    return dataclasses.replace(kafka, prefix="pair.")


@contextmanager
def two_gateways(folder: Path, settings: KafkaSettings) -> Iterator[Pair]:
    """They write the same file of topics, in this folder."""
    file, more = folder / "topics.ldif", "[fragments]\ntimeout_s = 5\n"
    with (
        gateway_run(folder / "a", settings, directory=file, expiry_grace_s=0, more=more) as one,
        gateway_run(folder / "b", settings, directory=file, expiry_grace_s=0, more=more) as other,
    ):
        yield one, other


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, settings: KafkaSettings) -> Iterator[Pair]:
    ensure_topics(settings)
    with closing(ControlLog(settings)) as log:
        log.append([TopicRecord(TopicPath("kept"), policy=TopicPolicy(retain=True))])
    with two_gateways(tmp_path_factory.mktemp("pair"), settings) as started:
        yield started


def lease_held(gateway: GatewayRun) -> bool:
    return gateway.metric("arborcast_gateway_lease_held") == 1


def leases(settings: KafkaSettings) -> list[LeaseRecord]:
    return [lease.decode(record.key or b"", record.value) for record in records_in(settings, "lease")]


def at(gateway: GatewayRun, address: str, made_by: GatewayRun) -> str:
    """The URL that a load balancer would have sent to this gateway."""
    return address.replace(made_by.base, gateway.base)


def current(gateway: GatewayRun) -> str:
    """The current message of the retained topic."""
    return post(gateway.broker, f"<wsnt:GetCurrentMessage>{soap.topic('kept')}</wsnt:GetCurrentMessage>").text


def test_an_answered_change_applies_at_the_other_gateway(pair: Pair) -> None:
    one, other = pair
    with Client(one.broker) as first, Client(other.broker) as second:
        for number in range(ROUNDS):
            made = first.subscribe("a//.", to=f"http://127.0.0.1:9/{number}", lasts=timedelta(hours=1))
            there = at(other, made.address, one)
            second.pause(there)
            renewed = first.renew(made.address, timedelta(hours=2))
            assert renewed is not None
            # The renewal was written after the pause.
            again = second.subscribe("a//.", to=f"http://127.0.0.1:9/{number}", lasts=timedelta(hours=1))
            assert again.address.rpartition("/")[2] == made.address.rpartition("/")[2], "not a second subscription"
            second.unsubscribe(there)
            with pytest.raises(ClientError):
                first.renew(made.address, timedelta(hours=1))
            point = second.create_pull_point()
            assert first.get_messages(at(one, point.address, other)) == []
            first.destroy_pull_point(at(one, point.address, other))
            with pytest.raises(ClientError):
                second.get_messages(point.address)
            first.notify("kept", f"<n>{number}</n>")
            assert f"<n>{number}</n>" in current(other)


def test_messages_of_a_pull_point_are_pulled_once_from_two(pair: Pair) -> None:
    one, other = pair
    with Client(one.broker) as client:
        point = client.create_pull_point()
        for start in range(0, 300, 30):
            client.notify_all([("a", f"<n>{number}</n>") for number in range(start, start + 30)], to=point)
    fetched: list[list[bytes]] = [[], [], [], []]

    def fetch(which: int, address: str) -> None:
        with Client(address) as client:
            while sum(map(len, fetched)) < 300:
                fetched[which] += [each.payload for each in client.get_messages(address, 5, wait_s=0.5)]

    addresses = (point.address, at(other, point.address, one))
    threads = [threading.Thread(target=fetch, args=(number, addresses[number % 2])) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*fetched)) == sorted(b"<n>%d</n>" % number for number in range(300))
    with Client(one.broker) as client:
        assert [client.get_messages(each) for each in addresses] == [[], []]


@pytest.mark.chaos
def test_duties_of_a_killed_gateway_are_taken_over(pair: Pair, settings: KafkaSettings) -> None:
    """Expiry, the directory, and incomplete messages in parts."""
    pair[0].wait_for(lambda: any(map(lease_held, pair)), "the lease is taken")
    holder, other = pair if lease_held(pair[0]) else pair[::-1]
    assert not lease_held(other)
    for gateway, number in zip(pair, (0, 3), strict=True):
        text = legacy.notify("open", "<half", f"1-1-0-{number}", "lost:1")
        assert "success!" in legacy.post(f"{gateway.base}/wsnprocess/", text).text
    before, file = current(holder), holder.config.parents[1] / "topics.ldif"
    holder.kill()
    with Client(other.broker) as client:
        client.subscribe("a", to="http://127.0.0.1:9/", lasts=timedelta(seconds=1))
        assert other.metric("arborcast_subscriptions") == 1
        other.wait_for(lambda: lease_held(other), "taken over")
        other.wait_for(lambda: other.metric("arborcast_subscriptions") == 0, "expired subscriptions have ended")
        client.notify("fresh", "<x/>")
        other.wait_for(lambda: file.exists() and "fresh" in file.read_text(), "the directory is written")
    other.wait_for(lambda: other.metric("arborcast_fragments_given_up") == 1, "given up")
    assert other.metric("arborcast_fragments_open") == 0
    stored = [fragments.decode(record.key, record.value) for record in records_in(settings, "fragments")]
    (given_up,) = [each for each in stored if isinstance(each, fragments.GivenUp)]
    assert (given_up.identification, given_up.had, given_up.missing, given_up.reason) == (
        "lost:1",
        "0 3",
        "1-2 4-",
        "time",
    )
    candidates = {each.holder for each in leases(settings)}
    holder.start()
    assert holder.metric("arborcast_fragments_open") == 0, "given up in its view, too"
    assert current(holder) == before
    assert not [each for each in notifications_in(settings) if each.topic == "open"]

    def decisions() -> list[int]:
        """The terms that the restarted gateway has written to the lease; 0 claims none."""
        return [each.term for each in leases(settings) if each.holder not in candidates]

    holder.wait_for(decisions, "the lease is read")
    assert not any(decisions()), "a restart takes over no duties"
    assert not lease_held(holder)


@pytest.mark.long
def test_codes_from_places_are_given_once(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARBORCAST_TOPICS_CODES", "position")
    seen: dict[str, str] = {}

    def codes() -> dict[str, str]:
        found: dict[str, str] = {each.path: each.code for each in read_tree(kafka_settings).records()}
        kept = {path: found[path] for path, code in seen.items() if code}
        assert kept == {path: code for path, code in seen.items() if code}, "codes do not change"
        seen.update(found)
        return found

    def settled(topics: int) -> bool:
        found = codes()
        assert len(set(found.values()) - {""}) == sum(map(bool, found.values())), "codes are unique"
        return len(found) == topics and all(found.values())

    with two_gateways(tmp_path, kafka_settings) as (one, other):
        one.wait_for(lambda: lease_held(one), "the first gateway has the lease")
        with FuturesClient(one.broker) as first, FuturesClient(other.broker) as second:
            for number in range(100):
                first.notify(f"a/n{number % 7}/x{number}", "<x/>")
                second.notify(f"a/n{number % 5}/y{number}", "<x/>")
                if number == 50:
                    codes()
        other.wait_for(lambda: settled(200), "codes of all topics")
        with Client(other.broker) as client:
            client.notify("a/n1", "<x/>")
            one.kill()
            client.notify("a/n2", "<x/>")
        other.wait_for(lambda: settled(202), "a code of the last topic")
    found = codes()
    below = {found[path].rpartition(".")[0] for path in found if path.startswith("a/n1/")}
    assert below == {found["a/n1"]}, "the node had that place before it was a topic"
