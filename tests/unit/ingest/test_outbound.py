"""Which addresses a stranger can make the gateway store or call: refused at Subscribe and RegisterPublisher, and again
when it connects; addresses for answers are never called."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from arborcast.core.security.outbound import AddressPolicy
from arborcast.ingest.consumers import DnsCheck
from arborcast.ingest.demand.calls import PublisherCalls
from arborcast.ingest.http.app import _OPERATIONS
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.subscriptions import EndpointReference, TopicFilter
from arborcast.wire.errors import PublisherRefused
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.outbound import THIS_MACHINE
from tests.support.publisher import Publisher
from tests.support.receiver import Receiver

BR = "http://docs.oasis-open.org/wsn/br-2"
BF = "{http://docs.oasis-open.org/wsrf/bf-2}"
PUBLIC = AddressPolicy()


def register(publisher: str) -> str:
    return (
        f'<b:RegisterPublisher xmlns:b="{BR}"><b:PublisherReference><wsa:Address>{publisher}</wsa:Address>'
        f'</b:PublisherReference><b:Topic xmlns:t="urn:t" Dialect="{soap.DIALECT}Full">t:a</b:Topic>'
        "<b:Demand>true</b:Demand></b:RegisterPublisher>"
    )


def rule_of(answer: HttpAnswer) -> str:
    """What a program reads in the fault."""
    code = answer.root.find(f".//{BF}ErrorCode")
    assert code is not None, answer.body
    assert code.get("dialect") == "urn:arborcast:outbound"
    return code.text or ""


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("http://127.0.0.1:9/x", "loopback"),
        ("http://localhost/x", "loopback"),
        ("http://10.0.0.1/x", "private"),
        ("http://[fd00::1]/x", "private"),
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://[64:ff9b::a9fe:a9fe]/", "translated"),
        ("http://0x7f.1/", "spelling"),
        ("http://2130706433/", "spelling"),
        ("http://user:secret@public.example/", "userinfo"),
        ("gopher://public.example/", "scheme"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_subscribe_and_register_refuse_what_may_not_be_reached(address: str, rule: str, version: str) -> None:
    parts = GatewayParts(outbound=PUBLIC)

    answer = parts.post(soap.envelope(soap.subscribe(to=address), version))

    assert (answer.status, answer.fault, rule_of(answer)) == (500, "SubscribeCreationFailedFault", rule)
    assert "ConsumerReference" in answer.reason
    publisher = parts.post(soap.envelope(register(address), version))
    assert (publisher.status, publisher.fault) == (500, "PublisherRegistrationRejectedFault")
    assert rule_of(publisher) == rule
    assert "PublisherReference" in publisher.reason
    assert "secret" not in (answer.body + publisher.body).decode()
    assert parts.control.records == []


def test_in_the_older_envelope_what_may_not_be_reached_any_more_can_be_given_up() -> None:
    address = "http://127.0.0.1:9/x"
    parts = GatewayParts(outbound=THIS_MACHINE)
    parts.post(legacy.wsn_process(legacy.subscribe("all:alarm", address)), "/wsnprocess/")
    assert len(list(parts.table.subscriptions())) == 1

    parts.gateway.outbound = PUBLIC
    parts.post(legacy.wsn_process(legacy.unsubscribe("all:alarm", address)), "/wsnprocess/")

    assert list(parts.table.subscriptions()) == []


def resolving(**names: list[str] | None) -> Callable[[str, int], list[str]]:
    """A resolver that knows these names; one with None does not exist."""

    def resolve(host: str, port: int) -> list[str]:
        found = names[host.partition(".")[0]]
        if found is None:
            raise socket.gaierror(-2, "Name or service not known")
        return found

    return resolve


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("outside.example", False),
        ("inside.example", True),
        ("mixed.example", False),  # one may be reached, and only that one will be
        ("nowhere.example", False),  # it may exist tomorrow
    ],
)
def test_names_are_looked_up_at_subscribe(host: str, refused: bool) -> None:
    parts = GatewayParts(outbound=PUBLIC)
    resolve = resolving(
        outside=["1.1.1.1"], inside=["10.7.7.7", "fd00::1"], mixed=["10.7.7.7", "1.1.1.1"], nowhere=None
    )
    parts.gateway.dns_check = DnsCheck(PUBLIC, resolve)

    answer = parts.post(soap.envelope(soap.subscribe(to=f"http://{host}/x")))

    assert answer.status == (500 if refused else 200)
    if refused:
        assert (answer.fault, rule_of(answer)) == ("SubscribeCreationFailedFault", "private")
        assert "10.7.7.7" not in answer.body.decode(), "what names mean inside is not told"
        assert parts.post(soap.envelope(register(f"http://{host}/p"))).fault == "PublisherRegistrationRejectedFault"


def test_a_slow_name_server_does_not_hold_a_subscribe() -> None:
    release = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        release.wait(120)
        return ["10.0.0.1"]

    async def ask() -> list[object]:
        dns_check = DnsCheck(PUBLIC, slow, longest_s=0.05)
        # More than are looked up at once: the rest is not even queued.
        found = await asyncio.gather(*(dns_check.refusal(f"http://h{number}.example/") for number in range(40)))
        release.set()
        return list(found)

    assert asyncio.run(ask()) == [None] * 40


@pytest.mark.parametrize("header", ["ReplyTo", "FaultTo", "From"])
@pytest.mark.parametrize("version", ["1.1", "1.2"])
@pytest.mark.parametrize("good", [True, False])
def test_addresses_for_answers_are_never_called(
    header: str, version: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither resolved nor connected to, whether the answer is a fault or not; the answer is the HTTP response."""
    touched: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **more: touched.append(place))
    with Receiver() as receiver:
        headers = (
            f"<wsa:{header}><wsa:Address>{receiver.url('/reply')}</wsa:Address></wsa:{header}>"
            "<wsa:MessageID>urn:uuid:1</wsa:MessageID>"
            "<wsa:Action>http://docs.oasis-open.org/wsn/bw-2/NotificationProducer/SubscribeRequest</wsa:Action>"
        )
        body = soap.subscribe() if good else "<wsnt:Subscribe/>"

        answer = GatewayParts().post(soap.envelope(body, version, headers))

        assert answer.status == (200 if good else 500)
        assert receiver.connections == 0
    assert touched == []


