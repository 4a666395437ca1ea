from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests

from arborcast.core.errors import ConfigError
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.engine.monitoring import endpoint as endpoint_module
from arborcast.engine.monitoring.endpoint import Endpoint, Page, serve_job_when_free
from arborcast.engine.monitoring.stack_monitor import get, own_page
from arborcast.engine.settings.stack import MetricsSettings
from tests.support.certificates import make_certificates
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@contextmanager
def serving(make: Callable[[], bytes] = lambda: b"up 1\n", **more: Page) -> Iterator[tuple[Endpoint, str]]:
    """An endpoint with a page /metrics, and its URL."""
    pages = {"/metrics": Page("text/plain", make), **{f"/{name}": page for name, page in more.items()}}
    endpoint = Endpoint("127.0.0.1", 0, pages, "test")
    yield endpoint, f"http://127.0.0.1:{endpoint.port}"
    endpoint.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as (endpoint, _):
        yield endpoint


def asked(url: str, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = requests.get(url, headers=named, timeout=60)
    return answer.status_code, answer.text


def test_pages_by_path_and_their_errors() -> None:
    def number(query: Mapping[str, str]) -> bytes:
        return str(int(query["number"])).encode()

    with serving(broken=Page("text/plain", Mock(side_effect=RuntimeError("no")), number)) as (endpoint, base):
        answer = requests.get(f"{base}/metrics?x=1", timeout=60)
        assert (answer.status_code, answer.text, answer.headers["Content-Type"]) == (200, "up 1\n", "text/plain")
        status, text = asked(f"{base}/")
        assert (status, "/metrics" in text) == (404, True)
        assert asked(f"{base}/broken")[0] == 500
        assert asked(f"{base}/broken?number=7&more=1") == (200, "7")
        status, text = asked(f"{base}/broken?number=seven")
        assert (status, "seven" in text) == (400, True)
        assert requests.post(f"{base}/metrics", timeout=60).status_code == 501
        with pytest.raises(FileNotFoundError):
            get(f"{base}/nothing")
        with pytest.raises(OSError, match="answered 500"):
            get(f"{base}/broken")
        with pytest.raises(ConfigError, match=str(endpoint.port)):
            Endpoint("127.0.0.1", endpoint.port, {}, "second")


def test_a_port_in_time_wait_is_free() -> None:
    with serving() as (first, _), socket.create_connection(("127.0.0.1", first.port)) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while client.recv(4096):  # the server closes first, and its side is in TIME_WAIT
            pass
    second = Endpoint("127.0.0.1", first.port, {}, "second")
    assert second.port == first.port
    second.close()


def test_a_job_whose_port_is_taken_serves_later() -> None:
    with serving() as (endpoint, base):
        serve_job_when_free(JobMetrics(), MetricsSettings(job_port=endpoint.port), pause_s=0.02)
        assert asked(f"{base}/metrics") == (200, "up 1\n")

    def text() -> str:
        with contextlib.suppress(requests.ConnectionError):
            return asked(f"{base}/metrics")[1]
        return ""

    wait_until(lambda: "arborcast_" in text())


def test_a_page_of_a_part_with_tls(endpoint: Endpoint, tmp_path: Path) -> None:
    context = make_certificates(tmp_path).server("elsewhere")
    endpoint._server.socket = context.wrap_socket(endpoint._server.socket, server_side=True)
    url = f"https://127.0.0.1:{endpoint.port}/metrics"
    assert own_page(url) == b"up 1\n"
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        get(url)


def test_requests_of_web_pages_are_refused(endpoint: Endpoint) -> None:
    url = f"http://localhost:{endpoint.port}/metrics"
    for headers in (
        {"Host": "evil.example:9464"},
        {"Origin": "https://evil.example"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
    ):
        status, text = asked(url, **headers)
        assert (status, "up 1" in text) == (403, False), headers
    assert asked(url)[0] == 200


def test_a_client_that_sends_single_bytes_is_cut_off(endpoint: Endpoint) -> None:
    """Each byte arrives within the time limit of a single read, and the request never ends."""
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


@pytest.mark.parametrize("request_line", [b"", b"GET /large HTTP/1.0\r\n\r\n"], ids=["no request", "no reading"])
def test_idle_connections_do_not_block_clients(monkeypatch: pytest.MonkeyPatch, request_line: bytes) -> None:
    monkeypatch.setattr(endpoint_module, "_MOST_CONNECTIONS", 8)
    others = threading.active_count()
    with (
        serving(large=Page("text/plain", lambda: bytes(32_000_000))) as (endpoint, base),
        contextlib.ExitStack() as held,
    ):
        for _ in range(24):
            one = held.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), timeout=60))
            one.sendall(request_line)
        assert asked(f"{base}/metrics") == (200, "up 1\n")
        assert threading.active_count() - others < 16


def test_a_slow_page_is_made_once_at_a_time() -> None:
    at_work, most = 0, 0
    gate = threading.Event()

    def make() -> bytes:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        gate.wait(60)
        at_work -= 1
        return b"x"

    with serving(make) as (_, base), ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(asked, f"{base}/metrics") for _ in range(4)]
        gate.set()
        assert [each.result() for each in answers] == [(200, "x")] * 4
    assert most == 1
