"""Pushes to a real MQTT broker, and to sockets that behave as slow, old or stopped brokers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paho.mqtt.client import Client

from arborcast.core.mqtt.settings import EXPIRES_HEADER, MqttSettings
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.delivery.transport.mqtt import WithMqtt
from arborcast.dispatch.settings import PushSettings
from tests.support.certificates import Certificates
from tests.support.mosquitto import Mosquitto, MosquittoInstall, running_mosquitto
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver, refusing_url
from tests.support.scripted_server import ScriptedServer
from tests.support.transports import finish, push
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PUSH = PushSettings(connect_timeout_s=20.0, total_timeout_s=60.0, keep_response_bytes=100)

Make = Callable[..., WithMqtt]


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[WithMqtt] = []

    def build(url: str, pushes: PushSettings = PUSH, policy: AddressPolicy = THIS_MACHINE, **more: str) -> WithMqtt:
        settings = MqttSettings(url=url, **more)  # type: ignore[arg-type]  # all are strings
        opened.append(WithMqtt(CurlTransport(pushes, policy), pushes, policy, settings))
        return opened[-1]

    yield build
    for transport in opened:
        transport.close()


def pushed(transport: WithMqtt, url: str, body: bytes = b"<x/>", *headers: tuple[str, str]) -> PushResult:
    return push(transport, url, body, headers)


def test_the_puback_is_the_result_and_headers_are_properties(mosquitto: Mosquitto, make: Make) -> None:
    transport = make(mosquitto.url, client_id="plant")
    with mosquitto.subscriber("#") as subscriber:
        headers = (("Content-Type", "application/xml"), ("Arborcast-Notification-Id", "n1"))
        expires = (EXPIRES_HEADER, str(int((time.time() + 3_600) * 1000)))
        assert pushed(transport, f"{mosquitto.url}/a/b%20%C3%A9", "<ü/>".encode(), *headers, expires).status == 200
        assert pushed(transport, f"{mosquitto.url}/a/kept?retain", b"text").status == 200
        first, second = subscriber.wait_for_number(2)
    assert (first.topic, first.payload, first.retained) == ("a/b é", "<ü/>", False)
    assert first.properties["Arborcast-Notification-Id"] == "n1"
    assert first.properties["Arborcast-Engine"] == "plant"
    assert 3_000 < int(first.expiry) <= 3_600
    assert (second.topic, second.payload) == ("a/kept", "text")
    with mosquitto.subscriber("#") as later:
        (kept,) = later.wait_for_number(1)
    assert (kept.topic, kept.retained) == ("a/kept", True)


@pytest.mark.parametrize("until_ms", [1, 253_402_300_799_999])
def test_ends_of_validity_in_the_past_and_in_the_far_future(mosquitto: Mosquitto, make: Make, until_ms: int) -> None:
    expires = (EXPIRES_HEADER, str(until_ms))
    assert pushed(make(mosquitto.url), f"{mosquitto.url}/a", b"x", expires).status == 200


def test_a_property_that_is_too_long_is_a_failure(mosquitto: Mosquitto, make: Make) -> None:
    transport = make(mosquitto.url)
    assert pushed(transport, f"{mosquitto.url}/a", b"x", ("Arborcast-Topic", "x" * 70_000)).failure == "address"
    assert pushed(transport, f"{mosquitto.url}/a").status == 200


def test_a_message_of_four_megabytes(mosquitto: Mosquitto, make: Make) -> None:
    with mosquitto.subscriber("large") as subscriber:
        assert pushed(make(mosquitto.url), f"{mosquitto.url}/large", b"x" * 4_000_000).status == 200
        (received,) = subscriber.wait_for_number(1)
    assert len(received.payload) == 4_000_000


def test_refused_messages_do_not_end_the_connection(
    mosquitto_install: MosquittoInstall, tmp_path: Path, make: Make
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite allowed/#\n")
    limits = f"acl_file {acl}\nmax_packet_size 3000\nretain_available false\n"
    with running_mosquitto(mosquitto_install, tmp_path / "m", limits) as broker:
        transport, url = make(broker.url), f"{broker.url}/allowed/a"
        refused = pushed(transport, f"{broker.url}/forbidden")
        assert (refused.status, refused.response) == (403, b"MQTT 0x87: Not authorized")
        assert classify(refused).error == "client-error"
        large = pushed(transport, url, b"x" * 3_000)
        assert (large.status, large.response) == (413, b"the broker takes 3000 bytes at most")
        assert pushed(transport, url, b"x" * 2_500).status == 200
        for _ in range(2):
            kept = pushed(transport, f"{url}?retain")
            assert (kept.status, kept.response) == (500, b"the broker retains no messages")
            assert pushed(transport, url).status == 200
    text = broker.text()
    assert text.count("New client connected") == 1, text


def test_receive_maximum_and_order(mosquitto_install: MosquittoInstall, tmp_path: Path, make: Make) -> None:
    with running_mosquitto(mosquitto_install, tmp_path / "m", "max_inflight_messages 3\n") as broker:
        transport, results = make(broker.url), list[PushResult]()
        with broker.subscriber("a") as subscriber:
            for number in range(200):
                transport.submit(PushRequest(f"{broker.url}/a", (), b"%d" % number), results.append)
            finish(transport)
            received = subscriber.wait_for_number(200)
    assert {each.status for each in results} == {200}
    assert [each.payload for each in received] == [str(number) for number in range(200)]


def test_user_and_password(mosquitto_install: MosquittoInstall, tmp_path: Path, make: Make) -> None:
    passwords = tmp_path / "passwords"
    mosquitto_install.write_password(passwords, "anna", "right")
    with running_mosquitto(mosquitto_install, tmp_path / "m", f"password_file {passwords}\n") as broker:
        refused = pushed(make(broker.url, user="anna", password="wrong"), f"{broker.url}/a")  # noqa: S106
        assert (refused.status, refused.failure) == (0, "connect")
        assert refused.detail == "127.0.0.1 refuses the connection: Not authorized"
        assert pushed(make(broker.url, user="anna", password="right"), f"{broker.url}/a").status == 200  # noqa: S106  # of a test user


def test_reconnect_after_a_restart_of_the_broker(mosquitto: Mosquitto, make: Make) -> None:
    transport = make(mosquitto.url)
    mosquitto.kill()
    away = pushed(transport, f"{mosquitto.url}/a")
    assert (away.status, away.failure) == (0, "connect")
    assert classify(away).endpoint_unreachable
    mosquitto.start()
    assert pushed(transport, f"{mosquitto.url}/a").status == 200
    mosquitto.kill()
    mosquitto.start()
    link = transport._link
    assert link is not None
    wait_until(lambda: link.events, "the loss is noticed")
    assert pushed(transport, f"{mosquitto.url}/a").status == 200, "the loss is no failure of the new connection"


class Broker(ScriptedServer):
    """Answers CONNECT with these bytes, and then nothing."""

    def __init__(self, connack: bytes) -> None:
        super().__init__(self._act, "mqtt")
        self._connack = connack

    def _act(self, connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(self._connack)
        while connection.recv(65_536):
            pass


def test_a_broker_with_an_earlier_version_only(make: Make) -> None:
    with Broker(b"\x20\x02\x00\x01") as old:
        result = pushed(make(old.url), f"{old.url}/a")
    assert result.failure == "connect"
    assert result.detail == (
        "127.0.0.1 does not speak MQTT 5, only an earlier version: the bridge needs a broker with MQTT 5"
    )


@pytest.mark.parametrize("connack", [b"\x20\x03\x00\x00\x00", b""], ids=["without PUBACK", "without CONNACK"])
def test_a_time_out_closes_the_connection_with_all_its_pushes(make: Make, connack: bytes) -> None:
    with Broker(connack) as slow:
        transport, results = make(slow.url, PushSettings(total_timeout_s=1.0)), list[PushResult]()
        for _ in range(3):
            transport.submit(PushRequest(f"{slow.url}/a", (), b"<x/>"), results.append)
        finish(transport)
        assert [each.failure for each in results] == ["timeout", "disconnected", "disconnected"]
        wait_until(lambda: slow.ended == slow.connections == 1, "the connection is closed")


def test_other_brokers_are_refused(make: Make) -> None:
    with Broker(b"") as own, Broker(b"") as other:
        result = pushed(make(own.url), f"{other.url}/a")
        assert (result.failure, "only to the broker of mqtt.url" in result.detail) == ("connect", True)
        assert (own.connections, other.connections) == (0, 0)


@pytest.mark.parametrize(
    ("host", "outbound", "why"),
    [
        ("127.0.0.1", OutboundSettings(scope="loopback", deny="127.0.0.0/8"), "outbound.deny"),
        ("127.0.0.1", OutboundSettings(scope="loopback", https_only=True), "must be an mqtts URL"),
        ("127.0.0.1", OutboundSettings(), "outbound.scope is public"),
        ("localhost.", OutboundSettings(scope="loopback", deny="127.0.0.0/8,::1/128"), ""),
    ],
)
def test_the_outbound_policy_applies(make: Make, host: str, outbound: OutboundSettings, why: str) -> None:
    with Broker(b"") as broker:
        url = broker.url.replace("127.0.0.1", host)
        result = pushed(make(url, policy=AddressPolicy(outbound)), f"{url}/a")
        assert (result.status, result.failure) == (0, "address")
        assert why in result.detail
        assert broker.connections == 0


@pytest.mark.parametrize("path", ["", "a%23", "a/%2B", "%24SYS/a", "%FF", "a%00"])
def test_invalid_mqtt_topics_are_failures(make: Make, path: str) -> None:
    with Broker(b"") as broker:
        assert pushed(make(broker.url), f"{broker.url}/{path}").failure == "address"
        assert broker.connections == 0


def test_over_tls_certificate_and_name_are_verified(
    mosquitto_install: MosquittoInstall, tmp_path: Path, certificates: Certificates, make: Make
) -> None:
    with running_mosquitto(mosquitto_install, tmp_path / "m", tls=certificates) as broker:
        url = broker.url.replace("127.0.0.1", "localhost")
        with broker.subscriber("a") as subscriber:
            assert pushed(make(url, ca_file=certificates.authority), f"{url}/a").status == 200
            subscriber.wait_for_number(1)
        for changes in ({}, {"ca_file": certificates.certificate("stranger")}):
            assert pushed(make(url, **changes), f"{url}/a").failure == "tls"
    certificates_elsewhere = tmp_path / "elsewhere"
    certificates_elsewhere.mkdir()
    for name, file in (("ca.pem", certificates.authority), ("server.pem", certificates.certificate("elsewhere"))):
        (certificates_elsewhere / name).write_bytes(Path(file).read_bytes())
    (certificates_elsewhere / "server.key").write_bytes(Path(certificates.key("elsewhere")).read_bytes())
    with running_mosquitto(mosquitto_install, tmp_path / "e", tls=Certificates(certificates_elsewhere)) as broker:
        result = pushed(make(broker.url, ca_file=certificates.authority), f"{broker.url}/a")
        assert (result.failure, "mismatch" in result.detail) == ("tls", True), result.detail


def test_mqtt_and_http_pushes_are_independent(mosquitto: Mosquitto, make: Make, receiver: Receiver) -> None:
    transport, order = make(mosquitto.url, PushSettings(total_timeout_s=3.0)), list[str]()
    transport.submit(PushRequest(receiver.url("/hang"), (), b""), lambda result: order.append(result.failure))
    transport.submit(PushRequest(f"{mosquitto.url}/a", (), b""), lambda result: order.append(str(result.status)))
    assert transport.in_flight == 2
    finish(transport)
    assert order == ["200", "timeout"], "neither waits for the other"
    with refusing_url() as url:
        assert pushed(transport, url).failure == "connect"


def test_close_while_the_thread_of_the_connection_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """paho-mqtt then joins a thread that it has forgotten. Otherwise a late PUBACK would end a task."""

    def stop_late(client: Client) -> None:
        for _ in range(2):
            client._thread.join()  # type: ignore[union-attr]  # None the second time

    monkeypatch.setattr(Client, "loop_stop", stop_late)
    with Broker(b"\x20\x03\x00\x00\x00") as broker:
        transport = make(broker.url, PushSettings(total_timeout_s=1.0))
        assert pushed(transport, f"{broker.url}/a").failure == "timeout"


def test_close_closes_the_connection(make: Make) -> None:
    with Broker(b"\x20\x03\x00\x00\x00") as broker:
        transport, results = make(broker.url), list[PushResult]()
        transport.submit(PushRequest(f"{broker.url}/a", (), b""), results.append)
        wait_until(lambda: broker.connections, "it connects")
        transport.close()
        wait_until(lambda: broker.ended == 1, "the connection is closed")
        assert (transport.in_flight, results) == (0, [])