@pytest.mark.parametrize("name", sorted({name for name, _ in _OPERATIONS}))
def test_no_address_inside_any_message_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the header and not in the body, by whatever element, in whatever message, carried out or refused."""
    touched: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **more: touched.append(place))
    uri, _, local = name[1:].partition("}")
    kinds = {kind for known, kind in _OPERATIONS if known == name}
    with Receiver() as receiver:
        place = f"<wsa:Address>{receiver.url('/inside')}</wsa:Address>"
        old = place.replace("wsa:", "wse:")
        references = (
            "".join(
                f"<{element}>{place}</{element}>"
                for element in (
                    "wsa:ReplyTo",
                    "wsa:FaultTo",
                    "wsa:From",
                    "wsa:EndpointReference",
                    "wsnt:ProducerReference",
                )
            )
            + f'<wse:NotifyTo xmlns:wse="http://schemas.xmlsoap.org/ws/2004/08/eventing">{place}{old}</wse:NotifyTo>'
            + f'<wse:EndTo xmlns:wse="http://schemas.xmlsoap.org/ws/2004/08/eventing">{place}{old}</wse:EndTo>'
            + '<a:ReplyTo xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing">'
            + place.replace("wsa:", "a:")
            + "</a:ReplyTo>"
        )
        asked = f'<o:{local} xmlns:o="{uri}">{references}{soap.topic("t:a")}</o:{local}>'
        header = references + f"<wsa:MessageID>urn:uuid:1</wsa:MessageID><wsa:To>{receiver.url('/to')}</wsa:To>"
        parts = GatewayParts()
        for kind in kinds:
            path = kind.value + ("x" if kind.value.endswith("/") else "")
            for version in ("1.1", "1.2"):
                assert parts.post(soap.envelope(asked, version, header), path).status in (200, 202, 400, 500)
        assert receiver.connections == 0
    assert touched == []


@pytest.mark.parametrize("inner", ["http://10.0.0.1/x", "http://public.example/x"])
def test_of_two_addresses_the_one_that_is_kept_is_the_one_that_is_judged(inner: str) -> None:
    outer = "http://10.0.0.1/x" if inner != "http://10.0.0.1/x" else "http://public.example/x"
    shapes = (
        f"<wsa:Address>{outer}</wsa:Address><wsa:EndpointReference><wsa:Address>{inner}</wsa:Address>"
        "</wsa:EndpointReference>",
        f"<wsa:Address>{outer}</wsa:Address><wsa:Address>{inner}</wsa:Address>",
        f"<wsa:Address>{outer}</wsa:Address><wsa:ReferenceParameters><wsa:Address>{inner}</wsa:Address>"
        "</wsa:ReferenceParameters>",
    )
    for shape in shapes:
        parts = GatewayParts(outbound=PUBLIC)
        reference = f"<wsnt:ConsumerReference>{shape}</wsnt:ConsumerReference>"
        answer = parts.post(soap.envelope(f"<wsnt:Subscribe>{reference}</wsnt:Subscribe>"))
        kept = [each.consumer.address for each in parts.table.subscriptions()]
        assert kept == (["http://public.example/x"] if answer.status == 200 else [])
        assert answer.status in (200, 500)


def registration(publisher: str) -> Registration:
    return Registration("r1", "http://127.0.0.1/r1", EndpointReference(publisher), (), demand=True)


TOPIC = TopicFilter("", "a", "a")


def test_publishers_are_not_called_where_they_may_not_be() -> None:
    """Registered while it was allowed, or by a name that leads elsewhere by now: judged when it is called."""
    with Publisher() as publisher:
        calls = PublisherCalls(GatewayParts().gateway.own, 60, PUBLIC)
        with pytest.raises(PublisherRefused, match="loopback"):
            asyncio.run(calls.subscribe(registration(publisher.url), TOPIC, "http://127.0.0.1:9/"))

        # The text says nothing; where the name leads does. `localhost` is a name to the resolver.
        class Blind(AddressPolicy):
            def check_url(self, url: str) -> None:
                return None

        calls = PublisherCalls(GatewayParts().gateway.own, 60, Blind())
        by_name = publisher.url.replace("127.0.0.1", "localhost")
        with pytest.raises(PublisherRefused, match="loopback"):
            asyncio.run(calls.subscribe(registration(by_name), TOPIC, "http://127.0.0.1:9/"))
        assert publisher.asked == []

        calls = PublisherCalls(GatewayParts().gateway.own, 60, THIS_MACHINE)
        asyncio.run(calls.subscribe(registration(publisher.url), TOPIC, "http://127.0.0.1:9/"))
        assert [asked.operation for asked in publisher.asked] == ["Subscribe"]
