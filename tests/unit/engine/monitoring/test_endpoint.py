from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from arborcast.core.errors import ConfigError
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.engine.monitoring import endpoint as endpoint_module
from arborcast.engine.monitoring.endpoint import Endpoint, Page, serve_job_sometime
from arborcast.engine.monitoring.stack_monitor import get, own_page
from arborcast.engine.settings.stack import MetricsSettings
from tests.support.certificates import make_certificates
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def _asked(query: Mapping[str, str]) -> bytes:
    return str(int(query["number"])).encode()


def _broken() -> bytes:
    raise RuntimeError("no")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    pages = {"/metrics": Page("text/plain", lambda: b"up 1\n"), "/broken": Page("text/plain", _broken, _asked)}
    endpoint = Endpoint("127.0.0.1", 0, pages, "test")
    endpoint.start()
    yield endpoint
    endpoint.close()


def test_pages_by_path(endpoint: Endpoint) -> None:
    base = f"http://127.0.0.1:{endpoint.port}"
    answer = requests.get(f"{base}/metrics?x=1", timeout=60)
    assert (answer.status_code, answer.text, answer.headers["Content-Type"]) == (200, "up 1\n", "text/plain")
    other = requests.get(f"{base}/", timeout=60)
    assert other.status_code == 404
    assert "/metrics" in other.text
    assert requests.get(f"{base}/broken", timeout=60).status_code == 500
    assert requests.get(f"{base}/broken?number=7&more=1", timeout=60).text == "7"
    refused = requests.get(f"{base}/broken?number=seven", timeout=60)
    assert (refused.status_code, "seven" in refused.text) == (400, True)
    assert requests.post(f"{base}/metrics", timeout=60).status_code == 501


def test_a_taken_port_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match=str(endpoint.port)):
        Endpoint("127.0.0.1", endpoint.port, {}, "second")


def test_a_port_whose_last_owner_was_killed_is_free_at_once() -> None:
    """What it had open stays with the system for a minute (TIME_WAIT): its successor must not wait for that."""
    first = Endpoint("127.0.0.1", 0, {"/": Page("text/plain", lambda: b"x")}, "first")
    first.start()
    with socket.create_connection(("127.0.0.1", first.port)) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while client.recv(4096):  # to its end: the server closed first, and keeps the connection in mind
            pass
    first.close()
    second = Endpoint("127.0.0.1", first.port, {}, "second")
    assert second.port == first.port
    second.close()


def test_a_job_whose_port_is_taken_serves_later(endpoint: Endpoint) -> None:
    settings = MetricsSettings(job_port=endpoint.port)
    serve_job_sometime(JobMetrics(), settings, pause_s=0.02)
    assert requests.get(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60).text == "up 1\n"
    endpoint.close()
    wait_until(lambda: _answers(endpoint.port))
    assert "arborcast_" in requests.get(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60).text


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/status.json", timeout=60).ok
    except requests.ConnectionError:
        return False


def test_a_page_of_our_own_part_behind_tls(endpoint: Endpoint, tmp_path: Path) -> None:
    context = make_certificates(tmp_path).server("elsewhere")
    endpoint._server.socket = context.wrap_socket(endpoint._server.socket, server_side=True)
    url = f"https://127.0.0.1:{endpoint.port}/metrics"
    assert own_page(url) == b"up 1\n"
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        get(url)


def test_a_page_that_is_not_there_is_told_from_one_that_cannot_be_had(endpoint: Endpoint) -> None:
    base = f"http://127.0.0.1:{endpoint.port}"
    with pytest.raises(FileNotFoundError):
        get(f"{base}/nothing")
    with pytest.raises(OSError, match="answered 500"):
        get(f"{base}/broken")


def test_web_pages_of_others_are_refused(endpoint: Endpoint) -> None:
    for headers in (
        {"Host": "evil.example:9464"},
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ):
        answer = requests.get(f"http://127.0.0.1:{endpoint.port}/metrics", headers=headers, timeout=60)
        assert (answer.status_code, "up 1" in answer.text) == (403, False)
    assert requests.get(f"http://localhost:{endpoint.port}/metrics", timeout=60).status_code == 200


def test_one_that_sends_a_byte_now_and_then_is_cut_off(endpoint: Endpoint) -> None:
    """Each byte comes long before a time limit of a single read would end, and the request never."""
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as slow:
        slow.settimeout(0.2)
        ended = False
        while not ended:  # the test's time limit ends it otherwise
            with contextlib.suppress(TimeoutError):
                try:
                    slow.sendall(b"G")
                    ended = not slow.recv(1)
                except ConnectionError:
                    ended = True


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_MOST_CONNECTIONS", 8)


@pytest.mark.usefixtures("few_connections")
def test_connections_without_a_request_shut_no_client_out(endpoint: Endpoint) -> None:
    others = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(3 * endpoint_module._MOST_CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), timeout=60))
        answer = requests.get(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60)
        assert answer.text == "up 1\n"
        assert threading.active_count() - others < 2 * endpoint_module._MOST_CONNECTIONS


@pytest.mark.usefixtures("few_connections")
def test_clients_that_read_no_answer_shut_no_client_out() -> None:
    pages = {"/large": Page("text/plain", lambda: bytes(32_000_000)), "/small": Page("text/plain", lambda: b"x")}
    endpoint = Endpoint("127.0.0.1", 0, pages, "large")
    endpoint.start()
    with contextlib.ExitStack() as held:
        for _ in range(2 * endpoint_module._MOST_CONNECTIONS):
            one = held.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), timeout=60))
            one.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        assert requests.get(f"http://127.0.0.1:{endpoint.port}/small", timeout=60).text == "x"
    endpoint.close()


def test_a_page_that_takes_long_is_made_once_at_a_time(endpoint: Endpoint) -> None:
    at_work, most = 0, 0
    gate = threading.Event()

    def make() -> bytes:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        gate.wait(60)
        at_work -= 1
        return b"x"

    slow = Endpoint("127.0.0.1", 0, {"/": Page("text/plain", make)}, "slow")
    slow.start()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(requests.get, f"http://127.0.0.1:{slow.port}/", timeout=60) for _ in range(4)]
        gate.set()
        assert [each.result().text for each in answers] == ["x"] * 4
    assert most == 1
    slow.close()
