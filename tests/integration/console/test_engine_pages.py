"""The console of a real engine in a real browser: actions of users, and their effect on the directory."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.support.chromium import Visitors, faults, overflow
from tests.support.console_engine import ConsoleEngine
from tests.support.receiver import Receiver
from tests.support.slapd import SUFFIX
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.stack, pytest.mark.ldap]

WAIT_S = 300.0


@pytest.fixture
def tree() -> str:
    """A unique name of a tree."""
    return f"t{uuid.uuid4().hex[:8]}"


def entries(known: ConsoleEngine, name: str) -> list[dict[str, Any]]:
    """The entries of the topics with this name, as ldapsearch shows them."""
    with known.slapd.admin() as connection:
        connection.search(SUFFIX, f"(topicName={name})", attributes=["*"])
        return [{"dn": each["dn"], **each["attributes"]} for each in connection.response]


def publish(known: ConsoleEngine, topic: str, payload: str) -> None:
    address = f"{known.engine.gateway}/publish/{topic}"
    answer = requests.post(address, payload, headers={"Content-Type": "application/xml"}, timeout=120)
    assert answer.status_code == 202, answer.text


def define(page: Page, known: ConsoleEngine, name: str, priority: int) -> None:
    """Stage a new tree with a policy."""
    page.goto(f"{known.console}/topics")
    page.get_by_role("link", name="New root topic").first.click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_text("More options").click()
    page.get_by_label("Priority").fill(str(priority))
    page.get_by_label("Publishers").fill("anna\ngroup:plant")
    page.get_by_role("button", name="Stage change").click()
    page.get_by_text("unsaved").first.wait_for()


def texts(values: object) -> list[str]:
    """The values of an attribute; ldap3 returns the single value of some attributes without a list."""
    return [str(each) for each in (values if isinstance(values, list) else [values])]


def save(page: Page) -> None:
    page.get_by_role("link", name="Review and save").click()
    page.get_by_role("button", name=re.compile("^Save")).click()
    is_saved(page)


def is_saved(page: Page) -> None:
    """Wait until the page shows the result: the directory may be faster."""
    page.wait_for_url(re.compile(r"/topics(\?|$)"))


def test_topics_and_ldap(visit: Visitors, console_engine: ConsoleEngine, tree: str) -> None:
    """Saved trees are entries of LDAP; LDAP edits are on the page, invalid ones among the problems."""
    import ldap3

    page = visit()
    define(page, console_engine, tree, 5)
    define(page, console_engine, f"{tree}b", -7)
    assert entries(console_engine, tree) == [], "nothing is written before it is saved"
    save(page)
    wait_until(
        lambda: all(entries(console_engine, each) for each in (tree, f"{tree}b")),
        "both entries are in LDAP",
        timeout_s=WAIT_S,
    )
    (first,), (second,) = entries(console_engine, tree), entries(console_engine, f"{tree}b")
    assert first["dn"] == f"topicName={tree},{console_engine.base}"
    assert (texts(first["topicPriority"]), texts(second["topicPriority"])) == (["5"], ["-7"])
    assert sorted(first["topicPublisher"]) == ["anna", "group:plant"]
    assert tree in console_engine.engine.run_here("topics", "list").stdout

    def modify(attribute: str, value: str) -> None:
        with console_engine.slapd.admin() as connection:
            connection.modify(first["dn"], {attribute: [(ldap3.MODIFY_REPLACE, [value])]})

    def code_is_shown() -> bool:
        page.goto(f"{console_engine.console}/topics?at={tree}")
        return page.get_by_label("Code", exact=True).input_value() == "9.4.A"

    modify("topicCode", "9.4.A")
    wait_until(code_is_shown, "the code is on the page", timeout_s=WAIT_S)
    modify("topicRoutingPolicy", "nowhere")
    page.get_by_text("1 problem in the directory").click()
    problem = page.locator("section", has_text=f"topicName={tree}")
    problem.get_by_text("unknown routing word 'nowhere'").wait_for()
    assert "Correct the attribute" in problem.inner_text()
    (listed,) = json.loads(console_engine.engine.run_here("topics", "problems", "--json").stdout)["problems"]
    assert (listed["topic"], listed["kind"]) == (tree, "bad-value")
    modify("topicRoutingPolicy", "local")
    page.get_by_text("No problems").wait_for()


def test_a_published_message_arrives_and_its_subscription_ends(
    visit: Visitors, console_engine: ConsoleEngine, tree: str
) -> None:
    page = visit()
    page.goto(f"{console_engine.console}/try?watch={tree}//.")
    page.get_by_text("subscribed", exact=True).wait_for()
    hostile = "<reading><img src='x' onerror='alert(1)'/></reading>"
    page.get_by_label("Topic", exact=True).fill(f"{tree}/press")
    page.get_by_label("Message", exact=True).fill(hostile)
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("accepted", exact=True).wait_for()
    page.locator(".arrived li").first.wait_for()
    assert page.locator(".arrived li pre").first.inner_text() == hostile
    assert page.locator(".arrived img").count() == 0
    publish(console_engine, f"{tree}/press", f"<{'x' * 200}/>")
    page.locator(".arrived li").nth(1).wait_for()
    assert faults(page) == []
    page.set_viewport_size({"width": 320, "height": 640})
    assert overflow(page) <= 0
    page.set_viewport_size({"width": 1280, "height": 800})
    assert tree in console_engine.engine.run_here("subscriptions", "list").stdout
    page.goto(f"{console_engine.console}/engine")
    wait_until(
        lambda: tree not in console_engine.engine.run_here("subscriptions", "list").stdout,
        "the subscription has ended with the page",
        timeout_s=WAIT_S,
    )
    # A link leads to the result.
    page.go_back()
    page.goto(f"{console_engine.console}/try?topic={tree}/press")
    page.get_by_role("button", name="Publish").click()
    page.locator("#try-answer a").click()
    page.get_by_text(f"{tree}/press").first.wait_for()


def test_charts_live(visit: Visitors, console_engine: ConsoleEngine, receiver: Receiver, tree: str) -> None:
    engine = console_engine.engine
    engine.run_here("subscribe", f"{tree}//.", "--to", receiver.url("/live"))
    publish(console_engine, f"{tree}/a", "<x/>")
    page = visit()
    page.goto(f"{console_engine.console}/engine")
    for chart in ("cpu", "memory", "threads", "files", "heap", "collecting", "classes", "accepted"):
        page.locator(f"#chart-{chart} polyline").first.wait_for(state="attached")
    assert "dispatch, used" in page.locator("#chart-heap").inner_text()
    assert "kafka, committed" in page.locator("#chart-heap").inner_text()
    heights = "[...document.querySelectorAll('.chart')].map(each => each.getBoundingClientRect().height)"
    memory, lines = page.locator("#chart-memory"), page.locator(".chart .keys li")

    def has_moved() -> bool:
        count, size, before = lines.count(), page.evaluate(heights), memory.inner_html()
        wait_until(lambda: memory.inner_html() != before, "the chart has moved", timeout_s=WAIT_S)
        now = page.evaluate(heights)
        if lines.count() != count:
            return False  # the first figures of another process
        assert now == size, "the layout jumps"
        return True

    wait_until(has_moved, "the charts have moved", timeout_s=WAIT_S)
    assert faults(page) == []
    wait_until(
        lambda: receiver.url("/live") in page.locator("#engine-slowest").inner_text(), "the endpoint", timeout_s=WAIT_S
    )
    page.get_by_role("link", name="1 hour").click()
    page.locator("#chart-cpu polyline").first.wait_for(state="attached")


def test_the_console_without_a_mouse(visit: Visitors, console_engine: ConsoleEngine, tree: str) -> None:
    page = visit()
    page.goto(f"{console_engine.console}/topics?do=add")
    assert page.evaluate("document.activeElement.id") == "name", "the first field has the focus"
    page.keyboard.type(tree)
    page.keyboard.press("Enter")
    page.get_by_text("unsaved").first.wait_for()
    tab_to(page, "Review and save")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("^Save")).wait_for()
    tab_to(page, "Save 1 change")
    page.keyboard.press("Enter")
    is_saved(page)
    wait_until(lambda: bool(entries(console_engine, tree)), "the entry is in LDAP", timeout_s=WAIT_S)
    page.goto(f"{console_engine.console}/try")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main", "the first link leads past the navigation"
    page.keyboard.press("Tab")
    page.keyboard.type(f"{tree}/typed")
    tab_to(page, "Publish")
    page.keyboard.press("Enter")
    page.get_by_text("accepted", exact=True).wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Publish", "and the next tab stop is the same"
    page.goto(f"{console_engine.console}/engine")
    tab_to(page, "24 hours")
    page.keyboard.press("Enter")
    page.wait_for_url("**range=24h")


def tab_to(page: Page, words: str) -> None:
    """Press Tab until the element of this name has the focus; the focused element is visible."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == words:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"the focus of {words} is invisible"
            return
    raise AssertionError(f"Tab does not reach {words}")
