"""Two gateways of one engine, as behind a load balancer: one view, and one does what must be done once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.admin.control_log import read_tree
from arborcast.client import Client, ClientError, FuturesClient
from arborcast.core.settings import KafkaSettings
from tests.support.gateway_process import GatewayRun, gateway_run

pytestmark = [pytest.mark.kafka]

# More than a record needs to travel by itself would make the test pass without any care.
ROUNDS = 60


@pytest.fixture
def pair(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[GatewayRun, GatewayRun]]:
    monkeypatch.setenv("ARBORCAST_TOPICS_CODES", "position")
    monkeypatch.setenv("ARBORCAST_DIRECTORY_FILE", str(tmp_path / "topics.ldif"))
    with (
        gateway_run(tmp_path / "a", kafka_settings, directory="file", expiry_grace_s=0) as one,
        gateway_run(tmp_path / "b", kafka_settings, directory="file", expiry_grace_s=0) as other,
    ):
        yield one, other


def duties(gateway: GatewayRun) -> bool:
    return gateway.metric("arborcast_gateway_duties") == 1


def at(gateway: GatewayRun, address: str, made_by: GatewayRun) -> str:
    """The address that a load balancer would have sent to this gateway."""
    return address.replace(made_by.base, gateway.base)


def test_an_answered_change_applies_at_the_other_gateway(pair: tuple[GatewayRun, GatewayRun]) -> None:
    one, other = pair
    with Client(one.broker) as first, Client(other.broker) as second:
        for number in range(ROUNDS):
            made = first.subscribe("a//.", to=f"http://127.0.0.1:9/{number}", lasts=timedelta(hours=1))
            there = at(other, made.address, one)
            second.pause(there)
            renewed = first.renew(made.address, timedelta(hours=2))
            assert renewed is not None
            # The renewal was written by one that knew of the pause: resuming and ending need not be told twice.
            again = second.subscribe("a//.", to=f"http://127.0.0.1:9/{number}", lasts=timedelta(hours=1))
            assert again.address.rpartition("/")[2] == made.address.rpartition("/")[2], "an equal one is the same one"
            second.unsubscribe(there)
            with pytest.raises(ClientError):
                first.renew(made.address, timedelta(hours=1))
            point = second.create_pull_point()
            assert first.get_messages(at(one, point.address, other)) == []
            first.destroy_pull_point(at(one, point.address, other))
            with pytest.raises(ClientError):
                second.get_messages(point.address)


def test_duties_are_taken_over_from_one_that_was_killed(tmp_path: Path, pair: tuple[GatewayRun, GatewayRun]) -> None:
    one, other = pair
    one.wait_for(lambda: duties(one), "the first has them")
    assert not duties(other)
    one.kill()
    with Client(other.broker) as client:
        client.subscribe("a", to="http://127.0.0.1:9/", lasts=timedelta(seconds=1))
        assert other.metric("arborcast_subscriptions") == 1
        other.wait_for(lambda: duties(other), "taken over")
        other.wait_for(lambda: other.metric("arborcast_subscriptions") == 0, "what has expired is ended")
        client.notify("fresh", "<x/>")
        file = tmp_path / "topics.ldif"
        other.wait_for(lambda: file.exists() and "fresh" in file.read_text(), "the directory is written")
    one.start()
    time.sleep(1.5)  # long enough for a wrong claim
    assert not duties(one), "who comes back does not take them away"


@pytest.mark.long
def test_codes_from_places_are_given_by_one_of_them_whichever_that_is(
    kafka_settings: KafkaSettings, pair: tuple[GatewayRun, GatewayRun]
) -> None:
    one, other = pair
    seen: dict[str, str] = {}

    def codes() -> dict[str, str]:
        found: dict[str, str] = {each.path: each.code for each in read_tree(kafka_settings).records()}
        kept = {path: found[path] for path, code in seen.items() if code}
        assert kept == {path: code for path, code in seen.items() if code}, "none changes"
        seen.update(found)
        return found

    def settled(topics: int) -> bool:
        found = codes()
        assert len(set(found.values()) - {""}) == sum(map(bool, found.values())), "none is given twice"
        return len(found) == topics and all(found.values())

    one.wait_for(lambda: duties(one), "the first has them")
    with FuturesClient(one.broker) as first, FuturesClient(other.broker) as second:
        for number in range(100):
            first.notify(f"a/n{number % 7}/x{number}", "<x/>")
            second.notify(f"a/n{number % 5}/y{number}", "<x/>")
            if number == 50:
                codes()
    other.wait_for(lambda: settled(200), "all have codes")
    with Client(other.broker) as client:
        client.notify("a/n1", "<x/>")
        one.kill()
        client.notify("a/n2", "<x/>")
    other.wait_for(lambda: settled(202), "the last one has a code")
    found = codes()
    below = {found[path].rpartition(".")[0] for path in found if path.startswith("a/n1/")}
    assert below == {found["a/n1"]}, "the node had that place before it was a topic"
