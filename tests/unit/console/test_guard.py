"""Who gets to the console, and what of a stranger's page does not."""

from __future__ import annotations

import time

import pytest

from tests.support.console import Browser, ConsoleParts


def test_a_page_has_no_script_inside_and_lets_none_in(browser: Browser) -> None:
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
def test_this_machine_gets_in_and_a_name_that_suddenly_leads_here_does_not(
    parts: ConsoleParts, status: int, hosts: tuple[str, ...]
) -> None:
    for host in hosts:
        assert Browser(parts.app, host).get("/topics").status_code == status, host


def test_what_a_strangers_page_asks_is_refused_and_a_link_there_takes_no_session_away(browser: Browser) -> None:
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
    browser.get("/topics")
    assert browser.submit("/theme", theme="dark").status_code == 200
    assert browser.page.get("data-theme") == "dark"


def test_every_form_checks_its_token(parts: ConsoleParts, browser: Browser) -> None:
    app = parts.app._app
    posts = [route.path for route in app.routes if "POST" in (route.methods or ())]
    assert posts
    for path in posts:
        assert browser.post(path, {}).status_code == 403, path


def test_after_a_form_nobody_is_led_elsewhere_and_a_large_one_is_refused(browser: Browser) -> None:
    for back in ("https://evil.example/", "//evil.example/", "/\\evil.example", "/\nx"):
        browser.get("/topics")
        assert browser.submit("/theme", theme="", back=back).url.host == "127.0.0.1"
    assert browser.submit("/theme", theme="x" * 3_000_000).status_code == 413


def test_static_files_are_kept_by_their_hash(browser: Browser) -> None:
    browser.get("/topics")
    (sheet,) = browser.page.xpath("//link[@rel='stylesheet']/@href")
    answer = browser.get(sheet)
    assert "immutable" in answer.headers["cache-control"]
    assert browser.get(sheet, if_none_match=answer.headers["etag"]).status_code == 304
    assert "immutable" not in browser.get("/static/old/console.css").headers["cache-control"]
    assert browser.get("/static/x/..%2fpages.py").status_code == 404


def test_on_this_machine_a_session_goes_on(parts: ConsoleParts, browser: Browser) -> None:
    browser.get("/topics")
    (token,) = set(browser.page.xpath("//input[@name='token']/@value"))
    assert "set-cookie" not in browser.get("/topics").headers
    parts.console.sessions._clock = lambda: time.time() + 7 * 3600
    assert "set-cookie" in browser.get("/topics").headers
    parts.console.sessions._clock = lambda: time.time() + 14 * 3600
    browser.get("/topics")
    assert set(browser.page.xpath("//input[@name='token']/@value")) == {token}


def test_a_page_waits_until_the_log_is_read(parts: ConsoleParts, browser: Browser) -> None:
    parts.ready = False
    assert browser.get("/topics").status_code == 503
    assert "This page reloads by itself" in browser.text
    assert browser.page.xpath("//meta[@http-equiv='refresh']")
    parts.ready = True
    assert browser.get("/topics").status_code == 200
