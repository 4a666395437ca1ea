"""Text of attackers is text on every page, with any content."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from arborcast.admin.messages import Busiest
from arborcast.console.screens import engine, trying
from arborcast.console.screens.engine.feed import EngineFeed
from arborcast.engine.monitoring.samples import ProcessFigures
from arborcast.engine.monitoring.watching import EngineView, EngineWatch
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.chromium import Visitors
from tests.support.console import console_parts, served
from tests.support.routing import make_subscription
from tests.support.waiting import wait_until
from tests.unit.engine.monitoring.test_report import samples

pytestmark = pytest.mark.browser

SCRIPT = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"

# Each would end an attribute, an element, a script, or a line.
HOSTILE = (
    SCRIPT,
    f"\"'>{SCRIPT}",
    f"</title></textarea></script>{SCRIPT}",
    "javascript:alert(1)",
    "\u202e\u2028{{7*7}}",
)

PATH = TopicPath("{urn:x'onload=alert(1)&lt;<b>}tree/leaf")


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    class Watch(EngineWatch):
        def look(self) -> EngineView:
            now = time.time()
            made = [
                msgspec.structs.replace(
                    each,
                    at=now - 200 + number,
                    parts=dict.fromkeys(HOSTILE, True),
                    attempts=dict.fromkeys(HOSTILE, float(number)),
                    processes={name: ProcessFigures(number, 1, 1, 1) for name in HOSTILE},
                )
                for number, each in enumerate(samples(200))
            ]
            slow = {"pushes": 1, "failed": 1, "mean_s": 1.0, "longest": 1.0}
            return EngineView(made, [{"endpoint": each, **slow} for each in HOSTILE], HOSTILE[0])

    monkeypatch.setattr(engine, "feeds_of", lambda _: [EngineFeed(HOSTILE[1], Watch(["h:1"]), lambda *_: [], 60)])
    monkeypatch.setattr(trying, "busiest", lambda *_: Busiest([(each, 1) for each in HOSTILE], 5, 1))
    records = [
        TopicRecord(
            TopicPath(f"{PATH}{number}"),
            each,
            HOSTILE,
            policy=TopicPolicy(publishers=HOSTILE, routing=each.replace(" ", "")),
        )
        for number, each in enumerate(HOSTILE)
    ]
    subscriptions = [
        SubscriptionRecord(make_subscription(f"s{number}", "//.", consumer=f"http://e/{each}"))
        for number, each in enumerate(HOSTILE)
    ]
    parts = console_parts(tmp_path, [*records, *subscriptions])
    parts.trouble = HOSTILE[2]
    with served(parts.app) as url:
        yield url


def test_hostile_names_are_text_on_every_page(address: str, visit: Visitors) -> None:
    page = visit()
    visit.expected = ("404", "400")
    page.on("dialog", lambda dialog: visit.complaints.append(f"a script opened a dialog: {dialog.message}"))
    words = [quote(each, safe="") for each in HOSTILE]
    pages = [
        *("topics", "subscriptions", "engine", "try", "topics/review", "subscriptions/s0", "subscriptions/s1"),
        *(f"topics?at={quote(f'{PATH}{number}', safe='')}" for number in range(len(HOSTILE))),
        f"topics?at={quote(PATH, safe='')}0&do=rename",
        *(f"{form}{word}" for word in words for form in ("topics?at=", "topics?q=", "try?topic=", "try?watch=", "")),
        *(f"subscriptions?{name}={words[1]}" for name in ("topic", "endpoint", "state")),
    ]
    for each in pages:
        page.goto(f"{address}/{each}")
        assert page.title().endswith("Arborcast"), each
        assert page.locator("img[onerror], [onload], main script, a[href^='javascript:']").count() == 0, each
    # Later updates are inserted by script.
    page.goto(f"{address}/engine")
    before = page.locator("#chart-memory").inner_html()
    wait_until(lambda: page.locator("#chart-memory").inner_html() != before, "a live update", timeout_s=300)
    assert "javascript:alert(1)" in page.locator("#engine-slowest").inner_text()
    assert page.locator("[onerror]").count() == 0
    page.goto(f"{address}/try")
    page.fill("#topic", HOSTILE[1])
    page.click("#try-form button")
    page.locator("#try-answer .refusal").wait_for()
    assert page.locator("[onerror]").count() == 0
    assert page.title().endswith("Arborcast")
