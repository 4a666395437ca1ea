"""Proofs that consumers agree to a subscription, if the settings require them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from unittest.mock import Mock

import pytest
import requests

from arborcast.client.listener import Listener
from arborcast.core.errors import InfrastructureError
from arborcast.core.security.outbound import AddressPolicy
from arborcast.ingest.consumers import DnsCheck, OwnershipProof
from arborcast.wire.errors import ConsumerRefused
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.http_server import Answer, AnsweringServer
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver

Behaviour = Callable[[Mapping[str, str], str, bytes], tuple[int, bytes]]
"""The status and body of an answer to a challenge, from its headers, its word and its body."""


class Consumer(AnsweringServer):
    """An endpoint with this answer to challenges, and with this status and allowed origin as a web hook."""

    def __init__(self, behave: Behaviour, hook: tuple[int, str] = (405, "")) -> None:
        self.behave, self.hook = behave, hook
        self.words: list[str] = []
        self.bodies: list[bytes] = []
        self.origins: list[str] = []
        super().__init__(self.respond)
        self.url = f"http://127.0.0.1:{self.port}/"

    def respond(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if headers[":method"] == "OPTIONS":
            self.origins.append(headers["webhook-request-origin"])
            return self.hook[0], b"", {"WebHook-Allowed-Origin": self.hook[1]}
        self.words.append(headers.get("arborcast-challenge", ""))
        self.bodies.append(body)
        return *self.behave(headers, self.words[-1], body), {}


def agree(headers: Mapping[str, str], word: str, body: bytes) -> tuple[int, bytes]:
    return 200, word.encode()


def take(headers: Mapping[str, str], word: str, body: bytes) -> tuple[int, bytes]:
    """Like a consumer that does not implement the challenge."""
    return 202, b""


@pytest.fixture
def consumer() -> Iterator[Callable[..., Consumer]]:
    servers: list[Consumer] = []

    def start(behave: Behaviour, hook: tuple[int, str] = (405, "")) -> Consumer:
        servers.append(Consumer(behave, hook))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def parts() -> GatewayParts:
    made = GatewayParts()
    made.gateway.proof = OwnershipProof(THIS_MACHINE)
    made.have_topics("{urn:t}jobs", queue=True)
    return made


def subscribe(gateway: GatewayParts, to: str) -> HttpAnswer:
    return gateway.post(soap.envelope(soap.subscribe(to=to)))


@pytest.mark.parametrize(
    ("status", "allowed", "agrees"),
    [(200, "*", True), (204, "127.0.0.1", True), (200, "other.example", False), (200, "", False), (405, "*", False)],
)
def test_receivers_of_cloud_events_agree_as_web_hooks(
    parts: GatewayParts, consumer: Callable[..., Consumer], allowed: str, status: int, agrees: bool
) -> None:
    hook = consumer(take, (status, allowed))
    answer = parts.post(soap.envelope(soap.subscribe(hook.url, policy="<p:CloudEvents/>")))
    assert (hook.origins, hook.words) == (["127.0.0.1"], [])
    assert (answer.status, bool(parts.control.records)) == (200 if agrees else 500, agrees)
    words = "must be answered with 200 and that header's value, or *, in WebHook-Allowed-Origin"
    assert agrees or words in answer.reason


def test_a_consumer_is_challenged_once(parts: GatewayParts, consumer: Callable[..., Consumer]) -> None:
    endpoint = consumer(agree)
    for _ in range(2):  # the second is a renewal
        assert subscribe(parts, endpoint.url).status == 200
    assert (len(endpoint.words), endpoint.bodies) == (1, [b""]), "an echo of the body is no agreement"
    assert len(endpoint.words[0]) >= 40
    assert subscribe(parts, f"{endpoint.url}other").status == 200
    assert len(set(endpoint.words)) == 2, "different challenges"


@pytest.mark.parametrize(
    "behave",
    [
        take,
        lambda headers, word, body: (200, b""),
        lambda headers, word, body: (200, body),
        lambda headers, word, body: (200, str(headers).encode()),  # an echo of the headers
        lambda headers, word, body: (200, word[:-1].encode()),
        lambda headers, word, body: (200, word.encode() + b"x" * 5_000),
        lambda headers, word, body: (201, word.encode()),
        lambda headers, word, body: (500, word.encode()),
    ],
)
def test_without_agreement_there_is_no_subscription(
    parts: GatewayParts, consumer: Callable[..., Consumer], behave: Behaviour
) -> None:
    url = consumer(behave).url
    answer = subscribe(parts, url)
    assert (answer.status, answer.fault) == (500, "SubscribeCreationFailedFault")
    assert answer.text("ErrorCode") == "ownership"
    parts.post(legacy.wsn_process(legacy.subscribe("all:alarm", url)), "/wsnprocess/")
    assert parts.control.records == []


async def test_forbidden_addresses_are_not_challenged() -> None:
    with Receiver() as receiver:
        with pytest.raises(ConsumerRefused) as refused:
            await OwnershipProof(AddressPolicy()).prove(receiver.url("/"))
        assert (refused.value.rule, receiver.connections) == ("loopback", 0)


@pytest.mark.parametrize(
    ("owners", "answered"),
    [
        ([""] * 20, [True] * 16 + [False] * 4),
        # One owner leaves slots for others.
        (["anna"] * 10 + ["bert"] * 3, [True] * 4 + [False] * 6 + [True] * 3),
    ],
    ids=["in total", "of an owner"],
)
async def test_parallel_proofs_are_limited(
    consumer: Callable[..., Consumer], owners: list[str], answered: list[bool]
) -> None:
    release = threading.Event()

    def slow(headers: Mapping[str, str], word: str, body: bytes) -> tuple[int, bytes]:
        release.wait(120)
        return agree(headers, word, body)

    url, proof = consumer(slow).url, OwnershipProof(THIS_MACHINE)
    proofs = [asyncio.ensure_future(proof.prove(url, owner)) for owner in owners]
    done, _ = await asyncio.wait(proofs, return_when=asyncio.FIRST_COMPLETED)
    assert done
    release.set()
    outcomes = await asyncio.gather(*proofs, return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None) if each else InfrastructureError for each in answered]
    assert not proof._under_way


async def test_a_proof_that_cannot_begin_occupies_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = OwnershipProof(THIS_MACHINE)
    monkeypatch.setattr(proof._client, "call", Mock(side_effect=RuntimeError("can't start new thread")))
    for _ in range(20):
        with pytest.raises(RuntimeError):
            await proof.prove("http://127.0.0.1:9/", "anna")


def test_the_client_s_listener_agrees(parts: GatewayParts) -> None:
    got: list[object] = []
    with Listener(got.append) as listener:
        assert subscribe(parts, listener.url).status == 200
        odd = requests.post(listener.url, headers={"Arborcast-Challenge": "<script>alert(1)</script>"}, timeout=60)
        assert (odd.status_code, odd.content) == (400, b"")
    assert got == []


def request_with(reply_to: str, message_id: str = "urn:uuid:1") -> bytes:
    header = f"<wsa:MessageID>{message_id}</wsa:MessageID>"
    header += f"<wsa:ReplyTo><wsa:Address>{reply_to}</wsa:Address></wsa:ReplyTo>"
    return soap.envelope(soap.notify(soap.message("t:jobs")), header=header)


def test_the_reply_to_of_a_request_agrees_once_an_hour(parts: GatewayParts, consumer: Callable[..., Consumer]) -> None:
    """Servers answer to this address: without a proof a user could make them call any public address."""
    endpoint = consumer(agree)

    async def many() -> list[int]:
        broker = "/wsn/NotificationBroker"
        sent = [parts.request("POST", broker, request_with(endpoint.url, f"urn:{number}")) for number in range(40)]
        return [each.status for each in await asyncio.gather(*sent)]

    assert asyncio.run(many()) == [202] * 40
    for url, times in ((endpoint.url, 1), (f"{endpoint.url}other", 2)):
        assert parts.post(request_with(url)).status == 202
        assert len(endpoint.words) == times
    stored = len(parts.notifications.accepted)
    assert "did not confirm" in parts.post(request_with(consumer(take).url)).reason
    assert len(parts.notifications.accepted) == stored
    pull_point = parts.post(soap.envelope("<wsnt:CreatePullPoint/>")).text("Address") or ""
    assert parts.post(request_with(pull_point)).status == 202, "own pull points need no proof"


def test_the_name_of_a_reply_to_is_looked_up_once_a_minute(parts: GatewayParts) -> None:
    looked: list[str] = []
    found = {"good": "127.0.0.1", "inside": "169.254.169.254"}

    def resolve(host: str, port: int) -> list[str]:
        looked.append(host)
        return [found[host]]

    parts.gateway.proof, parts.gateway.dns_check = None, DnsCheck(THIS_MACHINE, resolve)
    assert [parts.post(request_with("http://good/a")).status for _ in range(3)] == [202] * 3
    refused = parts.post(request_with("http://inside/a"))
    assert ("wsa:ReplyTo" in refused.reason, "may not be reached" in refused.reason) == (True, True)
    assert looked == ["good", "inside"]


def test_a_publisher_on_demand_agrees(parts: GatewayParts, consumer: Callable[..., Consumer]) -> None:
    def register(url: str, demand: str) -> HttpAnswer:
        return parts.post(soap.envelope(soap.register("t:a", publisher=url, demand=demand)))

    silent = consumer(take).url
    assert register(silent, "true").fault == "PublisherRegistrationRejectedFault"
    assert len(parts.registrations) == 0
    assert register(silent, "false").status == 200, "not called"
    assert register(consumer(agree).url, "true").status == 200
