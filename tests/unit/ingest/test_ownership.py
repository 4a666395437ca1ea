"""Consumers are asked whether they agree, where the settings say so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from core.errors import InfrastructureError
from core.security.outbound import AddressPolicy
from ingest.client.listener import Listener
from ingest.consumers import OwnershipProof
from ingest.errors import ConsumerRefused
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver, refusing_url

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
            asyncio.run(OwnershipProof(AddressPolicy()).ask(receiver.url("/")))

        assert refused.value.rule == "loopback"
        assert receiver.connections == 0


def test_a_consumer_that_is_away_cannot_agree() -> None:
    with refusing_url() as url:
        assert subscribe(parts(), url).fault == "SubscribeCreationFailedFault"


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
        asked = [asyncio.ensure_future(proof.ask(url, owner)) for owner in owners]
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
