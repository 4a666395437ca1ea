"""The browser of the tests: errors of a page fail the test, and it reaches only this machine."""

from __future__ import annotations

import pytest

from tests.support.chromium import Visitors

pytestmark = pytest.mark.browser


def test_foreign_requests_are_blocked_and_reported(visit: Visitors) -> None:
    page = visit()
    with page.expect_event("requestfailed"):
        page.set_content("<!doctype html><title>Abroad</title><img src='http://example.com/a.png' alt=''>")
    assert "a request beyond loopback: http://example.com/a.png" in visit.complaints
    visit.expected = ("example.com", "ERR_PROXY_CONNECTION_FAILED")


def test_an_error_of_a_script_is_reported(visit: Visitors) -> None:
    page = visit()
    with page.context.expect_event("weberror"):
        page.set_content("<!doctype html><title>Wrong</title><script>undefined_name.call()</script>")
    assert any("undefined_name is not defined" in each for each in visit.complaints)
    visit.expected = ("undefined_name is not defined",)
