"""Event streams with curl, over two gateways, while gateways are killed: real Kafka, real Spark, in both gears."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.support.dispatch_job import IN_BOTH_GEARS, RunningJob
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_GEARS]

_roots = itertools.count(1)


@pytest.fixture
def root() -> str:
    return f"stream{next(_roots)}"


@pytest.fixture(scope="module")
def other(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRun]:
    """A second gateway of the same engine."""
    with gateway_run(tmp_path_factory.mktemp("other"), job.settings.kafka) as run:
        yield run


class Curl:
    """What `curl -N` has printed: whole events only, as a client takes them."""

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
        """Until it has ended, and all of it is read."""
        self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def close(self) -> None:
        self.process.kill()
        self.wait()


@contextmanager
def curl(url: str, *options: str) -> Iterator[Curl]:
    running = Curl(url, *options)
    try:
        yield running
    finally:
        running.close()


def publish(gateway: GatewayRun, root: str, numbers: range) -> None:
    for number in numbers:
        answer = gateway.session.post(f"{gateway.base}/publish/{root}/a", json={"n": number}, timeout=60)
        assert answer.status_code == 202


def test_a_stream_goes_on_at_another_gateway(gateway: GatewayRun, other: GatewayRun, root: str) -> None:
    """Cut by the client, by the death of its gateway, and by the client's next connection."""
    address = f"/events/{root}//."
    with curl(gateway.base + address) as first:
        wait_until(lambda: first.last_id, "the stream")
        publish(gateway, root, range(20))
        wait_until(lambda: len(first.numbers) == 20, "twenty")
    found = first.numbers
    publish(other, root, range(20, 40))
    with curl(other.base + address, "-H", f"Last-Event-ID: {first.last_id}") as second:
        wait_until(lambda: len(second.numbers) >= 10, "some of the rest")
        publish(gateway, root, range(40, 50))
        other.kill()  # in the middle of what is on its way
        second.wait()
    found += second.numbers
    publish(gateway, root, range(50, 60))
    with curl(gateway.base + address, "-H", f"Last-Event-ID: {second.last_id}") as third:
        wait_until(lambda: len(found) + len(third.numbers) >= 60, lambda: f"all, not {found + third.numbers}")
        assert found + third.numbers == list(range(60)), "nothing lost, nothing twice, in order"
        other.start()
        with curl(other.base + address, "-H", f"Last-Event-ID: {third.last_id}") as fourth:
            third.wait()  # the client's earlier connection ends
            publish(other, root, range(60, 70))
            wait_until(lambda: len(fourth.numbers) == 10, "the last ten")
            assert fourth.numbers == list(range(60, 70))
        assert len(found) + len(third.numbers) == 60


def test_json_lines(gateway: GatewayRun, root: str) -> None:
    address = f"{gateway.base}/events/{root}//.?filter=contains(.,%22%3A%205%22)"
    with curl(address, "-i", "-H", "Accept: application/x-ndjson") as stream:
        wait_until(lambda: "\n\n" in stream.text, "the head")
        publish(gateway, root, range(10))
        wait_until(lambda: stream.text.endswith("}\n"), "one of ten")
        line = stream.text.strip().splitlines()[-1]
        assert json.loads(line)["data"] == {"n": 5}
        assert json.loads(line)["cursor"]
        assert '{"n": 4}' not in stream.text


def test_a_stream_that_is_ended_by_its_client(gateway: GatewayRun, root: str) -> None:
    answer = requests.get(f"{gateway.base}/events/{root}//.", stream=True, timeout=60)
    name = answer.headers["Arborcast-Stream"]
    before = gateway.metric("arborcast_subscriptions")
    ended = gateway.session.post(
        f"{gateway.base}/wsn/subscriptions/{name}",
        data='<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body>'
        '<Unsubscribe xmlns="http://docs.oasis-open.org/wsn/b-2"/></e:Body></e:Envelope>',
        timeout=60,
    )
    assert ended.status_code == 200
    answer.raw.read()  # to its end
    assert gateway.metric("arborcast_subscriptions") == before - 1
    gone = requests.get(f"{gateway.base}/events/{root}//.", headers={"Last-Event-ID": name}, timeout=60)
    assert gone.status_code == 410


def test_the_lease_of_a_client_that_never_comes_back(job: RunningJob, tmp_path: Path, root: str) -> None:
    with gateway_run(tmp_path, job.settings.kafka, stream_lease_s=10) as short:
        with curl(f"{short.base}/events/{root}//.") as stream:
            wait_until(lambda: stream.last_id, "the stream")
        time.sleep(11)
        headers = {"Last-Event-ID": stream.last_id}
        answer = short.session.get(f"{short.base}/events/{root}//.", headers=headers, timeout=60)
        assert answer.status_code == 410
        assert "10 s without a connection" in answer.text
