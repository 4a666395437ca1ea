"""CloudEvents of the project's SDK in both directions, and in event streams with curl during kills of gateways."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from lxml import etree

from arborcast.client import Client
from tests.support.dispatch_job import IN_BOTH_GEARS, Own, RunningJob
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.receiver import Received, Receiver
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_GEARS]


def publish(gateway: GatewayRun, event: CloudEvent, mode: str = "structured") -> None:
    message = (to_binary_event if mode == "binary" else to_structured_event)(event)
    answer = requests.post(f"{gateway.base}/publish", headers=message.headers, data=message.body, timeout=60)
    assert answer.status_code == 202, answer.text


def order(root: str, number: int) -> CloudEvent:
    attributes = {"id": str(number), "source": "/shop", "type": "com.example.order", "subject": f"{root}/orders"}
    attributes |= {"specversion": "1.0", "datacontenttype": "application/json", "sequence": f"{number:06}"}
    return CloudEvent(attributes, {"n": number})


def read(request: Received) -> BaseCloudEvent:
    return from_http_event(HTTPMessage(request.headers, request.body))


def numbers(requests: list[Received], mode: str) -> list[int]:
    if mode == "batched":
        return [each["data"]["n"] for request in requests for each in json.loads(request.body)]
    return [data["n"] for request in requests if isinstance(data := read(request).get_data(), dict)]


def test_every_mode_in_and_out(gateway: GatewayRun, receiver: Receiver, own: Own) -> None:
    """Beside a subscriber with SOAP."""
    root, modes = own.topic("shop"), ("binary", "structured", "batched")
    with Client(gateway.broker) as client:
        for mode in modes:
            client.subscribe(f"{root}//.", to=receiver.url(f"/{mode}"), cloudevents=mode)
        client.subscribe(f"{root}//.", to=receiver.url("/soap"))
    for number in range(20):
        publish(gateway, order(root, number), ("binary", "structured")[number % 2])
    wait_until(lambda: all(len(numbers(receiver.received(f"/{mode}"), mode)) >= 20 for mode in modes), "twenty each")
    for mode in modes:
        assert numbers(receiver.received(f"/{mode}"), mode) == list(range(20))
    first = read(receiver.received("/binary")[0]).get_attributes()
    assert (first["source"], first["type"], first["subject"]) == (gateway.base, "com.example.order", f"{root}/orders")
    assert first["sequence"] == "000000"
    assert first["id"] == receiver.received("/binary")[0].headers["arborcast-notification-id"]
    wait_until(lambda: len(receiver.names("/soap")) == 20, "twenty with SOAP")
    payload = etree.fromstring(receiver.received("/soap")[0].body).find(".//{*}Message/*")
    assert payload is not None
    assert json.loads(payload.text or "") == {"n": 0}


@pytest.fixture(scope="module")
def other(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRun]:
    """A second gateway of the same engine."""
    with gateway_run(tmp_path_factory.mktemp("other"), job.settings.kafka) as run:
        yield run


class Curl:
    """The output of `curl -N`: complete events only, as a client takes them."""

    def __init__(self, url: str, *options: str) -> None:
        self.text = ""
        command = ["curl", "-sN", "--noproxy", "*", *options, url]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    @property
    def blocks(self) -> list[dict[str, str]]:
        """The fields of each block."""
        blocks = [block.splitlines() for block in self.text.split("\n\n")[:-1]]
        return [dict(line.split(": ", 1) for line in block if ": " in line) for block in blocks]

    @property
    def numbers(self) -> list[int]:
        return [json.loads(block["data"])["data"]["n"] for block in self.blocks if "data" in block]

    @property
    def last_id(self) -> str:
        return next((block["id"] for block in reversed(self.blocks) if "id" in block), "")

    def wait(self) -> None:
        """Wait for its exit, and read all output."""
        self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Curl:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()


def publish_numbers(gateway: GatewayRun, root: str, numbers: range) -> None:
    for number in numbers:
        answer = gateway.session.post(f"{gateway.base}/publish/{root}/a", json={"n": number}, timeout=60)
        assert answer.status_code == 202


def test_a_stream_continues_at_another_gateway(gateway: GatewayRun, other: GatewayRun, own: Own) -> None:
    """Cut by the client, by a kill of its gateway, and by the client's next connection."""
    root = own.topic("stream")
    address = f"/events/{root}//."
    with Curl(gateway.base + address) as first:
        wait_until(lambda: first.last_id, "the stream")
        publish_numbers(gateway, root, range(20))
        wait_until(lambda: len(first.numbers) == 20, "twenty")
    found = first.numbers
    publish_numbers(other, root, range(20, 40))
    with Curl(other.base + address, "-H", f"Last-Event-ID: {first.last_id}") as second:
        wait_until(lambda: len(second.numbers) >= 10, "some of the rest")
        publish_numbers(gateway, root, range(40, 50))
        other.kill()  # while messages are in flight
        second.wait()
    found += second.numbers
    publish_numbers(gateway, root, range(50, 60))
    with Curl(gateway.base + address, "-H", f"Last-Event-ID: {second.last_id}") as third:
        wait_until(lambda: len(found) + len(third.numbers) >= 60, lambda: f"all, not {found + third.numbers}")
        assert found + third.numbers == list(range(60)), "nothing lost, nothing twice, in order"
        other.start()
        with Curl(other.base + address, "-H", f"Last-Event-ID: {third.last_id}") as fourth:
            third.wait()  # the client's earlier connection ends
            publish_numbers(other, root, range(60, 70))
            wait_until(lambda: len(fourth.numbers) == 10, "the last ten")
            assert fourth.numbers == list(range(60, 70))
        assert len(found) + len(third.numbers) == 60
