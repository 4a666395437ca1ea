"""Access to the console, and protection from pages of other sites."""

from __future__ import annotations

import time
from unittest.mock import AsyncMock

import httpx
import pytest

from arborcast.console.pages import StaticFiles
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, served


def test_a_page_has_no_inline_script_and_a_policy_against_it(browser: Browser) -> None:
    policy = browser.get("/topics").headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "default-src 'none'" in policy
    assert not browser.page.xpath("//script[not(@src)]")
    assert not browser.page.xpath("//@*[starts-with(name(), 'on')]")


@pytest.mark.parametrize(
    ("status", "hosts"),
    [
        (200, ("127.0.0.1:8090", "localhost:1", "[::1]:8090", "127.0.0.1")),
        (403, ("evil.example:8090", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1")),
    ],
)
def test_a_rebound_name_is_refused(parts: ConsoleParts, status: int, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        assert Browser(parts.app, host).get("/topics").status_code == status, host


def test_requests_of_other_sites_are_refused(browser: Browser) -> None:
    for site in ("cross-site", "same-site"):
        for more in ({"sec_fetch_mode": "no-cors"}, {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}):
            assert browser.get("/topics", sec_fetch_site=site, **more).status_code == 403
    answer = browser.get("/topics", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert (answer.status_code, "set-cookie" in answer.headers, "http-equiv" in answer.text) == (200, False, True)


def test_a_form_needs_the_token_of_its_session_and_its_origin(parts: ConsoleParts, browser: Browser) -> None:
    other = Browser(parts.app)
    other.get("/topics")
    browser.get("/topics")
    own, foreign = (each.page.xpath("//input[@name='token']/@value")[0] for each in (browser, other))
    for fields in ({}, {"token": "test.AAAA"}, {"token": foreign}):
        assert browser.post("/theme", {"theme": "dark", "back": "/topics", **fields}).status_code == 403
    for origin in ("http://evil.example", "null"):
        assert browser.post("/theme", {"token": own}, origin=origin).status_code == 403
    posts = [route.path for route in parts.app._app.routes if "POST" in (route.methods or ())]
    assert posts
    for path in posts:
        assert browser.post(path, {}).status_code == 403, path
    assert browser.at("/topics").submit("/theme", theme="dark").status_code == 200
    assert browser.page.get("data-theme") == "dark"


def test_a_form_redirects_to_no_other_site_and_is_bounded(browser: Browser) -> None:
    for back in ("https://evil.example/", "//evil.example/", "/\\evil.example", "/\nx"):
        assert browser.at("/topics").submit("/theme", theme="", back=back).url.host == "127.0.0.1"
    assert browser.submit("/theme", theme="x" * 3_000_000).status_code == 413


async def test_a_form_that_is_broken_off_is_no_unexpected_error(parts: ConsoleParts) -> None:
    scope = {"type": "http", "method": "POST", "path": "/theme", "query_string": b""}
    headers = [(b"host", b"localhost"), (b"content-type", b"application/x-www-form-urlencoded")]
    gone = AsyncMock(return_value={"type": "http.disconnect"})
    await parts.app(scope | {"headers": headers}, gone, AsyncMock())


def test_static_files_are_cached_by_their_hash(browser: Browser) -> None:
    (sheet,) = browser.at("/topics").page.xpath("//link[@rel='stylesheet']/@href")
    answer = browser.get(sheet)
    assert "immutable" in answer.headers["cache-control"]
    assert browser.get(sheet, if_none_match=answer.headers["etag"]).status_code == 304
    assert "immutable" not in browser.get("/static/old/console.css").headers["cache-control"]
    assert browser.get("/static/x/..%2fpages.py").status_code == 404


def test_on_loopback_a_session_is_extended(parts: ConsoleParts, browser: Browser) -> None:
    (token,) = set(browser.at("/topics").page.xpath("//input[@name='token']/@value"))
    assert "set-cookie" not in browser.get("/topics").headers
    parts.console.sessions._clock = lambda: time.time() + 7 * 3600
    assert "set-cookie" in browser.get("/topics").headers
    parts.console.sessions._clock = lambda: time.time() + 14 * 3600
    assert set(browser.at("/topics").page.xpath("//input[@name='token']/@value")) == {token}


def test_a_page_waits_until_the_log_is_read(parts: ConsoleParts, browser: Browser) -> None:
    parts.ready = False
    assert browser.get("/topics").status_code == 503
    assert "This page reloads by itself" in browser.text
    assert browser.page.xpath("//meta[@http-equiv='refresh']")
    parts.ready = True
    assert browser.get("/topics").status_code == 200


def test_compressed_responses(parts: ConsoleParts, browser: Browser) -> None:
    parts.put(*(TopicRecord(TopicPath(f"a{number}")) for number in range(100)))
    sheet = StaticFiles().url("console.css")
    small_or_exported = ("/health/live", "/topics/export?form=ldif", "/subscriptions?format=csv")
    for path in ("/", "/subscriptions", sheet, *small_or_exported):
        answer = browser.get(path, accept_encoding="gzip")
        assert (answer.headers.get("content-encoding") == "gzip") is (path not in small_or_exported), path
        assert path in small_or_exported or "Accept-Encoding" in answer.headers["vary"]
        assert "content-encoding" not in browser.get(path, accept_encoding="identity").headers
    with served(parts.app) as url, httpx.stream("GET", f"{url}/live", headers={"accept-encoding": "gzip"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in stream.headers
        assert next(stream.iter_text()).startswith(": listening")
