"""Pull points of a real gateway process over real Kafka: order, restarts, kills. For several gateways see
test_several_gateways.py."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import requests
from lxml import etree

from arborcast.admin.subscriptions import pull_point
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.engine.settings.loading import load_settings
from arborcast.ingest.operations.pull_points import PULL
from arborcast.topic_model.records.pull import StoredMessage, encode
from tests.support import soap_messages as soap
from tests.support.gateway_process import GatewayRun, address, gateway_run, post
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def settings(kafka: KafkaSettings) -> KafkaSettings:
    return dataclasses.replace(kafka, prefix="pull-points.")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, settings: KafkaSettings) -> Iterator[GatewayRun]:
    """Messages beyond its memory are read from the log."""
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_run(folder, settings, pull_claim_s=3, pull_messages=2_000, pull_memory_bytes=8_000) as run:
        yield run


def create(gateway: GatewayRun, attributes: str = "") -> str:
    return address(post(f"{gateway.base}/wsn/CreatePullPoint", f"<wsnt:CreatePullPoint {attributes}/>"))


def fill(url: str, *numbers: int) -> None:
    post(url, soap.notify(*(soap.message(payload=f"<n>{number}</n>") for number in numbers)))


def pull(url: str, maximum: int = 0, wait: str = "PT0S") -> list[int]:
    body = f'<wsnt:GetMessages xmlns:p="{PULL}" p:Wait="{wait}">'
    answer = post(url, f"{body}<wsnt:MaximumNumber>{maximum}</wsnt:MaximumNumber></wsnt:GetMessages>")
    return [int(element.text or "") for element in etree.fromstring(answer.content).iterfind(".//n")]


@pytest.mark.chaos
def test_kill_9_keeps_waiting_messages_in_order(gateway: GatewayRun) -> None:
    url = create(gateway, 'pullPointQueueName="orders"')
    for start in range(0, 100, 10):
        fill(url, *range(start, start + 10))
    assert pull(url, 25) == list(range(25))
    gateway.wait_for(lambda: gateway.metric("arborcast_pull_claims") == 0, "settled")
    gateway.kill()
    gateway.start()
    assert create(gateway, 'pullPointQueueName="orders"') == url
    assert pull(url, 25) == list(range(25, 50))
    assert pull(url) == list(range(50, 100))
    assert pull(url) == []


@pytest.mark.chaos
def test_kill_9_in_the_middle_of_fetching_loses_nothing(gateway: GatewayRun, settings: KafkaSettings) -> None:
    """The oldest messages of a full pull point are dropped before, and counted."""
    url = create(gateway)
    key = url.rpartition("/")[2]
    with closing(LogWriter(settings, PULL_LOG)) as writer:
        writer.append_encoded([encode(key, StoredMessage(f"<m><n>{n}</n></m>".encode())) for n in range(2_010)])

    def logged() -> int:
        """The number of dropped messages in the log, which is written once a second."""
        return sum(map(int, re.findall(r"(\d+) messages were dropped", gateway.text())))

    gateway.wait_for(lambda: logged() == 10, "in the log")
    assert gateway.metric("arborcast_pull_dropped_messages_total") == 10
    assert gateway.metric("arborcast_pull_memory_bytes") <= 8_000
    fetched: list[int] = []

    def fetch() -> None:
        with suppress(requests.RequestException):
            while numbers := pull(url, 7):
                fetched.extend(numbers)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    gateway.wait_for(lambda: len(fetched) > 300, "300 fetched messages")
    gateway.kill()
    for thread in threads:
        thread.join()
    before = len(fetched)
    assert len(set(fetched)) == before, "repeated without a kill"
    gateway.start()

    def all_there() -> bool:
        fetched.extend(pull(url, wait="PT1S"))
        return len(set(fetched)) >= 2_000

    wait_until(all_there, lambda: f"{len(set(fetched))} of 2000")
    assert len(fetched) <= 2_000 + 4 * 7 * 2, "only messages in flight at the kill are repeated"
    assert set(fetched) == set(range(10, 2_010))


def test_hundreds_of_waiting_requests_do_not_block_the_gateway(gateway: GatewayRun) -> None:
    url = create(gateway)
    body = soap.envelope(f'<wsnt:GetMessages xmlns:p="{PULL}" p:Wait="PT60S"/>')
    refused: list[int] = []

    def wait() -> None:
        refused.append(requests.post(url, data=body, timeout=120).status_code)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(100)]
    for thread in threads:
        thread.start()
    gateway.wait_for(lambda: gateway.metric("arborcast_pull_waiting_clients") == 100, "waiting")
    other = create(gateway)
    fill(other, 1)
    assert pull(other) == [1]
    post(url, "<wsnt:DestroyPullPoint/>")
    for thread in threads:
        thread.join(120)
    assert refused == [500] * 100


def test_an_operator_sees_the_messages_of_one_pull_point_and_their_last_fetch(gateway: GatewayRun) -> None:
    settings = load_settings(gateway.config, environ={})
    url = create(gateway)
    name = url.rpartition("/")[2]
    fill(url, 1, 2, 3)
    before = pull_point(settings, name)
    assert (before.messages, before.in_transit, before.fetched_ms) == (3, 0, 0)
    assert pull(url, 2) == [1, 2]
    after = pull_point(settings, name)
    assert (after.messages, 3 * after.bytes) == (1, before.bytes)
    assert 0 < before.oldest_ms <= after.oldest_ms <= after.fetched_ms
    post(url, "<wsnt:DestroyPullPoint/>")
    with pytest.raises(InfrastructureError, match="the gateway"):
        pull_point(settings, name)
