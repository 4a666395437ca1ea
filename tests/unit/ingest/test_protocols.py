"""Rules of all protocols: rights, limits, quotas, order, repetitions, and equal refusals of equal errors.

Each protocol has a class here, which translates a publication or a subscription for it; a new protocol needs one.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import pytest

from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.security.signatures import new_secret
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.consumers import DnsCheck
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.receiver import PeerReceiver
from arborcast.ingest.mqtt.incoming import Incoming, MqttMessage
from arborcast.ingest.mqtt.rules import Rules
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.ingest.state.repeats import RepeatMemory, Repeats
from arborcast.topic_model import legacy_content
from arborcast.topic_model.mqtt_names import TopicsIn
from arborcast.topic_model.records import peers
from arborcast.topic_model.records.control import SubscriptionSuspended
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import Peer
from arborcast.topic_model.topics import SYSTEM, TopicPath
from arborcast.wire import frames, limits
from arborcast.wire.frames import FrameKind
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.framed import FramedClient, framed_edge, zmq_edge
from tests.support.gateway_parts import GatewayParts, HttpAnswer, only_subscription
from tests.support.guarded_gateway import ANNA, BERT, OLGA, Clock, guarded
from tests.support.outbound import THIS_MACHINE

pytestmark = pytest.mark.slow

# Bert has all rights but to publish, Olga all but to subscribe.
POLICY = """
[[allow]]
do = ["publish", "subscribe"]
topics = ["a//."]
users = ["anna"]
[[allow]]
do = ["subscribe", "serve", "manage"]
topics = ["a//."]
users = ["bert"]
[[allow]]
do = ["publish", "serve", "manage"]
topics = ["a//."]
users = ["olga"]
"""
PASSWORDS = {"anna": ("pa", ANNA), "bert": ("pb", BERT), "olga": ("po", OLGA)}
CONSUMER = "http://127.0.0.1:9/consumer"


class Setup:
    """A gateway, and its protocols as used by one user."""

    def __init__(
        self, folder: Path, user: str = "", settings: GatewaySettings | None = None, topics: TopicSettings | None = None
    ) -> None:
        self.folder = folder
        self.user = user
        self.password, authorization = PASSWORDS.get(user, ("", ""))
        self.headers = {"authorization": authorization} if user else {}
        self.parts = GatewayParts(settings, topics)
        if user:
            self.parts.gateway.gate = guarded(folder, Clock(), POLICY).gateway.gate

    def post(self, body: bytes, path: str, **headers: str) -> HttpAnswer:
        return self.parts.post(body, path, **headers, **self.headers)

    def soap(self, body: str, path: str = "/wsn/NotificationBroker", version: str = "1.1", header: str = "") -> str:
        return why(self.post(soap.envelope(body, version, header), path))

    def wsn_process(self, text: str) -> str:
        answer = self.post(legacy.wsn_process(text), "/wsnprocess")
        return why(answer) or ("faild" if answer.text("WsnProcessResponse") == "faild" else "")

    @property
    def stored(self) -> list[str]:
        return [each.payload.decode() for each in self.parts.notifications.accepted]

    @property
    def written(self) -> tuple[int, int, int]:
        """The lengths of the logs."""
        parts = self.parts
        return len(parts.control.records), len(parts.notifications.accepted), len(parts.parts.records)


def why(answer: HttpAnswer) -> str:
    """Empty for an accepted request, otherwise the reason."""
    if answer.status in (200, 202):
        return ""
    return answer.reason if answer.body.startswith(b"<") else answer.body.decode().rstrip()


class ClientProtocol(ABC):  # noqa: B024  # the two kinds have different methods
    """A protocol, opened by one user."""

    def __init__(self, setup: Setup, stack: ExitStack) -> None:
        self.setup = setup
        self.open(stack)

    def open(self, stack: ExitStack) -> None:  # noqa: B027  # optional
        """Connect."""


ProtocolType = TypeVar("ProtocolType", bound=ClientProtocol)


@contextmanager
def opened(way: type[ProtocolType], setup: Setup) -> Iterator[ProtocolType]:
    with ExitStack() as stack:
        yield way(setup, stack)


class PublishProtocol(ClientProtocol):
    """A protocol for publications."""

    namespaces: ClassVar[bool] = True
    keys: ClassVar[bool] = True
    has_user: ClassVar[bool] = True
    """Whether it authenticates a user of this gateway: other engines have their own users."""
    xml: ClassVar[bool] = True
    """Whether the payload is XML: JSON is the text of an element."""

    @abstractmethod
    def publish(self, topic: str, payload: str, key: str = "") -> str:
        """Empty if the payload is stored, otherwise the reason."""

    def stored(self, payload: str) -> str:
        """The payload as it is stored."""
        return payload if self.xml else legacy_content.wrap(escape(json.dumps(payload)), {}).decode()


class Soap11(PublishProtocol):
    version, path = "1.1", "/wsn/NotificationBroker"

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        prefix, declared = topic, ""
        if topic.startswith("{"):
            uri, _, rest = topic[1:].partition("}")
            prefix, declared = f"n:{rest}", f' xmlns:n="{uri}"'
        message = soap.message(prefix, payload).replace("<wsnt:Topic", f"<wsnt:Topic{declared}")
        header = soap.addressing("urn:x", key) if key else ""
        return self.setup.soap(soap.notify(message), self.path, self.version, header)


class Soap12(Soap11):
    version = "1.2"


class OldAddress(Soap11):
    path = "/WSN/Broker"


class Registered(Soap11):
    def open(self, stack: ExitStack) -> None:
        answer = self.setup.post(soap.envelope(soap.register()), "/wsn/NotificationBroker")
        assert answer.status == 200, answer.body
        address = answer.root.findtext(".//{*}PublisherRegistrationReference/{*}Address") or ""
        self.path = address.removeprefix("http://127.0.0.1:8080")


class WsnProcess(PublishProtocol):
    namespaces, keys = False, False

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        return self.setup.wsn_process(legacy.notify(topic.replace("/", ":"), payload))


class InParts(PublishProtocol):
    namespaces, keys = False, False
    messages = 0

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        self.messages += 1
        half = (len(payload) + 1) // 2
        for text in legacy.in_parts(topic.replace("/", ":"), payload, half, identification=f"1:{self.messages}"):
            if reason := self.setup.wsn_process(text):
                return reason
        return ""


class Post(PublishProtocol):
    media = "text/xml"

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        more = {"idempotency_key": key} if key else {}
        body = payload if self.xml else json.dumps(payload)
        return why(self.setup.post(body.encode(), f"/publish/{topic}", content_type=self.media, **more))


class PostJson(Post):
    media, xml = "application/json", False


def event(topic: str, payload: str, key: str, number: int) -> dict[str, str]:
    """A CloudEvent in JSON, with a new id, or with the one of the key."""
    made = {"specversion": "1.0", "id": key or str(number), "source": "/tests", "type": "made", "subject": topic}
    return made | {"datacontenttype": "application/xml", "data": payload}


class BinaryEvent(Post):
    made = 0

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        self.made += 1
        named = {f"ce_{name}": value for name, value in event(unquote(topic), "", key, self.made).items()}
        del named["ce_data"], named["ce_datacontenttype"]
        named["ce_subject"] = quote(named["ce_subject"])
        return why(self.setup.post(payload.encode(), "/publish", content_type="text/xml", **named))


class StructuredEvent(BinaryEvent):
    media = "application/cloudevents+json"

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        self.made += 1
        body = self.body(event(unquote(topic), payload, key, self.made))
        return why(self.setup.post(body, "/publish", content_type=self.media)).removeprefix("event 1: ")

    def body(self, event: dict[str, str]) -> bytes:
        return json.dumps(event).encode()


class BatchOfEvents(StructuredEvent):
    media = "application/cloudevents-batch+json"

    def body(self, event: dict[str, str]) -> bytes:
        return json.dumps([event]).encode()


class JsonEvent(StructuredEvent):
    xml = False

    def body(self, event: dict[str, str]) -> bytes:
        return json.dumps(event | {"datacontenttype": "application/json"}).encode()


def framed_client(setup: Setup, stack: ExitStack) -> FramedClient:
    client = FramedClient(stack.enter_context(framed_edge(setup.parts)), setup.user, setup.password)
    stack.callback(client.close)
    return client


class Framed(PublishProtocol):
    def open(self, stack: ExitStack) -> None:
        self.client = framed_client(self.setup, stack)

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        answer = self.client.request(FrameKind.PUBLISH, frames.PublishBody(topic, payload.encode(), key=key))
        return "" if answer.kind == FrameKind.RECEIPT else frames.read_body(answer, frames.ErrorBody).text


class ZeroMq(PublishProtocol):
    keys = False

    def open(self, stack: ExitStack) -> None:
        setup = self.setup
        self.request = stack.enter_context(zmq_edge(setup.parts, setup.user, setup.password, setup.folder))

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        word, text = self.request(b"publish", topic.encode(), payload.encode())
        while b"cannot be reached" in text:  # not yet connected
            word, text = self.request(b"publish", topic.encode(), payload.encode())
        # Most reasons have the name of the error before them.
        return "" if word == b"ok" else re.sub(r"^[A-Z][A-Za-z]+: ", "", text.decode())


class Receiver(PeerReceiver):
    """Keeps the reasons of dropped notifications, which are logged once per topic."""

    reasons: list[str]

    def _drop(self, why: str, topic: TopicPath, error: Exception) -> None:
        super()._drop(why, topic, error)
        self.reasons.append(str(error))


class Bridge(Incoming):
    """Keeps the reasons of refused messages, which are logged once a minute."""

    reasons: list[str]

    def _refuse(self, topic: str | None, why: Exception) -> None:
        super()._refuse(topic, why)
        self.reasons.append(str(why))


class Mqtt(PublishProtocol):
    """The bridge to an MQTT broker, with a rule for the topic."""

    keys = False

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        settings = MqttSettings(url="mqtt://127.0.0.1", act_as=self.setup.user)
        try:
            rules = Rules({"door": TopicsIn("door", topic)}, ())
            bridge = Bridge(self.setup.parts.gateway, rules, settings, Counter())
            bridge.reasons = []
            assert asyncio.run(bridge.take([MqttMessage("door", payload.encode())])) == 1
        except ArborcastError as error:
            return str(error)
        return bridge.reasons.pop() if bridge.reasons else ""


class Engine(PublishProtocol):
    """Another engine of the federation: its notifications are dropped with a reason, or must be repeated."""

    keys, has_user = False, False
    pushed = 0

    def open(self, stack: ExitStack) -> None:
        key = self.setup.folder / "key"
        key.write_text(new_secret())
        gateway, keys = self.setup.parts.gateway, SharedKeys(str(key))
        self.receiver = Receiver(gateway, "G/a", keys, PeerInterests(), RepeatMemory(600))
        self.receiver.reasons = []

    def publish(self, topic: str, payload: str, key: str = "") -> str:
        self.pushed += 1
        sent = Notification(f"n{self.pushed}", TopicPath(topic), payload.encode(), 1)
        push = peers.decode_push(peers.encode_push([sent], Peer("G/b", "G/a")))
        try:
            asyncio.run(self.receiver.take_push(push))
        except ArborcastError as error:
            return str(error)
        return self.receiver.reasons.pop() if self.receiver.reasons else ""


PUBLISH_PROTOCOLS: tuple[type[PublishProtocol], ...] = (
    *(Soap11, Soap12, OldAddress, Registered, WsnProcess, InParts, Post, PostJson, BinaryEvent, StructuredEvent),
    *(BatchOfEvents, JsonEvent, Framed, ZeroMq, Mqtt, Engine),
)


def through(name: str, protocols: Iterable[type[ClientProtocol]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, list(protocols), ids=lambda protocol: protocol.__name__)


def deep(levels: int) -> str:
    return "<a>" * levels + "</a>" * levels


def with_attributes(name: str, count: int) -> str:
    return "<x" + "".join(f' {name}{number}="u"' for number in range(count)) + "/>"


DECLARING = with_attributes("xmlns:p", limits.DECLARATIONS + 1)
TOO_MANY = "<a>" + "<b xmlns='u'/>" * (limits.PAYLOAD_DECLARATIONS + 1) + "</a>"
TOO_LARGE = {
    deep(limits.PAYLOAD_LEVELS + 1): f"a payload has more than {limits.PAYLOAD_LEVELS} levels",
    DECLARING: f"an element declares more than {limits.DECLARATIONS} namespaces",
    with_attributes("a", limits.ATTRIBUTES + 1): f"an element has more than {limits.ATTRIBUTES} attributes",
    TOO_MANY: f"a payload declares {limits.PAYLOAD_DECLARATIONS + 1} namespaces|the request has too many elements",
}


@through("way", PUBLISH_PROTOCOLS)
def test_order_limits_and_refusals_of_messages(way: type[PublishProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    payloads = [*(f"<n>{number}</n>" for number in range(12)), deep(limits.PAYLOAD_LEVELS)]
    with opened(way, setup) as protocol:
        assert [protocol.publish("a/b", each) for each in payloads] == [""] * len(payloads)
        for topic in ("a//.", "a/b[", "1a", "a|b"):
            assert protocol.publish(topic, "<x/>"), topic
        if way.xml:
            for payload, reason in TOO_LARGE.items():
                assert re.match(reason, protocol.publish("a/b", payload)), payload[:40]
        if way.xml and way.namespaces:  # in the older envelope invalid XML is text
            for payload in ("<x>&e;</x>", "<p:x/>"):
                assert "not well-formed" in protocol.publish("a/b", payload), payload
            if way not in (ZeroMq, Mqtt):  # where other content than an element is text
                why = protocol.publish("a/b", "<!DOCTYPE x []><x/>")
                assert re.search("not well-formed|document type declaration", why)
        assert setup.stored == [protocol.stored(each) for each in payloads]
        assert {each.topic for each in setup.parts.notifications.accepted} == {"a/b"}
        setup.parts.notifications.error = InfrastructureError("Kafka is unavailable", 1.0)
        assert "Kafka is unavailable" in protocol.publish("a/b", "<x/>")
        setup.parts.notifications.error = None
        assert protocol.publish("a/b", "<y/>") == ""
    assert protocol.stored("<y/>") in setup.stored


@through("way", (way for way in PUBLISH_PROTOCOLS if way.has_user))  # engines have their own users
def test_rights_to_publish(way: type[PublishProtocol], tmp_path: Path) -> None:
    anna = Setup(tmp_path, "anna")
    with opened(way, anna) as protocol:
        assert protocol.publish("a/b", "<x/>") == ""
        before = anna.written
        assert protocol.publish("c", "<x/>") == "anna may not publish to c"
        assert anna.written == before
    assert anna.stored == [protocol.stored("<x/>")]
    bert = Setup(tmp_path, "bert", topics=TopicSettings(fixed=True))
    bert.parts.have_topics("a/b")
    with opened(way, bert) as protocol:
        before = bert.written
        assert protocol.publish("a/b", "<x/>") == "bert may not publish to a/b"
        assert protocol.publish("a/c", "<x/>") == "bert may not publish to a/c", "the same refusal as for a topic"
        assert bert.written == before


@pytest.mark.parametrize("user", ["", "anna"])
@through("way", PUBLISH_PROTOCOLS)
def test_no_client_publishes_operator_events(way: type[PublishProtocol], tmp_path: Path, user: str) -> None:
    setup, topic = Setup(tmp_path, user), f"{SYSTEM}/breaker/closed"
    setup.parts.have_topics(topic)
    with opened(way, setup) as protocol:
        before = setup.written
        reason = protocol.publish(quote(topic, safe="{}/:") if issubclass(way, Post) else topic, "<x/>")
        assert setup.written == before
    # Topics in the older envelope have no namespace: it cannot contain these.
    assert ("only the engine publishes" if way.namespaces else "is not a legal topic name") in reason


@through("way", PUBLISH_PROTOCOLS)
def test_a_fixed_topic_set_and_types_of_topics(way: type[PublishProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path, topics=TopicSettings(fixed=True, check_types=True))
    setup.parts.have_topics("a/b")
    setup.parts.have_topics("a/typed", types=("{urn:o}order",))
    with opened(way, setup) as protocol:
        assert protocol.publish("a/c", "<x/>") == "there is no topic a/c, and the topic set is fixed"
        assert protocol.publish("a/b", "<x/>") == ""
        assert setup.stored == [protocol.stored("<x/>")]
        if way.xml:  # JSON has only one type
            assert "is of the type x, and the topic a/typed takes {urn:o}order" in protocol.publish("a/typed", "<x/>")
            assert protocol.publish("a/typed", '<o:order xmlns:o="urn:o"/>') == ""
            assert len(setup.stored) == 2


# Engines are not limited. A message in parts is counted before its type is known; JSON always has its type.
@through("way", (way for way in PUBLISH_PROTOCOLS if way.has_user and way.xml and way is not InParts))
def test_deliveries_are_limited_and_refused_messages_have_none(way: type[PublishProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path, topics=TopicSettings(check_types=True))
    setup.parts.have_topics("a/b", types=("{urn:o}order",))
    for number in range(2):
        assert setup.soap(soap.subscribe(f"{CONSUMER}{number}", soap.topic_expression("a//."))) == ""
    order = '<o:order xmlns:o="urn:o"/>'
    with opened(way, setup) as protocol:
        setup.parts.gateway.gate = Gate(Rates(LimitSettings(deliveries_per_minute=3), Clock()))
        for _ in range(5):
            assert "is of the type x" in protocol.publish("a/b", "<x/>")
        assert [protocol.publish("a/b", order) for _ in range(2)] == ["", ""]
        assert "3 deliveries per minute" in protocol.publish("a/b", order)
    assert len(setup.stored) == 2


@through("way", (way for way in PUBLISH_PROTOCOLS if way.keys))
def test_a_repetition_is_stored_once(way: type[PublishProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.parts.gateway.repeats = Repeats(RepeatMemory(600))
    with opened(way, setup) as protocol:
        for payload, key in (("<x/>", "k1"), ("<x/>", "k1"), ("<x/>", "k2"), ("<y/>", "k1")):
            assert protocol.publish("a/b", payload, key) == ""
    assert setup.stored == [protocol.stored(each) for each in ("<x/>", "<x/>", "<y/>")]


@through("way", PUBLISH_PROTOCOLS)
def test_required_registration(way: type[PublishProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path, settings=GatewaySettings(requires_registration=True))
    with opened(way, setup) as protocol:
        reason = protocol.publish("a/b", "<x/>")
    if way in (Registered, Engine):
        assert (reason, setup.stored) == ("", ["<x/>"])
    else:
        assert reason.startswith("only registered publishers may publish here")
        assert (setup.stored, setup.parts.parts.records) == ([], [])


class SubscribeProtocol(ClientProtocol):
    """A protocol for subscriptions."""

    pushed: ClassVar[bool] = True
    """Whether messages are pushed to an endpoint of the client."""
    reasons: ClassVar[bool] = True
    """Whether a refusal has a reason: the older envelope has a single word."""
    counted: ClassVar[bool] = True
    """Whether the quota of subscriptions applies."""
    delivery: ClassVar[bool] = True
    """Whether it accepts a p:Delivery."""

    @abstractmethod
    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        """Subscribe to a topic and its subtree; `delivery` is an attribute of p:Delivery. Empty if granted, otherwise
        the reason."""

    def is_refused(self, reason: str, words: str) -> bool:
        """Whether the answer has these words, or is a refusal without a reason."""
        return words in reason if self.reasons else reason == "faild"


class SoapSubscribe(SubscribeProtocol):
    version, policy = "1.1", ""

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        policy = self.policy + (f"<p:Delivery {delivery}/>" if delivery else "")
        body = soap.subscribe(to, soap.topic_expression(f"{topic}//."), policy=policy)
        return self.setup.soap(body, version=self.version)


class Soap12Subscribe(SoapSubscribe):
    version = "1.2"


class CloudEventsSubscribe(SoapSubscribe):
    policy = '<p:CloudEvents Mode="batched"/>'


class EventStream(SubscribeProtocol):
    pushed, delivery = False, False

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        return why(asyncio.run(self.setup.parts.hang_up_after_the_head(f"/events/{topic}//.", self.setup.headers)))


class PlainOldSubscribe(SubscribeProtocol):
    delivery = False

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        return self.setup.soap(legacy.subscribe(topic.replace("/", ":"), to), "/WSN/Broker")


class WsnProcessSubscribe(SubscribeProtocol):
    reasons, delivery = False, False

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        return self.setup.wsn_process(legacy.subscribe(topic.replace("/", ":"), to))


class OnvifSubscribe(SubscribeProtocol):
    pushed = False

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        policy = soap.subscription_policy(f"<p:Delivery {delivery}/>", "tev") if delivery else ""
        body = (
            '<tev:CreatePullPointSubscription xmlns:tev="http://www.onvif.org/ver10/events/wsdl"><tev:Filter>'
            f"{soap.topic_expression(f'{topic}//.')}</tev:Filter>{policy}</tev:CreatePullPointSubscription>"
        )
        return self.setup.soap(body, "/onvif/event_service")


class FramedSubscribe(SubscribeProtocol):
    pushed = False

    def open(self, stack: ExitStack) -> None:
        self.client = framed_client(self.setup, stack)

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        name, _, value = delivery.partition("=")
        body = frames.SubscribeBody(f"{topic}//.", delivery={name: value.strip('"')} if name else {})
        answer = self.client.request(FrameKind.SUBSCRIBE, body)
        return "" if answer.kind == FrameKind.RECEIPT else frames.read_body(answer, frames.ErrorBody).text


class CreateTrigger(SubscribeProtocol):
    pushed, counted, delivery = False, False, False
    made = 0

    def subscribe(self, topic: str, to: str = CONSUMER, delivery: str = "") -> str:
        self.made += 1
        return self.setup.soap(
            f'<p:CreateTrigger xmlns:p="urn:arborcast:policy" Name="t{self.made}"><wsnt:Filter>'
            f"{soap.topic_expression(f'{topic}//.')}</wsnt:Filter><p:Publish>{soap.topic('a/to')}"
            "<wsnt:Message><x/></wsnt:Message></p:Publish></p:CreateTrigger>"
        )


SUBSCRIBE_PROTOCOLS: tuple[type[SubscribeProtocol], ...] = (
    *(SoapSubscribe, Soap12Subscribe, CloudEventsSubscribe, EventStream, PlainOldSubscribe, WsnProcessSubscribe),
    *(OnvifSubscribe, FramedSubscribe, CreateTrigger),
)


@through("entry", SUBSCRIBE_PROTOCOLS)
def test_rights_to_subscribe(entry: type[SubscribeProtocol], tmp_path: Path) -> None:
    anna = Setup(tmp_path, "anna", GatewaySettings(subscriptions_per_owner=2))
    anna.parts.have_topics("a/to")
    with opened(entry, anna) as protocol:
        assert protocol.subscribe("a/b") == ""
        before = anna.written
        assert protocol.is_refused(protocol.subscribe("c"), "anna may not subscribe to all of")
        assert anna.written == before
        if entry.counted:  # triggers have their own quota
            assert protocol.subscribe("a/c") == ""
            assert protocol.is_refused(protocol.subscribe("a/d"), "'anna' has 2 subscriptions, the maximum of 2")
            if entry.pushed:
                assert protocol.subscribe("a/b") == "", "an equal subscription is not counted again"
            assert len(list(anna.parts.table.subscriptions())) == 2
    olga = Setup(tmp_path, "olga", topics=TopicSettings(fixed=True))
    olga.parts.have_topics("a/b", "a/to")
    with opened(entry, olga) as protocol:
        why, other = protocol.subscribe("a/b"), protocol.subscribe("a/c")
        assert protocol.is_refused(why, "olga may not subscribe to all of")
        assert other.replace("a/c", "a/b").replace("a:c", "a:b") == why, "the same refusal as for a topic"
        assert olga.parts.control.records == []


@through("entry", SUBSCRIBE_PROTOCOLS)
def test_subscriptions_without_topics_or_reachable_endpoint(entry: type[SubscribeProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path, topics=TopicSettings(fixed=True))
    setup.parts.have_topics("a/b", "a/to")
    setup.parts.gateway.dns_check = DnsCheck(THIS_MACHINE, lambda host, port: ["10.0.0.1"])
    with opened(entry, setup) as protocol:
        assert protocol.is_refused(protocol.subscribe("c"), "selects no topic of the fixed topic set")
        if entry.pushed:
            for address, words in (
                ("http://inside.example/", "has a host that may not be reached"),
                ("http://169.254.169.254/", "the ConsumerReference"),
                ("http://127.0.0.1:8080/wsn/pullpoints/none", "names a pull point that does not exist"),
            ):
                assert protocol.is_refused(protocol.subscribe("a/b", address), words), address
        assert setup.parts.control.records == []
        assert protocol.subscribe("a/b") == ""


# The others accept FragmentBytes, or no p:Delivery.
@through("entry", (entry for entry in SUBSCRIBE_PROTOCOLS if entry.delivery))
def test_delivery_policies(entry: type[SubscribeProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    with opened(entry, setup) as protocol:
        why = protocol.subscribe("a/b", delivery='FragmentBytes="3000"')
        assert "FragmentBytes is for subscribers in the older form" in why
        assert setup.parts.control.records == []
        assert protocol.subscribe("a/b", delivery='Priority="7"') == ""
        assert only_subscription(setup.parts).policy.priority == 7


@through("entry", (entry for entry in SUBSCRIBE_PROTOCOLS if entry.pushed))
def test_a_repeated_subscription_ends_its_suspension(entry: type[SubscribeProtocol], tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    with opened(entry, setup) as protocol:
        assert protocol.subscribe("a/b") == ""
        made = only_subscription(setup.parts)
        setup.parts.suspensions.apply(SubscriptionSuspended(made.id, "refused", 1, 2))
        assert made.id in setup.parts.suspensions
        assert protocol.subscribe("a/b") == ""
        assert only_subscription(setup.parts).id == made.id
        assert made.id not in setup.parts.suspensions


def test_a_reference_is_bounded(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for size, accepted in ((limits.REFERENCE // 2, True), (limits.REFERENCE, False)):
        parameter = f'<wsa:ReferenceParameters><u:w xmlns:u="urn:u">{"w" * size}</u:w></wsa:ReferenceParameters>'
        body = soap.subscribe(filters=soap.topic_expression("a"))
        reason = setup.soap(body.replace("</wsa:Address>", f"</wsa:Address>{parameter}"))
        assert reason == "" if accepted else "ConsumerReference has 16384 bytes at most" in reason
