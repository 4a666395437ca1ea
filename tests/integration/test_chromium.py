"""The browser of the tests: errors of a page fail the test, and it reaches only this machine."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from tests.support.chromium import Visitors

pytestmark = pytest.mark.browser

PAGES = {
    "/plain": "<!doctype html><title>Plain</title><h1>Hello</h1>",
    "/abroad": "<!doctype html><title>Abroad</title><img src='http://example.com/a.png' alt=''>",
    "/wrong": "<!doctype html><title>Wrong</title><script>undefined_name.call()</script>",
}


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path, "<!doctype html>").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_foreign_requests_are_blocked_and_reported(visit: Visitors, address: str) -> None:
    page = visit()
    with page.expect_event("requestfailed"):
        page.goto(f"{address}/abroad")
    assert "a request beyond loopback: http://example.com/a.png" in visit.complaints
    visit.expected = ("example.com", "ERR_PROXY_CONNECTION_FAILED")


def test_an_error_of_a_script_is_reported(visit: Visitors, address: str) -> None:
    page = visit()
    with page.context.expect_event("weberror"):
        page.goto(f"{address}/wrong")
    assert any("undefined_name is not defined" in each for each in visit.complaints)
    visit.expected = ("undefined_name is not defined",)
