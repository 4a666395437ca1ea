"""The gateway process over a real broker."""

from __future__ import annotations

import dataclasses
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.client import BrokerUnavailable, Client, ClientError, FaultReceived, Retries
from arborcast.core.eventlog.client import make_producer
from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.broker import BrokerProcess, notifications_in, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.process import killed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


def payloads(kafka: KafkaSettings) -> list[str]:
    return [one.payload.decode() for one in notifications_in(kafka)]


@contextmanager
def publishers(url: str) -> Iterator[list[str]]:
    """Four publishers, each until its first failure; the payloads that were accepted."""
    accepted: list[str] = []

    def publish(number: int) -> None:
        with suppress(ClientError), Client(url, retries=Retries(attempts=1)) as client:
            for count in itertools.count():
                payload = f"<n>{number}-{count}</n>"
                client.notify("a/b", payload)
                accepted.append(payload)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    yield accepted
    for thread in threads:
        thread.join()


@pytest.mark.chaos
def test_no_accepted_notification_is_lost_by_kill_9(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    """Nor a subscription, nor the end of one. Then SIGTERM, which does not wait for an idle connection."""
    with gateway_run(tmp_path, kafka_settings, request_timeout_s=600) as gateway:
        with Client(gateway.base) as client:
            kept = client.subscribe("a//.", to="http://127.0.0.1:9/kept")
            ended = client.subscribe("a//.", to="http://127.0.0.1:9/ended")
            client.unsubscribe(ended.address)
        with publishers(gateway.base) as accepted:
            gateway.wait_for(lambda: len(accepted) > 200, "200 accepted messages")
            gateway.kill()
        found = payloads(kafka_settings)
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
        with socket.create_connection(("127.0.0.1", gateway.port)), publishers(gateway.base) as accepted:
            gateway.wait_for(lambda: len(accepted) > 50, "under load")
            assert gateway.stop() == 0
    assert set(accepted) <= set(payloads(kafka_settings)[len(found) :])


@pytest.mark.chaos
def test_an_outage_of_kafka_is_503_until_its_end(tmp_path: Path, own_broker: BrokerProcess) -> None:
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
        found = payloads(settings)
        assert (found[0], found[-1]) == ("<n>before</n>", "<n>after</n>")
        assert gateway.metric("arborcast_gateway_unacknowledged_bytes") == 0

        with closing(make_producer(settings)) as producer:
            producer.send(settings.topic("control"), key=b"topic:x", value=b'{"v":99,"record":{}}')
            producer.flush(120)
        wait_until(lambda: gateway.ended is not None, gateway.text)
        assert gateway.ended == 1
        assert "version 99" in gateway.text()
        assert "Traceback" not in gateway.text()


@pytest.mark.chaos
def test_the_gateway_stops_within_seconds_also_without_kafka(tmp_path: Path, own_broker: BrokerProcess) -> None:
    settings = dataclasses.replace(settings_for(own_broker), request_timeout_s=300)
    with gateway_run(tmp_path, settings) as gateway:
        own_broker.kill()
        # One request that waits for the broker, whatever its end.
        body = soap.envelope(soap.subscribe())
        waiting = socket.create_connection(("127.0.0.1", gateway.port))
        head = f"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        waiting.sendall(head.encode() + body)
        assert gateway.stop() == 0
        with waiting:
            assert waiting.recv(1024).startswith(b"HTTP/1.1 503")


@pytest.mark.long
@pytest.mark.chaos
def test_the_gateway_waits_for_a_kafka_that_starts_later(tmp_path: Path, own_broker: BrokerProcess) -> None:
    own_broker.stop()
    settings = dataclasses.replace(settings_for(own_broker), request_timeout_s=2)
    with killed(GatewayRun(tmp_path, settings)) as gateway:
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
