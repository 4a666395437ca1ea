"""Forbidden addresses of consumers and publishers: refused at Subscribe and RegisterPublisher, and again at connect;
addresses in addressing headers are never called."""

from __future__ import annotations

import asyncio
import socket
import threading

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

BF = "{http://docs.oasis-open.org/wsrf/bf-2}"
PUBLIC = AddressPolicy()


def rule_of(answer: HttpAnswer) -> str:
    """The machine-readable rule in the fault."""
    code = answer.root.find(f".//{BF}ErrorCode")
    assert code is not None, answer.body
    assert code.get("dialect") == "urn:arborcast:outbound"
    return code.text or ""


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("http://127.0.0.1:9/x", "loopback"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://0x7f.1/", "spelling"),
        ("http://user:secret@public.example/", "userinfo"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_forbidden_addresses_are_refused(address: str, rule: str, version: str) -> None:
    parts = GatewayParts(outbound=PUBLIC)
    shown = ""
    registration = soap.register("t:a", publisher=address, demand="true")
    for body, fault, element in (
        (soap.subscribe(to=address), "SubscribeCreationFailedFault", "ConsumerReference"),
        (registration, "PublisherRegistrationRejectedFault", "PublisherReference"),
    ):
        answer = parts.post(soap.envelope(body, version))
        assert (answer.status, answer.fault, rule_of(answer)) == (500, fault, rule)
        assert element in answer.reason
        shown += answer.body.decode()
    assert "secret" not in shown
    assert parts.control.records == []


def test_older_clients_can_unsubscribe_forbidden_addresses() -> None:
    address = "http://127.0.0.1:9/x"
    parts = GatewayParts(outbound=THIS_MACHINE)
    parts.post(legacy.wsn_process(legacy.subscribe("all:alarm", address)), "/wsnprocess/")
    assert len(list(parts.table.subscriptions())) == 1
    parts.gateway.outbound = PUBLIC
    parts.post(legacy.wsn_process(legacy.unsubscribe("all:alarm", address)), "/wsnprocess/")
    assert list(parts.table.subscriptions()) == []


@pytest.mark.parametrize(
    ("host", "found", "refused"),
    [
        ("outside.example", ["1.1.1.1"], False),
        ("inside.example", ["10.7.7.7", "fd00::1"], True),
        ("mixed.example", ["10.7.7.7", "1.1.1.1"], False),  # only the allowed address is called
        ("nowhere.example", [], False),  # it may exist later
    ],
)
def test_names_are_looked_up_at_subscribe(host: str, found: list[str], refused: bool) -> None:
    def resolve(name: str, port: int) -> list[str]:
        assert name == host
        if not found:
            raise socket.gaierror(-2, "Name or service not known")
        return found

    parts = GatewayParts(outbound=PUBLIC)
    parts.gateway.dns_check = DnsCheck(PUBLIC, resolve)
    answer = parts.post(soap.envelope(soap.subscribe(to=f"http://{host}/x")))
    assert answer.status == (500 if refused else 200)
    if refused:
        assert (answer.fault, rule_of(answer)) == ("SubscribeCreationFailedFault", "private")
        assert "10.7.7.7" not in answer.body.decode(), "private addresses are not shown"
        rejected = parts.post(soap.envelope(soap.register("t:a", publisher=f"http://{host}/p", demand="true")))
        assert rejected.fault == "PublisherRegistrationRejectedFault"


async def test_a_slow_name_server_does_not_delay_subscribe() -> None:
    release = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        release.wait(120)
        return ["10.0.0.1"]

    check = DnsCheck(PUBLIC, slow, longest_s=0.05)
    # More than the concurrent lookups: the others are not queued.
    found = await asyncio.gather(*(check.refusal(f"http://h{number}.example/") for number in range(40)))
    release.set()
    assert found == [None] * 40


WSE, OLD_WSA = "http://schemas.xmlsoap.org/ws/2004/08/eventing", "http://schemas.xmlsoap.org/ws/2004/08/addressing"
VALID = {
    "Subscribe": soap.subscribe(),
    "Notify": soap.notify(),
    "RegisterPublisher": soap.register("t:a", publisher="http://127.0.0.1:9/", demand="true"),
}


@pytest.mark.parametrize("name", sorted({name for name, _ in _OPERATIONS}))
def test_addresses_in_messages_are_not_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither resolved nor connected to, in header or body, of accepted and refused messages. The answer is the HTTP
    response."""
    touched: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **more: touched.append(place))
    uri, _, local = name[1:].partition("}")
    with Receiver() as receiver:
        place = f"<wsa:Address>{receiver.url('/inside')}</wsa:Address>"
        old = place.replace("wsa:", "wse:")
        blocks = ("wsa:ReplyTo", "wsa:FaultTo", "wsa:From", "wsa:EndpointReference", "wsnt:ProducerReference")
        references = "".join(f"<{block}>{place}</{block}>" for block in blocks)
        for each in ("NotifyTo", "EndTo"):
            references += f'<wse:{each} xmlns:wse="{WSE}">{place}{old}</wse:{each}>'
        references += f'<a:ReplyTo xmlns:a="{OLD_WSA}">{place.replace("wsa:", "a:")}</a:ReplyTo>'
        header = references + f"<wsa:MessageID>urn:uuid:1</wsa:MessageID><wsa:To>{receiver.url('/to')}</wsa:To>"
        parts = GatewayParts()
        body = f'<o:{local} xmlns:o="{uri}">{references}{soap.topic("t:a")}</o:{local}>'
        for kind in {kind for known, kind in _OPERATIONS if known == name}:
            path = kind.value + ("x" if kind.value.endswith("/") else "")
            for version in ("1.1", "1.2"):
                assert parts.post(soap.envelope(body, version, header), path).status in (200, 202, 400, 500)
        if local in VALID:
            without_to = header.partition("<wsa:To>")[0]
            assert parts.post(soap.envelope(VALID[local], "1.1", without_to)).status in (200, 202)
        assert receiver.connections == 0
    assert touched == []


@pytest.mark.parametrize("inner", ["http://10.0.0.1/x", "http://public.example/x"])
def test_the_stored_address_is_the_checked_one(inner: str) -> None:
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


async def test_forbidden_addresses_of_publishers_are_not_called() -> None:
    """For earlier registrations and changed names: the address is checked when it is called."""

    class Blind(AddressPolicy):
        """Accepts any text; only the resolved address is checked. `localhost` is a name for the resolver."""

        def check_url(self, url: str) -> None:
            return None

    async def call(url: str, policy: AddressPolicy) -> None:
        registration = Registration("r1", "http://127.0.0.1/r1", EndpointReference(url), (), demand=True)
        calls = PublisherCalls(GatewayParts().gateway.own, 60, policy)
        await calls.subscribe(registration, TopicFilter("", "a", "a"), "http://127.0.0.1:9/")

    with Publisher() as publisher:
        by_name = publisher.url.replace("127.0.0.1", "localhost")
        for url, policy in ((publisher.url, PUBLIC), (by_name, Blind())):
            with pytest.raises(PublisherRefused, match="loopback"):
                await call(url, policy)
        assert publisher.requests == []
        await call(publisher.url, THIS_MACHINE)
        assert [each.operation for each in publisher.requests] == ["Subscribe"]
