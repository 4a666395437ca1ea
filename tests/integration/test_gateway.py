"""The gateway process over a real broker."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.client import BrokerUnavailable, Client, ClientError, FaultReceived, Retries
from arborcast.core.eventlog.client import make_producer
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.kafka_broker import KafkaBroker
from tests.support import soap_messages as soap
from tests.support.broker import notifications_in, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run

pytestmark = pytest.mark.kafka


@pytest.fixture
def gateway(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[GatewayRun]:
    with gateway_run(tmp_path, kafka_settings) as run:
        yield run


@pytest.mark.chaos
def test_no_accepted_notification_is_lost_by_kill_9(gateway: GatewayRun, kafka_settings: KafkaSettings) -> None:
    """Nor a subscription, nor the end of one."""
    with Client(gateway.base) as client:
        kept = client.subscribe("a//.", to="http://127.0.0.1:9/kept")
        ended = client.subscribe("a//.", to="http://127.0.0.1:9/ended")
        client.unsubscribe(ended.address)
    accepted: list[str] = []

    def publish(publisher: int) -> None:
        with Client(gateway.base) as own:
            for number in range(10_000):
                payload = f"<n>{publisher}-{number}</n>"
                try:
                    own.notify("a/b", payload)
                except ClientError:
                    return
                accepted.append(payload)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    gateway.wait_for(lambda: len(accepted) > 200, "under way")
    gateway.kill()
    for thread in threads:
        thread.join()
    found = [one.payload.decode() for one in notifications_in(kafka_settings)]
    assert set(accepted) <= set(found)
    assert len(set(found)) == len(found)
    for publisher in range(4):
        own = [payload for payload in found if payload.startswith(f"<n>{publisher}-")]
        assert own == [f"<n>{publisher}-{number}</n>" for number in range(len(own))]

    gateway.start()
    with Client(gateway.base) as client:
        assert client.subscribe("a//.", to="http://127.0.0.1:9/kept").address == kept.address
        client.renew(kept.address, timedelta(minutes=1))
        with pytest.raises(FaultReceived) as caught:
            client.unsubscribe(ended.address)
    assert caught.value.fault == "ResourceUnknownFault"


@pytest.mark.chaos
def test_kafka_away_is_503_until_it_is_back(tmp_path: Path, own_broker: KafkaBroker) -> None:
    settings = dataclasses.replace(settings_for(own_broker), request_timeout_s=2)
    with (
        gateway_run(tmp_path, settings) as gateway,
        Client(gateway.base, retries=Retries(attempts=50)) as client,
        Client(gateway.base, retries=Retries(attempts=1)) as hasty,
    ):
        subscription = client.subscribe("a//.", to="http://127.0.0.1:9/")
        client.notify("a/b", "<n>before</n>")
        own_broker.kill()
        for call in (
            lambda: hasty.notify("a/b", "<n>while away</n>"),
            lambda: hasty.notify("new/topic", "<n>while away</n>"),
            lambda: hasty.subscribe("b", to="http://127.0.0.1:9/"),
            lambda: hasty.unsubscribe(subscription.address),
        ):
            with pytest.raises(BrokerUnavailable) as caught:
                call()
            assert caught.value.retry_after is not None
        assert gateway.health("live") == 200
        gateway.wait_for(lambda: gateway.health("ready") == 503, "aware that Kafka is away")

        own_broker.start()
        gateway.wait_for(lambda: gateway.health("ready") == 200, "ready again")
        client.notify("a/b", "<n>after</n>")
        client.renew(subscription.address, timedelta(minutes=1))
        payloads = [one.payload for one in notifications_in(settings)]
        assert payloads[0] == b"<n>before</n>"
        assert payloads[-1] == b"<n>after</n>"
        assert gateway.metric("arborcast_gateway_unacknowledged_bytes") == 0


@pytest.mark.chaos
def test_it_stops_within_seconds_also_while_kafka_is_away(tmp_path: Path, own_broker: KafkaBroker) -> None:
    settings = dataclasses.replace(settings_for(own_broker), request_timeout_s=300)
    with gateway_run(tmp_path, settings) as gateway:
        own_broker.kill()
        # One request that waits for the broker, in whatever way it ends.
        body = soap.envelope(soap.subscribe())
        waiting = socket.create_connection(("127.0.0.1", gateway.port))
        head = f"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        waiting.sendall(head.encode() + body)
        assert gateway.stop() == 0
        waiting.close()


@pytest.mark.long
@pytest.mark.chaos
def test_it_waits_for_a_kafka_that_comes_later(tmp_path: Path, own_broker: KafkaBroker) -> None:
    own_broker.stop()
    gateway = GatewayRun(tmp_path, dataclasses.replace(settings_for(own_broker), request_timeout_s=2))
    try:
        gateway.start(ready=False)
        gateway.wait_for(lambda: gateway.health("live") == 200, "alive")
        assert gateway.health("ready") == 503
        with Client(gateway.base) as client, pytest.raises(BrokerUnavailable):
            client.notify("a/b", "<n/>")
        own_broker.start()
        gateway.wait_for(lambda: gateway.health("ready") == 200, "ready")
        with Client(gateway.base) as client:
            client.notify("a/b", "<n/>")
        assert gateway.stop() == 0
    finally:
        gateway.kill()


def test_it_stops_within_seconds_also_under_load(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    stopping = threading.Event()

    def publish() -> None:
        with Client(patient.base) as own:
            while not stopping.is_set():
                try:
                    own.notify("a/b", "<n/>")
                except ClientError:
                    return

    # An idle connection may stay for longer than we wait for the end.
    with gateway_run(tmp_path, kafka_settings, request_timeout_s=600) as patient:
        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        idle = socket.create_connection(("127.0.0.1", patient.port))
        patient.wait_for(lambda: patient.metric("arborcast_gateway_notify_seconds_count") > 50, "under load")
        assert patient.stop() == 0
        stopping.set()
        for thread in threads:
            thread.join()
        idle.close()


def test_a_record_of_a_newer_version_stops_it_with_a_clear_message(
    gateway: GatewayRun, kafka_settings: KafkaSettings
) -> None:
    producer = make_producer(kafka_settings)
    producer.send(kafka_settings.topic("control"), key=b"topic:x", value=b'{"v":99,"record":{}}')
    producer.flush(120)
    producer.close()
    assert gateway._process is not None
    assert gateway._process.wait(120) == 1
    assert "version 99" in gateway.log.read_text()
    assert "Traceback" not in gateway.log.read_text()
