"""Consumers are asked whether they agree, where the settings say so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from arborcast.client.listener import Listener
from arborcast.core.errors import InfrastructureError
from arborcast.core.security.outbound import AddressPolicy
from arborcast.ingest.consumers import DnsCheck, OwnershipProof
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import ConsumerRefused
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver

Behaviour = Callable[[BaseHTTPRequestHandler, str, bytes], tuple[int, bytes]]


@pytest.fixture
def consumer() -> Iterator[Callable[[Behaviour], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(behave: Behaviour) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                status, answer = behave(self, self.headers.get("Arborcast-Challenge", ""), body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def hook(allowed: str, status: int, asked: list[str]) -> type[BaseHTTPRequestHandler]:
    """A receiver of CloudEvents that allows this origin, and records which one asked."""

    class Hook(BaseHTTPRequestHandler):
        def do_OPTIONS(self) -> None:
            asked.append(self.headers["WebHook-Request-Origin"])
            self.send_response(status)
            self.send_header("WebHook-Allowed-Origin", allowed)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Hook


@pytest.mark.parametrize(
    ("allowed", "status", "agrees"),
    [
        ("*", 200, True),
        ("127.0.0.1", 204, True),
        ("other.example", 200, False),
        ("", 200, False),
        ("*", 405, False),
    ],
)
def test_a_receiver_of_cloud_events_agrees_as_a_web_hook(allowed: str, status: int, agrees: bool) -> None:
    policy = '<p:CloudEvents xmlns:p="urn:arborcast:policy"/>'
    more = f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>"
    asked: list[str] = []
    gateway = parts()
    with ThreadingHTTPServer(("127.0.0.1", 0), hook(allowed, status, asked)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        answer = gateway.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:{server.server_port}/", more=more)))
        server.shutdown()
    assert asked == ["127.0.0.1"]
    assert answer.status == (200 if agrees else 500)
    assert (
        agrees or "must be answered with 200 and that header's value, or *, in WebHook-Allowed-Origin" in answer.reason
    )
    assert bool(gateway.control.records) is agrees


def parts(policy: AddressPolicy = THIS_MACHINE) -> GatewayParts:
    made = GatewayParts()
    made.gateway.proof = OwnershipProof(policy)
    return made


def subscribe(gateway: GatewayParts, to: str) -> HttpAnswer:
    return gateway.post(soap.envelope(soap.subscribe(to=to)))


def test_a_consumer_that_agrees_is_asked_once(consumer: Callable[[Behaviour], str]) -> None:
    asked: list[tuple[str, bytes]] = []

    def agree(_: BaseHTTPRequestHandler, word: str, body: bytes) -> tuple[int, bytes]:
        asked.append((word, body))
        return 200, word.encode()

    gateway = parts()
    url = consumer(agree)

    assert subscribe(gateway, url).status == 200
    assert subscribe(gateway, url).status == 200, "the same again renews what was agreed to"

    ((word, body),) = asked
    assert len(word) >= 40
    assert body == b"", "who repeats what it is sent must not agree by that"
    assert subscribe(gateway, url + "other").status == 200
    assert len({word for word, _ in asked}) == 2, "each time another word"


@pytest.mark.parametrize(
    "behave",
    [
        lambda handler, word, body: (202, b""),  # any consumer that knows nothing of this
        lambda handler, word, body: (200, b""),
        lambda handler, word, body: (200, body),
        lambda handler, word, body: (200, str(handler.headers).encode()),  # repeats all that it was sent
        lambda handler, word, body: (200, word[:-1].encode()),
        lambda handler, word, body: (200, word.encode() + b"x" * 5_000),
        lambda handler, word, body: (201, word.encode()),
        lambda handler, word, body: (500, word.encode()),
    ],
)
def test_who_does_not_agree_is_not_subscribed(behave: Behaviour, consumer: Callable[[Behaviour], str]) -> None:
    gateway = parts()

    answer = subscribe(gateway, consumer(behave))

    assert (answer.status, answer.fault) == (500, "SubscribeCreationFailedFault")
    code = answer.root.find(".//{http://docs.oasis-open.org/wsrf/bf-2}ErrorCode")
    assert code is not None
    assert code.text == "ownership"
    assert gateway.control.records == []


def test_nobody_is_asked_where_nobody_may_be_called() -> None:
    with Receiver() as receiver:
        with pytest.raises(ConsumerRefused) as refused:
            asyncio.run(OwnershipProof(AddressPolicy()).prove(receiver.url("/")))

        assert refused.value.rule == "loopback"
        assert receiver.connections == 0


def test_the_older_envelope_is_held_to_the_same(consumer: Callable[[Behaviour], str]) -> None:
    gateway = parts()
    url = consumer(lambda handler, word, body: (202, b""))

    gateway.post(legacy.wsn_process(legacy.subscribe("all:alarm", url)), "/wsnprocess/")

    assert gateway.control.records == []


@pytest.mark.parametrize(
    ("owners", "answered"),
    [
        ([""] * 20, [True] * 16 + [False] * 4),
        # One who has many asked leaves room for others.
        (["anna"] * 10 + ["bert"] * 3, [True] * 4 + [False] * 6 + [True] * 3),
    ],
)
def test_only_so_many_are_asked_at_once(
    consumer: Callable[[Behaviour], str], owners: list[str], answered: list[bool]
) -> None:
    release = threading.Event()

    def slow(_: BaseHTTPRequestHandler, word: str, body: bytes) -> tuple[int, bytes]:
        release.wait(120)
        return 200, word.encode()

    url = consumer(slow)

    async def ask_many() -> list[object]:
        asked = [asyncio.ensure_future(proof.prove(url, owner)) for owner in owners]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert done
        release.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    proof = OwnershipProof(THIS_MACHINE)
    outcomes = asyncio.run(ask_many())

    assert [type(each) for each in outcomes] == [type(None) if each else InfrastructureError for each in answered]
    assert not proof._of


def test_our_listener_agrees() -> None:
    got: list[object] = []
    with Listener(got.append) as listener:
        assert subscribe(parts(), listener.url).status == 200

        odd = requests.post(listener.url, headers={"Arborcast-Challenge": "<script>alert(1)</script>"}, timeout=60)
        assert (odd.status_code, odd.content) == (400, b"")
    assert got == []


def asking(reply_to: str, message_id: str = "urn:uuid:1") -> bytes:
    header = f"<wsa:MessageID>{message_id}</wsa:MessageID>"
    header += f"<wsa:ReplyTo><wsa:Address>{reply_to}</wsa:Address></wsa:ReplyTo>"
    return soap.envelope(soap.notify(soap.message("t:jobs")), header=header)


def with_queue(proof: OwnershipProof) -> GatewayParts:
    made = GatewayParts()
    made.gateway.proof = proof
    made.table.apply(TopicRecord(TopicPath("{urn:t}jobs"), policy=TopicPolicy(queue=True)))
    return made


def test_the_reply_to_of_a_request_agrees_once_an_hour(consumer: Callable[[Behaviour], str]) -> None:
    """A server is told to answer there: without it a user could have any public address called."""
    words: list[str] = []

    def agree(_: BaseHTTPRequestHandler, word: str, body: bytes) -> tuple[int, bytes]:
        words.append(word)
        return 200, word.encode()

    gateway, url = with_queue(OwnershipProof(THIS_MACHINE)), consumer(agree)

    async def many() -> list[int]:
        broker = "/wsn/NotificationBroker"
        sent = [gateway.request("POST", broker, asking(url, f"urn:{number}")) for number in range(40)]
        return [each.status for each in await asyncio.gather(*sent)]

    assert asyncio.run(many()) == [202] * 40
    assert gateway.post(asking(url)).status == 202
    assert len(words) == 1
    assert gateway.post(asking(url + "other")).status == 202
    assert len(words) == 2

    stored = len(gateway.notifications.accepted)
    refused = gateway.post(asking(consumer(lambda handler, word, body: (202, b""))))
    assert "did not confirm" in refused.reason
    assert len(gateway.notifications.accepted) == stored
    pull_point = gateway.post(soap.envelope("<wsnt:CreatePullPoint/>")).text("Address") or ""
    assert gateway.post(asking(pull_point)).status == 202, "our own pull points need not be asked"


def test_the_name_of_a_reply_to_is_looked_up_once_a_minute() -> None:
    looked: list[str] = []
    found = {"good": "127.0.0.1", "inside": "169.254.169.254"}

    def resolve(host: str, port: int) -> list[str]:
        looked.append(host)
        return [found[host]]

    gateway = with_queue(OwnershipProof(THIS_MACHINE))
    gateway.gateway.proof, gateway.gateway.dns_check = None, DnsCheck(THIS_MACHINE, resolve)
    assert [gateway.post(asking("http://good/a")).status for _ in range(3)] == [202] * 3
    refused = gateway.post(asking("http://inside/a"))
    assert "wsa:ReplyTo" in refused.reason
    assert "may not be reached" in refused.reason
    assert looked == ["good", "inside"]


def test_a_publisher_that_is_to_be_subscribed_at_agrees(consumer: Callable[[Behaviour], str]) -> None:
    gateway = parts()

    def register(url: str, demand: str) -> HttpAnswer:
        topic = soap.topic("t:a").replace("wsnt:Topic", "br:Topic")
        return gateway.post(
            soap.envelope(
                '<br:RegisterPublisher xmlns:br="http://docs.oasis-open.org/wsn/br-2"><br:PublisherReference>'
                f"<wsa:Address>{url}</wsa:Address></br:PublisherReference>{topic}"
                f"<br:Demand>{demand}</br:Demand></br:RegisterPublisher>"
            )
        )

    silent = consumer(lambda handler, word, body: (202, b""))
    refused = register(silent, "true")
    assert refused.fault == "PublisherRegistrationRejectedFault"
    assert len(gateway.registrations) == 0
    assert register(silent, "false").status == 200, "nobody calls it"
    assert register(consumer(lambda handler, word, body: (200, word.encode())), "true").status == 200
