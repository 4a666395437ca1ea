"""The bridge of a gateway with lists for logs, a real MQTT broker and its clients; the file of rules."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.errors import ConfigError, InfrastructureError, UnknownResource
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.engine.settings.loading import load_settings
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.mqtt.bridge import MqttBridge
from arborcast.ingest.mqtt.incoming import Incoming, MqttMessage
from arborcast.ingest.mqtt.outgoing import end_others, keep, keep_subscriptions
from arborcast.ingest.mqtt.rules import Rules, read_rules
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import Checked, check_message
from arborcast.ingest.operations.subscription_manager import managed_subscription
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import InvalidRequest
from tests.support import soap_messages as soap
from tests.support.certificates import make_certificates
from tests.support.gateway_parts import GatewayParts, only_subscription
from tests.support.guarded_gateway import Clock
from tests.support.mosquitto import Mosquitto, MosquittoInstall, running_mosquitto
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.slow

IN = '[in.plant]\nmqtt = "plant/#"\ntopic = "p/{#}"\n'


BASE = "mqtt://broker.example:1883/"


def rules_of(folder: Path, text: str, base: str = BASE) -> Rules:
    file = folder / "rules.toml"
    file.write_text(text)
    return read_rules(file, base)


class Setup:
    """A gateway with lists for logs, and its bridges to one broker."""

    def __init__(self, broker: Mosquitto, folder: Path, rules: str = IN, **more: object) -> None:
        self.parts = GatewayParts()
        self.broker = broker
        self.settings = MqttSettings(url=broker.url, **more)  # type: ignore[arg-type]  # a builder for tests
        self.rules = rules_of(folder, rules, self.settings.base)

    @asynccontextmanager
    async def bridge(self, parts: GatewayParts | None = None, *, connects: bool = True) -> AsyncIterator[MqttBridge]:
        """A running bridge of this gateway or another."""
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

    async def wait_for_outage(self, caplog: pytest.LogCaptureFixture) -> None:
        """Until messages wait because Kafka is unavailable."""
        await wait_until_async(lambda: "messages wait at the broker: Kafka is unavailable" in caplog.text)

    @property
    def stored(self) -> list[tuple[str, str]]:
        return [(each.topic, unwrap(each.payload).decode()) for each in self.parts.notifications.accepted]


@pytest.fixture
def setup(mosquitto: Mosquitto, tmp_path: Path) -> Setup:
    return Setup(mosquitto, tmp_path)


AWAY = InfrastructureError("Kafka is unavailable", 0.01)


def numbered(start: int, end: int) -> list[str]:
    return [f"<n>{number}</n>" for number in range(start, end)]


async def test_messages_are_stored_in_order_as_xml_or_text(setup: Setup) -> None:
    async with setup.bridge() as bridge:
        await setup.publish("plant/a", *numbered(0, 50))
        await setup.publish("plant/b", '{"t": "<&>"}', more=("-D", "publish", "message-expiry-interval", "60"))
        await setup.publish("other", "<x/>")
        await wait_until_async(lambda: bridge.counts["accepted"] == 51)
    assert setup.stored == [*(("p/a", each) for each in numbered(0, 50)), ("p/b", '{"t": "&lt;&amp;&gt;"}')]
    last = setup.parts.notifications.accepted[-1]
    assert 50_000 < last.valid_until_ms - last.accepted_ms <= 60_000
    assert setup.parts.gateway.inflight.taken == 0


async def test_the_next_gateway_gets_unstored_messages(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    other = GatewayParts()
    setup.parts.notifications.error = AWAY
    async with setup.bridge():
        pass  # creates the session at the broker
    await setup.publish("plant/a", *numbered(0, 30))
    async with setup.bridge():
        await setup.wait_for_outage(caplog)
    await setup.publish("plant/a", *numbered(30, 40))
    async with setup.bridge(other) as bridge:
        await wait_until_async(lambda: bridge.counts["accepted"] == 40)
        assert 0 < bridge.counts["repeated"] <= 30
    assert setup.stored == []
    assert [each.payload.decode() for each in other.notifications.accepted] == numbered(0, 40)


async def test_messages_in_flight_are_within_the_receive_maximum(
    mosquitto_install: MosquittoInstall, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_mosquitto(mosquitto_install, tmp_path / "m", "log_type all\n") as broker:
        setup = Setup(broker, tmp_path, receive_maximum=5)
        setup.parts.notifications.error = AWAY
        async with setup.bridge() as bridge:
            await setup.publish("plant/a", *numbered(0, 30))
            await setup.wait_for_outage(caplog)
            await wait_until_async(lambda: broker.text().count("Sending PUBLISH") == 5)
            await asyncio.sleep(0.5)
            assert broker.text().count("Sending PUBLISH") == 5
            setup.parts.notifications.error = None
            await wait_until_async(lambda: bridge.counts["accepted"] == 30)
    assert [payload for _, payload in setup.stored] == numbered(0, 30)


async def test_messages_during_a_stop_of_the_broker_or_the_bridge(setup: Setup, tmp_path: Path) -> None:
    await setup.publish("plant/a", "<kept/>", more=("-r",))
    async with setup.bridge() as bridge:
        await setup.publish("plant/a", "<before/>")
        await wait_until_async(lambda: bridge.counts["accepted"] == 2)
        setup.broker.save()
        setup.broker.kill()
        await wait_until_async(lambda: not bridge.connected)
        setup.broker.start()
        await setup.publish("plant/a", "<broker/>")
        await wait_until_async(lambda: bridge.counts["accepted"] == 3)
    await setup.publish("plant/a", "<bridge/>")
    async with setup.bridge():
        await wait_until_async(lambda: len(setup.stored) == 4)
    expected = ["<kept/>", "<before/>", "<broker/>", "<bridge/>"]
    assert [payload for _, payload in setup.stored] == expected, "retained messages are sent once per session"
    # The session still has the subscription of a removed rule.
    setup.rules = rules_of(tmp_path, IN.replace("plant", "other"), setup.settings.base)
    async with setup.bridge() as bridge:
        await setup.publish("plant/a", "<x/>")
        await setup.publish("other/a", "<y/>")
        await wait_until_async(lambda: bridge.counts["accepted"] == 1)
        assert bridge.counts["unmatched"] == 1
    assert [payload for _, payload in setup.stored] == [*expected, "<y/>"]


async def test_refused_messages_are_skipped_and_logged_once_a_minute(
    setup: Setup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    binary, lines = tmp_path / "binary", tmp_path / "lines"
    binary.write_bytes(b"\xff\xfe\x00")
    lines.write_bytes(b"a\r\nb\rc\n")
    engine = ("-D", "publish", "user-property", "Arborcast-Engine")
    large, larger = (f"<x>{'y' * size}</x>" for size in (4_000_000, 4_300_000))
    async with setup.bridge() as bridge:
        for payload in ("<x>", "<p:x/>", "\x01", larger):
            await setup.publish("plant/a", payload)
        await setup.publish("plant/" + "l/" * 80, "<x/>")
        await setup.publish("plant/a", more=("-f", str(binary)))
        await setup.publish("plant/a", "<mine/>", more=(*engine, "arborcast"))
        await setup.publish("plant/a", "<theirs/>", more=(*engine, "b"))
        await setup.publish("plant/a", more=("-f", str(lines)))
        await setup.publish("plant/a", large)
        await wait_until_async(lambda: bridge.counts["accepted"] == 3)
        assert bridge.counts == {"accepted": 3, "refused": 6, "loop": 1, "repeated": 0}
    assert setup.stored == [("p/a", "<theirs/>"), ("p/a", "a&#13;\nb&#13;c\n"), ("p/a", large)]
    logged = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(logged) == 2, logged
    assert "mqtt: refused: a message of the topic 'plant/a': the payload is not well-formed" in logged[0]


async def test_over_tls_with_a_password(mosquitto_install: MosquittoInstall, tmp_path: Path) -> None:
    certificates, passwords = make_certificates(tmp_path), tmp_path / "passwords"
    mosquitto_install.write_password(passwords, "anna", "right")
    account, large = ("-u", "anna", "-P", "right"), f"<x>{'y' * 4_000_000}</x>"
    more = f"password_file {passwords}\n"
    with running_mosquitto(mosquitto_install, tmp_path / "m", more, certificates) as broker:
        setup = Setup(broker, tmp_path, ca_file=certificates.authority, user="anna", password="right")  # noqa: S106  # of a test user
        async with setup.bridge() as bridge:
            await setup.publish("plant/a", large, *numbered(0, 100), more=account)
            await wait_until_async(lambda: bridge.counts["accepted"] == 101)
    assert [payload for _, payload in setup.stored] == [large, *numbered(0, 100)]


async def test_a_second_engine_with_this_client_id_is_logged(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    async with setup.bridge(), setup.bridge(GatewayParts()):
        await wait_until_async(lambda: "another client has the id arborcast" in caplog.text)


@pytest.mark.parametrize("outbound", [OutboundSettings(), OutboundSettings(scope="loopback", deny="127.0.0.0/8")])
async def test_the_outbound_policy_applies(
    setup: Setup, caplog: pytest.LogCaptureFixture, outbound: OutboundSettings
) -> None:
    async with setup.bridge(GatewayParts(outbound=AddressPolicy(outbound)), connects=False):
        await wait_until_async(lambda: "outbound" in caplog.text)
    assert "New client connected" not in setup.broker.text()


async def test_messages_above_the_rate_wait(parts: GatewayParts, tmp_path: Path) -> None:
    counts = Counter[str]()
    made = Incoming(parts.gateway, rules_of(tmp_path, IN), LOCAL, counts)
    parts.gateway.gate = Gate(Rates(LimitSettings(deliveries_per_minute=3), Clock()))
    body = soap.envelope(soap.subscribe("http://127.0.0.1:9/", soap.topic_expression("p//.")))
    assert (await parts.request("POST", "/wsn/NotificationBroker", body)).status == 200
    many = [MqttMessage("plant/a", each.encode()) for each in numbered(0, 5)]
    settled = await made.take(many)
    assert 0 < settled < 5
    with pytest.raises(InfrastructureError, match="3 deliveries per minute") as raised:
        await made.take(many[settled:])
    assert raised.value.retry_after is not None
    assert counts == {"accepted": settled, "repeated": 0}


@pytest.mark.parametrize(
    ("error", "words"), [(AWAY, "Kafka is unavailable"), (MemoryError(), "there is no memory for a message")]
)
async def test_no_message_overtakes_another_whose_check_fails(
    parts: GatewayParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    async def checked(gateway: Gateway, publisher: Any, topic: TopicPath, payload: bytes, *more: Any) -> Checked:
        if payload == b"<n>1</n>":
            raise error
        return await check_message(gateway, publisher, topic, payload, *more)

    monkeypatch.setattr("arborcast.ingest.mqtt.incoming.check_message", checked)
    made = Incoming(parts.gateway, rules_of(tmp_path, IN), LOCAL, Counter())
    many = [MqttMessage("plant/a", each.encode()) for each in numbered(0, 3)]
    assert await made.take(many) == 1
    with pytest.raises(InfrastructureError, match=words):
        await made.take(many[1:])
    assert [each.payload.decode() for each in parts.notifications.accepted] == numbered(0, 1)


async def test_a_partly_stored_batch_is_partly_settled(
    parts: GatewayParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = parts.notifications.append
    attempts: list[list[bytes]] = []

    async def appended(notifications: Sequence[Notification], retained: Sequence[Notification] = ()) -> None:
        attempts.append([each.payload for each in notifications])
        if len(notifications) > 1:
            raise InvalidRequest("a batch is refused")
        if notifications[0].payload == b"<n>2</n>" and len(attempts) < 5:
            raise AWAY
        await append(notifications, retained)

    monkeypatch.setattr(parts.notifications, "append", appended)
    counts = Counter[str]()
    made = Incoming(parts.gateway, rules_of(tmp_path, IN), LOCAL, counts)
    messages = [MqttMessage("plant/a", each.encode()) for each in ("<x>", *numbered(0, 4))]
    settled = await made.take(messages)
    assert settled == 3
    assert await made.take(messages[settled:]) == 2
    assert [each.payload.decode() for each in parts.notifications.accepted] == numbered(0, 4)
    assert counts == {"accepted": 4, "refused": 1, "repeated": 0}


async def test_a_long_outage_of_kafka_has_its_own_log_line(
    mosquitto: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(mosquitto, tmp_path, keep_alive_s=4)
    setup.parts.notifications.error = AWAY
    large = [f"<x>{str(number) * 2_000_000}</x>" for number in range(4)]
    async with setup.bridge() as bridge:
        await setup.publish("plant/a", *large)
        await wait_until_async(lambda: "received messages wait for Kafka" in caplog.text)
        setup.parts.notifications.error = None
        await wait_until_async(lambda: bridge.counts["accepted"] == 4)
    assert [payload for _, payload in setup.stored] == large


LOCAL = MqttSettings(url="mqtt://127.0.0.1:1883")
OUT = '[out.alarms]\ntopic = "alarms//."\nmqtt = "a/{topic}"\n'


async def test_an_outgoing_rule_is_a_subscription(parts: GatewayParts, tmp_path: Path) -> None:
    async def kept(text: str, settings: MqttSettings = LOCAL) -> None:
        rules = rules_of(tmp_path, text, settings.base)
        await end_others(parts.gateway, rules.outgoing)
        for _ in range(2):
            for rule in rules.outgoing:
                await keep(parts.gateway, settings, rule)

    await kept(OUT)
    made = only_subscription(parts)
    assert (made.id, made.form) == ("mqtt.alarms", "raw")
    assert made.consumer.address == "mqtt://127.0.0.1:1883/a/%7Btopic%7D"
    with pytest.raises(UnknownResource):
        managed_subscription(parts.gateway, made.id, None)
    await kept(OUT.replace('"a/', '"b/') + "retain = true\n", MqttSettings(url="mqtt://127.0.0.2:1884"))
    changed = only_subscription(parts)
    assert (made.policy.strict, changed.policy.strict) == (False, True)
    assert changed.consumer.address == "mqtt://127.0.0.2:1884/b/%7Btopic%7D?retain"
    assert changed.created_ms == made.created_ms, "the same subscription, with its waiting messages"
    await kept("")
    assert list(parts.table.subscriptions()) == []

    path = TopicPath("alarms/a")
    parts.have_topics(path, retain=True)
    parts.notifications.current[path] = Notification("n1", path, b"<now/>", 1)
    parts.notifications.error = AWAY  # behind the record of the subscription
    with pytest.raises(InfrastructureError):
        await kept(OUT + "retain = true\n")
    parts.notifications.error = None
    await kept(OUT + "retain = true\n")
    again = parts.notifications.accepted[-1]
    assert (again.payload, again.only) == (b"<now/>", "mqtt.alarms")


async def test_a_refused_outgoing_rule_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    parts.have_topics(TopicPath("alarms"))
    rules = rules_of(tmp_path, OUT.replace("out.alarms", "out.first").replace("alarms//.", "none") + OUT)
    keeping = asyncio.create_task(keep_subscriptions(parts.gateway, LOCAL, rules.outgoing))
    await wait_until_async(lambda: [each.id for each in parts.table.subscriptions()] == ["mqtt.alarms"])
    keeping.cancel()
    await asyncio.wait([keeping])
    assert "the rule [out.first] cannot be changed: the expression 'none' selects no topic" in caplog.text


async def test_rules_settings_and_commands_of_the_documentation(mosquitto: Mosquitto, tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "mqtt.md").read_text()
    rules, settings = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (tmp_path / "arborcast.toml").write_text(settings)
    assert load_settings(tmp_path / "arborcast.toml").mqtt.base == "mqtts://broker.example:8883/"
    setup = Setup(mosquitto, tmp_path, rules)
    assert [(each.name, each.retain) for each in setup.rules.outgoing] == [("alarms", True)]
    program = commands.replace(" -V 5", f" -V 5 -h 127.0.0.1 -p {mosquitto.port}") + "kill %1\n"
    async with setup.bridge() as bridge:
        await asyncio.to_thread(mosquitto.run, program)
        await wait_until_async(lambda: bridge.counts["accepted"] == 1)
    assert setup.stored == [("plant/kiln/temperature", '{"celsius": 1180}')]


# The file of rules, and the messages for its errors.


def test_rules_of_both_directions(tmp_path: Path) -> None:
    found = rules_of(
        tmp_path,
        '[in.sensors]\nmqtt = "plant/+/temp"\ntopic = "t/{1}"\n[in.others]\nmqtt = "x/#"\ntopic = "x/{#}"\n'
        '[out.alarms]\ntopic = "alarms//."\nmqtt = "a/{topic}"\nretain = true\n'
        '[out.all]\ntopic = "//."\nmqtt = "all/{topic}"\n',
    )
    assert [found.topic(each) for each in ("plant/k/temp", "x/y/z", "other")] == ["t/k", "x/y/z", None]
    alarms, everything = found.outgoing
    assert (alarms.name, alarms.address, alarms.retain) == ("alarms", f"{BASE}a/%7Btopic%7D?retain", True)
    assert [each.normal for each in alarms.topics] == ["alarms//."]
    assert (everything.topics, everything.retain) == ((), False)
    assert (alarms.policy.order, everything.policy.order) == ("strict", "acceptance")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[in.a]\n", r"missing required field `mqtt`"),
        ('[in.a]\nmqtt = "a"\ntopic = "a"\nqos = 2\n', "unknown field `qos`"),
        ('[inn.a]\nmqtt = "a"\ntopic = "a"\n', "unknown field `inn`"),
        ("[in.a\n", "Expected"),
        ('[in.a]\nmqtt = "a/#/b"\ntopic = "a"\n', r"\[in.a\]: .*# the last one"),
        ('[in."a b"]\nmqtt = "a"\ntopic = "a"\n', "the name of a rule"),
        ('[out.a]\ntopic = "a["\nmqtt = "a"\n', r"\[out.a\]: "),
        ('[out.a]\ntopic = "a"\nmqtt = "a"\norder = "none"\n', "Invalid enum value 'none'"),
        ('[out.a]\ntopic = "a"\nmqtt = "$SYS/a"\n', r"\[out.a\]: .*begins with \$"),
        (
            '[in.a]\nmqtt = "a/#"\ntopic = "a"\n[in.b]\nmqtt = "+/b"\ntopic = "b"\n',
            r"\[in.a\] and \[in.b\] select the same MQTT topics",
        ),
        (
            '[in.a]\nmqtt = "a/#"\ntopic = "a/{#}"\n[out.b]\ntopic = "a//."\nmqtt = "{topic}"\n',
            r"\[out.b\] sends back to 'a/sample/sample' the messages that \[in.a\] takes from there",
        ),
    ],
)
def test_invalid_rules(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        rules_of(tmp_path, text)
    assert "rules.toml" in str(raised.value)


def test_overlapping_rules_are_valid_and_a_missing_file_is_named(tmp_path: Path) -> None:
    """The engine's own messages are recognised when the broker returns them."""
    with pytest.raises(ConfigError, match=r"mqtt.rules_file = '.*none.toml' cannot be read: "):
        read_rules(tmp_path / "none.toml", BASE)
    both = '[in.everything]\nmqtt = "#"\ntopic = "mqtt/{#}"\n[out.alarms]\ntopic = "alarms//."\nmqtt = "a/{topic}"\n'
    assert rules_of(tmp_path, both).topic("a/alarms/b") == "mqtt/a/alarms/b"
