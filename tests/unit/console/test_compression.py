"""Which responses of the console are compressed."""

from __future__ import annotations

import httpx
import pytest

from arborcast.console.pages import StaticFiles
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, served


@pytest.mark.parametrize("path", ["/", "/subscriptions", StaticFiles().url("console.css")])
def test_large_pages_and_static_files_are_compressed(browser: Browser, path: str) -> None:
    answer = browser.get(path, accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in answer.headers["vary"]
    plain = browser.get(path, accept_encoding="identity")
    assert "content-encoding" not in plain.headers
    assert len(plain.content) > 1024


@pytest.mark.parametrize("path", ["/health/live", "/topics/export?form=ldif", "/topics/export?form=json"])
def test_small_responses_and_exports_are_not(parts: ConsoleParts, browser: Browser, path: str) -> None:
    parts.put(*(TopicRecord(TopicPath(f"a{number}")) for number in range(100)))
    assert "content-encoding" not in browser.get(path, accept_encoding="gzip").headers


def test_streams_are_not(parts: ConsoleParts) -> None:
    with served(parts.app) as url, httpx.stream("GET", f"{url}/live", headers={"accept-encoding": "gzip"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        assert next(answer.iter_text()).startswith(": listening")
