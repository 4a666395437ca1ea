"""The bridge of a gateway over lists, with a real MQTT broker and its own clients."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from arborcast.core.errors import InfrastructureError, UnknownResource
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.engine.settings.loading import load_settings
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.mqtt.bridge import MqttBridge
from arborcast.ingest.mqtt.incoming import Incoming, MqttMessage
from arborcast.ingest.mqtt.outgoing import end_others, keep
from arborcast.ingest.mqtt.rules import Rules, read_rules
from arborcast.ingest.operations.subscription_manager import managed_subscription
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.certificates import make_certificates
from tests.support.gateway_parts import GatewayParts, only_subscription
from tests.support.guarded_gateway import Clock
from tests.support.mosquitto import Mosquitto, MosquittoInstall, running_mosquitto
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.slow

IN = '[in.plant]\nmqtt = "plant/#"\ntopic = "p/{#}"\n'


def rules_of(folder: Path, text: str, base: str = "mqtt://127.0.0.1:1883/") -> Rules:
    file = folder / "rules.toml"
    file.write_text(text)
    return read_rules(file, base)


class World:
    """A gateway over lists, and bridges of it to one broker."""

    def __init__(self, broker: Mosquitto, folder: Path, rules: str = IN, **more: object) -> None:
        self.parts = GatewayParts()
        self.broker = broker
        self.settings = MqttSettings(url=broker.url, **more)  # type: ignore[arg-type]  # a builder for tests
        self.rules = rules_of(folder, rules, self.settings.base)
        self.inflight = self.parts.gateway.inflight

    @asynccontextmanager
    async def bridge(self, parts: GatewayParts | None = None, *, connects: bool = True) -> AsyncIterator[MqttBridge]:
        """One that runs, of this gateway or another."""
        gateway = (parts or self.parts).gateway
        made = MqttBridge(gateway, self.settings, self.rules)
        running = asyncio.create_task(made.run())
        try:
            if connects:
                await wait_until_async(lambda: made.connected, "connected")
            yield made
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def publish(self, topic: str, *payloads: str, more: tuple[str, ...] = ()) -> None:
        await asyncio.to_thread(self.broker.publish, topic, *payloads, more=more)

    @property
    def stored(self) -> list[tuple[str, str]]:
        return [(each.topic, unwrap(each.payload).decode()) for each in self.parts.notifications.accepted]


@pytest.fixture
def world(mosquitto: Mosquitto, tmp_path: Path) -> World:
    return World(mosquitto, tmp_path)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_messages_come_in_in_their_order_as_xml_or_text(world: World) -> None:
    async def test() -> None:
        async with world.bridge() as bridge:
            await world.publish("plant/a", *(f"<n>{number}</n>" for number in range(50)))
            await world.publish("plant/b", '{"t": "<&>"}', more=("-D", "publish", "message-expiry-interval", "60"))
            await world.publish("other", "<x/>")
            await wait_until_async(lambda: bridge.counts["accepted"] == 51, "all are stored")

    run(test)
    expected = [("p/a", f"<n>{number}</n>") for number in range(50)]
    assert world.stored == [*expected, ("p/b", '{"t": "&lt;&amp;&gt;"}')]
    last = world.parts.notifications.accepted[-1]
    assert 50_000 < last.valid_until_ms - last.accepted_ms <= 60_000
    assert world.inflight.taken == 0


def test_what_is_not_stored_is_not_acknowledged_and_comes_to_the_next_gateway(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    other = GatewayParts()

    async def test() -> None:
        world.parts.notifications.error = InfrastructureError("Kafka is away", 0.01)
        async with world.bridge():
            await world.publish("plant/a", *(f"<n>{number}</n>" for number in range(30)))
            await wait_until_async(lambda: "messages wait at the broker: Kafka is away" in caplog.text, "it is tried")
        await world.publish("plant/a", *(f"<n>{number}</n>" for number in range(30, 40)))
        async with world.bridge(other) as bridge:
            await wait_until_async(lambda: bridge.counts["accepted"] == 40, "all are stored")
            assert 0 < bridge.counts["repeated"] <= 30

    run(test)
    assert world.stored == []
    assert [each.payload for each in other.notifications.accepted] == [b"<n>%d</n>" % number for number in range(40)]


def test_the_broker_sends_no_more_than_the_receive_maximum_before_they_are_stored(
    mosquitto_install: MosquittoInstall, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        world.parts.notifications.error = InfrastructureError("Kafka is away", 0.01)
        async with world.bridge() as bridge:
            await world.publish("plant/a", *(f"<n>{number}</n>" for number in range(30)))
            await wait_until_async(lambda: "messages wait at the broker: Kafka is away" in caplog.text, "it is tried")
            await wait_until_async(lambda: broker.text().count("Sending PUBLISH") == 5, "as many as may be")
            await asyncio.sleep(0.5)
            assert broker.text().count("Sending PUBLISH") == 5
            world.parts.notifications.error = None
            await wait_until_async(lambda: bridge.counts["accepted"] == 30, "all are stored")

    with running_mosquitto(mosquitto_install, tmp_path / "m", "log_type all\n") as broker:
        world = World(broker, tmp_path, receive_maximum=5)
        run(lambda: test(world))
    assert [payload for _, payload in world.stored] == [f"<n>{number}</n>" for number in range(30)]


def test_a_killed_broker_is_connected_to_again_and_keeps_what_came_meanwhile(world: World) -> None:
    async def test() -> None:
        async with world.bridge() as bridge:
            await world.publish("plant/a", "<before/>")
            await wait_until_async(lambda: bridge.counts["accepted"] == 1, "it is stored")
            world.broker.kill()
            await wait_until_async(lambda: not bridge.connected, "the loss is noticed")
            world.broker.start()
            await world.publish("plant/a", "<while/>")
            await wait_until_async(lambda: bridge.counts["accepted"] >= 2, "it is stored")

    run(test)
    assert [payload for _, payload in world.stored] == ["<before/>", "<while/>"]


def test_retained_messages_come_once_to_a_session(world: World) -> None:
    async def test() -> None:
        await world.publish("plant/a", "<kept/>", more=("-r",))
        for number in range(3):
            async with world.bridge():
                await world.publish("plant/b", f"<n>{number}</n>")
                await wait_until_async(lambda: len(world.stored) == number + 2, "it is stored")  # noqa: B023

    run(test)
    assert sum(payload == "<kept/>" for _, payload in world.stored) == 1


def test_what_cannot_come_in_is_counted_logged_once_a_minute_and_holds_up_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with world.bridge() as bridge:
            for payload in ("<x>", "<p:x/>", "\x01"):
                await world.publish("plant/a", payload)
            await world.publish("plant/" + "l/" * 80, "<x/>")
            await world.publish(
                "plant/a", "<mine/>", more=("-D", "publish", "user-property", "Arborcast-Engine", "arborcast")
            )
            await world.publish(
                "plant/a", "<theirs/>", more=("-D", "publish", "user-property", "Arborcast-Engine", "b")
            )
            await wait_until_async(lambda: bridge.counts["accepted"] == 1, "the good one is stored")
            assert bridge.counts == {"accepted": 1, "refused": 4, "loop": 1, "repeated": 0}

    with caplog.at_level(logging.WARNING):
        run(test)
    assert world.stored == [("p/a", "<theirs/>")]
    logged = [each.message for each in caplog.records if each.message.startswith("mqtt: ")]
    assert len(logged) == 2, logged
    assert "mqtt: refused: a message of the topic 'plant/a': the payload is not well-formed" in logged[0]


def test_line_ends_of_text_are_kept_and_a_payload_that_is_not_text_is_refused(world: World, tmp_path: Path) -> None:
    file = tmp_path / "payload"

    async def test() -> None:
        async with world.bridge() as bridge:
            for payload, outcome in ((b"\xff\xfe\x00", "refused"), (b"a\r\nb\rc\n", "accepted")):
                file.write_bytes(payload)
                await world.publish("plant/a", more=("-f", str(file)))
                await wait_until_async(lambda outcome=outcome: bridge.counts[outcome] == 1, outcome)  # type: ignore[misc]

    run(test)
    assert world.stored == [("p/a", "a&#13;\nb&#13;c\n")]


def test_messages_of_an_earlier_rule_are_counted(world: World, tmp_path: Path) -> None:
    async def test() -> None:
        async with world.bridge():
            pass
        world.rules = rules_of(tmp_path, IN.replace("plant", "other"), world.settings.base)
        async with world.bridge() as bridge:
            await world.publish("plant/a", "<x/>")
            await world.publish("other/a", "<y/>")
            await wait_until_async(lambda: bridge.counts["accepted"] == 1, "the other one is stored")
            assert bridge.counts["unmatched"] == 1

    run(test)
    assert world.stored == [("p/a", "<y/>")]


def test_a_message_of_four_megabytes_and_one_that_is_larger(world: World) -> None:
    async def test() -> None:
        async with world.bridge() as bridge:
            for size in (4_000_000, 4_300_000):
                await world.publish("plant/a", f"<x>{'y' * size}</x>")
            await world.publish("plant/a", "<z/>")
            await wait_until_async(lambda: bridge.counts["accepted"] == 2, "two are stored")
            assert bridge.counts["refused"] == 1

    run(test)
    assert [len(payload) for _, payload in world.stored] == [4_000_007, 4]


def test_over_tls_with_a_password(mosquitto_install: MosquittoInstall, tmp_path: Path) -> None:
    certificates, passwords = make_certificates(tmp_path), tmp_path / "passwords"
    mosquitto_install.write_password(passwords, "anna", "right")
    account = ("-u", "anna", "-P", "right")

    async def test(world: World) -> None:
        async with world.bridge() as bridge:
            await world.publish("plant/a", f"<x>{'y' * 4_000_000}</x>", more=account)
            await world.publish("plant/a", *(f"<n>{number}</n>" for number in range(100)), more=account)
            await wait_until_async(lambda: bridge.counts["accepted"] == 101, "all are stored")

    more = f"password_file {passwords}\n"
    with running_mosquitto(mosquitto_install, tmp_path / "m", more, certificates) as broker:
        world = World(broker, tmp_path, ca_file=certificates.authority, user="anna", password="right")  # noqa: S106
        run(lambda: test(world))
    assert [payload for _, payload in world.stored][1:] == [f"<n>{number}</n>" for number in range(100)]


def test_a_second_engine_with_the_same_client_id_is_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with world.bridge(), world.bridge(GatewayParts()):
            await wait_until_async(lambda: "another client has the id arborcast" in caplog.text, "it is logged")

    with caplog.at_level(logging.WARNING):
        run(test)


@pytest.mark.parametrize("outbound", [OutboundSettings(), OutboundSettings(scope="loopback", deny="127.0.0.0/8")])
def test_the_outbound_policy_holds(world: World, caplog: pytest.LogCaptureFixture, outbound: OutboundSettings) -> None:
    parts = GatewayParts(outbound=AddressPolicy(outbound))

    async def test() -> None:
        async with world.bridge(parts, connects=False):
            await wait_until_async(lambda: "outbound" in caplog.text, "it is logged")

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "New client connected" not in world.broker.text()


def incoming(parts: GatewayParts, folder: Path, counts: Counter[str]) -> Incoming:
    return Incoming(parts.gateway, rules_of(folder, IN), MqttSettings(url="mqtt://127.0.0.1"), counts)


def messages(*payloads: bytes) -> list[MqttMessage]:
    return [MqttMessage("plant/a", each) for each in payloads]


def test_a_message_beyond_a_rate_waits_and_is_not_refused(tmp_path: Path) -> None:
    parts, counts = GatewayParts(), Counter[str]()
    parts.gateway.gate = Gate(Rates(LimitSettings(deliveries_per_minute=3), Clock()))
    body = soap.envelope(soap.subscribe("http://127.0.0.1:9/", soap.topic_expression("p//.")))
    assert parts.post(body).status == 200
    taken = messages(*(b"<n>%d</n>" % number for number in range(5)))
    made = incoming(parts, tmp_path, counts)
    settled = asyncio.run(made.take(taken))
    assert 0 < settled < 5
    with pytest.raises(InfrastructureError, match="3 deliveries per minute") as raised:
        asyncio.run(made.take(taken[settled:]))
    assert raised.value.retry_after is not None
    assert counts == {"accepted": settled, "repeated": 0}


def test_a_refused_message_is_counted_once_however_often_its_batch_is_tried(tmp_path: Path) -> None:
    parts, counts = GatewayParts(), Counter[str]()
    made, taken = incoming(parts, tmp_path, counts), messages(b"<x>", b"<y/>")
    parts.notifications.error = InfrastructureError("Kafka is away", 1.0)
    for _ in range(3):
        with pytest.raises(InfrastructureError, match="Kafka is away"):
            asyncio.run(made.take(taken))
    parts.notifications.error = None
    assert asyncio.run(made.take(taken)) == 2
    assert counts == {"accepted": 1, "refused": 1, "repeated": 0}


def test_a_message_with_more_elements_than_may_be_is_refused(tmp_path: Path) -> None:
    parts, counts = GatewayParts(), Counter[str]()
    most = parts.gateway.settings.max_elements
    taken = messages(*(b"<x>" + b"<y/>" * number + b"</x>" for number in (most, 10)))
    assert asyncio.run(incoming(parts, tmp_path, counts).take(taken)) == 2
    assert counts == {"accepted": 1, "refused": 1, "repeated": 0}


OUT = '[out.alarms]\ntopic = "alarms//."\nmqtt = "a/{topic}"\n'


def test_a_rule_for_outgoing_messages_is_a_subscription(tmp_path: Path) -> None:
    parts, settings = GatewayParts(), MqttSettings(url="mqtt://127.0.0.1:1883")

    async def kept(text: str, **more: str) -> None:
        changed = MqttSettings(url=more.get("url", settings.url))
        rules = rules_of(tmp_path, text, changed.base)
        await end_others(parts.gateway, rules.outgoing)
        for _ in range(2):
            await keep(parts.gateway, changed, rules.outgoing)

    asyncio.run(kept(OUT))
    made = only_subscription(parts)
    assert (made.id, made.form, made.consumer.address) == (
        "mqtt.alarms", "raw", "mqtt://127.0.0.1:1883/a/%7Btopic%7D"
    )  # fmt: skip
    with pytest.raises(UnknownResource):
        managed_subscription(parts.gateway, made.id, None)
    asyncio.run(kept(OUT.replace('"a/', '"b/') + "retain = true\n", url="mqtt://127.0.0.2:1884"))
    changed = only_subscription(parts)
    assert (made.policy.strict, changed.policy.strict) == (False, True)
    assert changed.consumer.address == "mqtt://127.0.0.2:1884/b/%7Btopic%7D?retain"
    assert changed.created_ms == made.created_ms, "it is the same one, with what waits for it"
    asyncio.run(kept(""))
    assert list(parts.table.subscriptions()) == []


def test_a_retained_rule_begins_with_the_current_messages(tmp_path: Path) -> None:
    parts, settings = GatewayParts(), MqttSettings(url="mqtt://127.0.0.1:1883")
    for fold in parts.control.folds:
        fold.apply(TopicRecord(TopicPath("alarms/a"), policy=TopicPolicy(retain=True)))
    path = TopicPath("alarms/a")
    parts.notifications.current[path] = Notification("n1", path, b"<now/>", 1)

    asyncio.run(keep(parts.gateway, settings, rules_of(tmp_path, OUT + "retain = true\n", settings.base).outgoing))
    again = parts.notifications.accepted[-1]
    assert (again.payload, again.only) == (b"<now/>", "mqtt.alarms")


def test_the_rules_settings_and_commands_of_the_page(mosquitto: Mosquitto, tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "mqtt.md").read_text()
    rules, settings = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (tmp_path / "arborcast.toml").write_text(settings)
    assert load_settings(tmp_path / "arborcast.toml").mqtt.base == "mqtts://broker.example:8883/"
    world = World(mosquitto, tmp_path, rules)
    assert [(each.name, each.retain) for each in world.rules.outgoing] == [("alarms", True)]
    program = commands.replace(" -V 5", f" -V 5 -h 127.0.0.1 -p {mosquitto.port}") + "kill %1\n"

    async def test() -> None:
        async with world.bridge() as bridge:
            await asyncio.to_thread(mosquitto.run, program)
            await wait_until_async(lambda: bridge.counts["accepted"] == 1, "it is stored")

    run(test)
    assert world.stored == [("plant/kiln/temperature", '{"celsius": 1180}')]
