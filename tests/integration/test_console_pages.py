"""The console's pages in a real browser."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from playwright.sync_api import Dialog, Route

from arborcast.admin import dead_letters, receiver_page
from arborcast.admin import queues as admin
from arborcast.admin.messages import LastMessages, NewestMessage
from arborcast.admin.queues import QueueStatus
from arborcast.console import console
from arborcast.console.app import SCREENS
from arborcast.console.screens import engine
from arborcast.console.screens.engine.feed import EngineFeed
from arborcast.console.screens.topics import tree_pages
from arborcast.core.errors import InfrastructureError
from arborcast.core.security.keyring import add_key
from arborcast.engine.monitoring.watching import EngineView
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.chromium import Visitors, faults, overflow
from tests.support.console import ConsoleParts, console_parts, served
from tests.support.console_answers import FEDERATED, answering
from tests.support.console_example import example
from tests.support.routing import make_subscription
from tests.support.waiting import wait_until
from tests.unit.console.test_engine_screen import Watch, moved

pytestmark = pytest.mark.browser

PRESS = "{urn:plant}plant/line2/press"
LONG = f"{'long' * 20}/press"

PAGES = f"""
/ /find?q=press /topics /topics?at={PRESS}/alarm /topics?at={PRESS}/alarm&do=messages /topics?at={PRESS}&do=add
/topics?at={PRESS}&do=rename /topics?at={PRESS}&do=remove /topics?q=alarm /topics?q=nowhere /topics/review
/topics/problems /topics?at={LONG} /subscriptions /subscriptions?state=expired /subscriptions/s3
/subscriptions/narrow /triggers /publishers /operations
/deliveries /deliveries?notification=01ab /deliveries/messages?since=1h&text=hot /deliveries/waiting
/deliveries/dead/01ab /deliveries/dead /deliveries/audit /deliveries/slo /deliveries/erasures /queues
/queues?queue={{urn:plant}}plant/inspections /cameras /engine /cluster /try /nowhere
""".split()


@pytest.fixture(scope="module")
def answers() -> Iterator[None]:
    """State that the console reads from an engine, without an engine."""
    last = LastMessages((NewestMessage("01ab", 0, "anna", "<hot/>", kept=True),))
    with pytest.MonkeyPatch.context() as patched:
        answering(patched)
        patched.setattr(tree_pages, "last_messages", lambda *_, **__: last)
        yield


@pytest.fixture(scope="module")
def address(answers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    long = make_subscription("narrow", "//alarm", consumer=f"http://long.example/{'narrow' * 20}")
    more = TopicRecord(TopicPath(LONG)), SubscriptionRecord(long)
    with served(example(tmp_path_factory.mktemp("console"), more, settings=FEDERATED).app) as url:
        yield url


@pytest.fixture(scope="module")
def pages(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """All pages, also those of an engine in no federation."""
    home = tmp_path_factory.mktemp("alone")
    add_key(home / "secrets.keys", "k1")
    parts = example(home)
    link = urlsplit(receiver_page.link(parts.console.settings, parts.control, "s3", 1.0)).path
    with served(parts.app) as alone:
        yield [*(address + path for path in PAGES), f"{alone}/cluster", alone + link]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[ConsoleParts, str]]:
    """A console whose topics a test may change. Named before `visit`, so that its pages are closed before it."""
    parts = example(tmp_path)
    with served(parts.app) as url:
        yield parts, url


def test_every_page_is_accessible_and_as_wide_as_its_window(visit: Visitors, address: str, pages: list[str]) -> None:
    assert {screen.path for screen in SCREENS} <= {urlsplit(each).path for each in PAGES}
    page = visit()
    visit.expected = ("404",)
    # For a review with content.
    page.goto(f"{address}/topics?at={PRESS}/alarm")
    page.fill("#priority", "77")
    with page.expect_navigation():  # starts once the console answers
        page.click("form[action='/topics/put'] button.main")
    pictures = os.environ.get("PICTURES")
    for number, url in enumerate(pages):
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(url)
        if pictures:  # screenshots
            name = re.sub(r"\W+", "-", url.partition("//")[2].partition("/")[2]).strip("-") or "overview"
            page.screenshot(path=Path(pictures) / f"{number:02}-{name}.png", full_page=True)
        assert faults(page) == []
        for width in (3840, 768, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert overflow(page) <= 0, (url, width)


def node(path: str) -> str:
    return f"li[data-path='{path}'] > .node"


def test_trees_unfold_in_place(visit: Visitors, address: str) -> None:
    page = visit()
    page.goto(f"{address}/topics")
    page.click(f"{node('{urn:plant}plant')} > .toggle")
    page.click(f"{node('building')} > .toggle")
    page.wait_for_selector(node("building/floor1"))
    page.click(f"{node('{urn:plant}plant/line2')} > .name")
    page.wait_for_selector("#detail h1:has-text('line2')")
    assert page.locator(node("building/floor1")).is_visible(), "it stays unfolded"
    assert page.url.endswith("at=%7Burn%3Aplant%7Dplant/line2")
    page.click("#detail >> text=Rename")
    page.wait_for_selector("#newname")
    page.go_back()
    page.wait_for_selector("#newname", state="detached")
    page.click(f"{node('building')} > .toggle")
    page.wait_for_selector(node("building/floor1"), state="detached")


def test_arrows_go_through_a_tree(visit: Visitors, address: str) -> None:
    page = visit()
    page.goto(f"{address}/topics")

    def at() -> str:
        return str(page.evaluate("document.activeElement.textContent.trim()"))

    page.focus(f"{node('{urn:plant}plant')} > .name")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(node("{urn:plant}plant/line1"))
    page.keyboard.press("ArrowRight")
    assert at() == "inspections"
    page.keyboard.press("ArrowDown")
    assert at() == "line1"
    page.keyboard.press("ArrowDown")
    assert at() == "line2"
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail h1:has-text('line2')")
    page.focus(f"{node('{urn:plant}plant/line1')} > .name")
    page.keyboard.press("ArrowLeft")
    assert at() == "plant"
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(node("{urn:plant}plant/line1"), state="detached")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("line2/press")
    page.wait_for_selector(f"text={PRESS}/alarm")


def test_a_dragged_node_is_staged_as_a_move(own: tuple[ConsoleParts, str], visit: Visitors) -> None:
    parts, url = own
    page = visit()
    page.goto(f"{url}/topics")
    page.drag_and_drop(node("building"), node("{urn:plant}plant"))
    page.wait_for_selector("text=1 unsaved change")
    assert parts.control.table.topics.is_node(TopicPath("building"))
    page.click("text=Review and save")
    page.click("button:has-text('Save')")
    page.wait_for_selector("text=Saved:")
    assert parts.control.table.topics.is_node(TopicPath("{urn:plant}plant/building"))


def test_typed_text_is_not_lost(own: tuple[ConsoleParts, str], visit: Visitors) -> None:
    parts, url = own
    visit.expected = ("ERR_FAILED",)
    page = visit()
    page.goto(f"{url}/topics?at={PRESS}/alarm")
    page.fill("#priority", "66")
    asked: list[str] = []

    def no(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.once("dialog", no)
    page.click(f"{node(PRESS)} > .name")
    assert asked == ["Discard what you have typed in this form?"]
    assert page.input_value("#priority") == "66"
    page.route("**/session", lambda route: route.abort())
    page.click("form[action='/topics/put'] button.main")
    page.get_by_text("Can't reach the console").wait_for()
    assert page.input_value("#priority") == "66"
    page.unroute("**/session")
    page.once("dialog", lambda dialog: dialog.accept())
    page.click(f"{node(PRESS)} > .name")
    page.wait_for_selector("#detail h1:text-is('press')")
    page.click(f"{node(PRESS + '/alarm')} > .name")
    page.wait_for_selector("#detail h1:text-is('alarm')")
    page.fill("#priority", "66")
    page.route("**/session", lambda route: route.fulfill(json={"user": "", "token": ""}))
    page.evaluate("document.body.dataset.user = 'anna'")
    page.click("form[action='/topics/put'] button.main")
    page.get_by_text("You are signed out: sign in in another window. Your input is kept").wait_for()
    page.unroute("**/session")
    page.evaluate("document.body.dataset.user = ''")
    parts.console.sessions._clock = lambda: time.time() + 13 * 3600  # the session expires
    page.click("form[action='/topics/put'] button.main")
    page.get_by_text("1 unsaved change").wait_for()


def test_the_last_chosen_topic_is_shown(visit: Visitors, address: str) -> None:
    """Also if another one, chosen before, arrives later."""
    page, held = visit(), list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    page.goto(f"{address}/topics")
    page.route(re.compile(r"/topics\?at=building$"), hold)
    page.click(f"{node('building')} > .name")
    wait_until(lambda: bool(page.evaluate("document.getElementById('detail').inert")) and bool(held), "a request")
    page.click(f"{node('{urn:plant}plant')} > .name")
    page.wait_for_selector("#detail:not([inert]) h1:text-is('plant')")
    with page.expect_event("requestfinished", lambda request: request.url.endswith("at=building")):
        held[0].continue_()
    page.evaluate("new Promise((resolve) => setTimeout(resolve))")
    assert page.inner_text("#detail h1") == "plant"


def test_many_topics(visit: Visitors, tmp_path: Path) -> None:
    many = [TopicRecord(TopicPath(f"wide/n{number // 1000:03}/t{number:06}")) for number in range(20_000)]
    flat = [TopicRecord(TopicPath(f"flat/t{number:04}")) for number in range(500)]
    with served(example(tmp_path, [*many, *flat]).app) as url:
        page = visit()
        page.goto(f"{url}/topics")
        page.wait_for_selector("text=plant")
        page.click(f"{node('flat')} > .toggle")
        for last in ("t0399", "t0499"):
            page.click("a[data-more]")
            page.wait_for_selector(f"text={last}")
        assert page.locator("li[data-path^='flat/']").count() == 500
        assert page.locator("a[data-more]").count() == 0
        page.fill(".search input", "t019999")
        page.wait_for_selector("text=wide/n019/t019999")
        page.context.close()


def test_an_outage_of_kafka(own: tuple[ConsoleParts, str], visit: Visitors) -> None:
    parts, url = own
    page = visit()
    page.goto(f"{url}/subscriptions")
    parts.trouble = "Kafka is not responding."
    page.wait_for_selector("#trouble >> text=Kafka is not responding.")
    page.wait_for_selector("button[value=pause]:disabled")
    parts.trouble = ""
    page.wait_for_selector("#trouble .banner", state="detached")
    page.wait_for_selector("button[value=pause]:enabled")


def test_keys_of_lists_and_of_the_search(visit: Visitors, address: str) -> None:
    page = visit()
    page.goto(f"{address}/subscriptions")
    page.locator("tbody tr").first.wait_for()
    rows = page.locator("form table.lists tbody tr")
    names = rows.locator("a").all_inner_texts()
    for key in ("j", "j", "k", "j", "x"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2
    assert rows.nth(1).locator("input").is_checked()
    page.click("th:has-text('Endpoint')")
    page.click("th:has-text('Endpoint')")
    assert rows.locator("a").all_inner_texts() == sorted(names, reverse=True)
    page.focus("th:has-text('Endpoint')")
    page.keyboard.press("Enter")
    assert rows.locator("a").all_inner_texts() == sorted(names)
    rows.nth(1).locator("input").focus()
    page.evaluate("window.stays = true")
    page.keyboard.press("Enter")
    assert page.evaluate("window.stays"), "it presses no button of the form"
    for _ in range(2):
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        page.get_by_role("button", name="Close").click()
        page.get_by_role("dialog", name="Keys").wait_for(state="hidden")
    page.keyboard.press("/")
    page.keyboard.type("press/al")
    matches = page.locator(".find .matches a")
    matches.first.wait_for()
    assert matches.count() == 4
    assert faults(page) == []
    page.keyboard.press("Escape")
    assert matches.count() == 0
    page.keyboard.type("arm")
    matches.first.wait_for()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    chosen = str(page.evaluate("document.activeElement.href"))
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url == chosen
    assert "press%2Falarm" in chosen


def test_a_filter_with_its_sorting_is_saved_as_a_view(
    answers: None, own: tuple[ConsoleParts, str], visit: Visitors
) -> None:
    listed = f"{own[1]}/subscriptions"
    page = visit()
    page.goto(f"{listed}?topic=&endpoint=panel&state=")
    page.click("th:has-text('Endpoint')")
    page.click("th:has-text('Endpoint')")
    links = page.locator("form table.lists tbody a[href^='/subscriptions/']")
    descending = links.all_inner_texts()
    assert descending == sorted(descending, reverse=True)
    assert len(set(descending)) == 6
    page.get_by_text("Save view").click()
    page.get_by_label("Name", exact=True).fill("Panels, last first")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("View Panels, last first saved.").wait_for()
    assert page.url.endswith("?endpoint=panel&sort=-Endpoint")
    wait_until(lambda: links.all_inner_texts() == descending, "the rows, which follow the head of the page")
    page.get_by_text("Save view").click()
    assert faults(page) == []
    page.set_viewport_size({"width": 320, "height": 800})
    assert overflow(page) <= 0
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{listed}?sort=Nothing")
    assert links.count() > 6
    page.keyboard.press("Control+k")
    page.keyboard.type("LAST FIRST")
    page.locator(".find .matches a").wait_for()
    page.keyboard.press("ArrowDown")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.locator("th[aria-sort='descending']").wait_for()
    assert links.all_inner_texts() == descending


def test_a_dragged_range_of_a_chart_is_shown_alone(
    tmp_path: Path, visit: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(EngineView(moved(time.time(), 110)))
    monkeypatch.setattr(engine, "feeds_of", lambda _: [EngineFeed("This engine", watch, lambda *_: [], 60)])
    with served(console_parts(tmp_path).app) as url:
        page = visit()
        page.goto(f"{url}/engine")
        plot = page.locator("#chart-cpu .plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None

        def move(share: float) -> None:
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + 20)

        move(0.25)
        page.locator("#chart-cpu .cross span").wait_for()
        page.locator("#chart-memory .cross").wait_for(state="attached")
        page.mouse.down()
        move(0.255)
        page.mouse.up()
        assert page.url.endswith("/engine"), "a click"
        move(0.25)
        page.mouse.down()
        move(0.75)
        page.locator("#chart-cpu .chosen").wait_for()
        with page.expect_navigation(url=re.compile("from=.*to=")):
            page.mouse.up()
        chosen = parse_qs(urlsplit(page.url).query)
        begin, end = (datetime.fromisoformat(chosen[name][0]) for name in ("from", "to"))
        assert 290 <= (end - begin).total_seconds() <= 310, "half of ten minutes"
        page.locator("#chart-cpu polyline").first.wait_for(state="attached")
        page.goto("about:blank")


def test_changes_of_others_are_shown_without_a_jump(
    answers: None, own: tuple[ConsoleParts, str], visit: Visitors
) -> None:
    parts, url = own
    page = visit()
    page.goto(f"{url}/topics")
    parts.put(TopicRecord(TopicPath("by-somebody-else")))
    page.click("text=Topics changed: reload")
    page.wait_for_selector(node("by-somebody-else"))
    page.wait_for_selector("#updates >> text=changed", state="detached")
    page.goto(f"{url}/subscriptions/s1")
    page.get_by_text("Numbers").click()
    parts.put(SubscriptionRecord(msgspec.structs.replace(parts.subscription("s1"), paused=True)))
    page.locator("#shown .badge", has_text="paused").wait_for()
    assert page.locator("details", has_text="Numbers").get_attribute("open") is not None, "it stays unfolded"


ROW = "#shown tbody tr"


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[tuple[list[QueueStatus], str]]:
    """Queues that change while a page is open; named before `visit`."""
    queues = [QueueStatus(TopicPath(f"q{number:03}"), True, 3, 2, 1_000.0 - number, ()) for number in range(60)]
    with pytest.MonkeyPatch.context() as patched, served(example(tmp_path).app) as url:
        answering(patched)
        patched.setattr(admin, "queues", lambda *_: queues.copy())
        patched.setattr(console, "_CHECK_S", 0.1)
        yield queues, url


def test_a_live_page_keeps_focus_selection_and_position(moving: tuple[list[QueueStatus], str], visit: Visitors) -> None:
    queues, url = moving
    page = visit(viewport={"width": 900, "height": 600})
    page.goto(f"{url}/queues")
    page.get_by_text("Updated").wait_for()
    page.locator("[data-key=q040] a").focus()
    page.locator("[data-key=q040] a").scroll_into_view_if_needed()
    place = "document.querySelector('[data-key=q040]').getBoundingClientRect().top"
    before = page.evaluate(place)
    assert page.evaluate("scrollY") > 0
    # More rows above, and another order.
    queues += [
        msgspec.structs.replace(queues[0], queue=TopicPath(f"new{number}"), oldest_s=9_000.0) for number in range(5)
    ]
    queues[41] = msgspec.structs.replace(queues[41], oldest_s=5_000.0)
    page.locator(ROW).nth(64).wait_for(state="attached")
    page.locator(f"{ROW}:nth-child(6) >> text=q041").wait_for(state="attached")
    assert page.evaluate("document.activeElement.textContent") == "q040"
    assert page.evaluate(place) == pytest.approx(before, abs=1)
    # A selected row is not removed; after the selection ends, the other rows are updated.
    page.evaluate("getSelection().selectAllChildren(document.querySelector('[data-key=q042] code'))")
    queues[:] = [queues[0]]
    for _ in range(2):
        seen = page.inner_text("#seen")
        page.wait_for_function("seen => document.getElementById('seen').textContent !== seen", arg=seen)
    assert page.locator(ROW).count() == 65
    assert page.evaluate("getSelection().toString()") == "q042"
    page.evaluate("getSelection().removeAllRanges()")
    page.locator(ROW).nth(1).wait_for(state="detached")
    # When the focused element is removed, the focus moves to the content.
    assert page.evaluate("document.activeElement.id") == "main"


def test_errors_of_live_pages(moving: tuple[list[QueueStatus], str], visit: Visitors) -> None:
    """Shown once, beside the last values, until an update succeeds."""
    _, url = moving
    page = visit()
    page.goto(f"{url}/queues")
    page.get_by_text("Updated").wait_for()
    away = InfrastructureError("Kafka is away")
    with pytest.MonkeyPatch.context() as patched:
        answering(patched, {admin.job_figures: away, dead_letters.listed: away})
        page.locator("#wrong >> text=Kafka is away").wait_for()
        assert page.locator(ROW).count() == 60
        other = page.context.new_page()
        other.goto(f"{url}/deliveries/dead")
        other.locator("#wrong .refusal").wait_for()
        assert other.locator("main .refusal:visible").all_inner_texts() == ["Kafka is away"]
        other.close()
    page.locator("#wrong .refusal").wait_for(state="detached")
    visit.expected = ("401",)
    other = page.context.new_page()
    other.route("**/queues/live", lambda route: route.fulfill(status=401))
    other.goto(f"{url}/queues")
    other.locator("#trouble >> text=This page is not updated.").wait_for()
    other.unroute("**/queues/live")
    other.locator("#trouble .banner").wait_for(state="detached")


def test_a_hidden_page_does_not_update(moving: tuple[list[QueueStatus], str], visit: Visitors) -> None:
    _, url = moving
    page = visit()
    page.goto(f"{url}/queues")
    page.get_by_text("Updated").wait_for()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    with page.expect_event("requestfailed", lambda request: "/queues/live" in request.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    with page.expect_request(lambda request: "/queues/live" in request.url):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")


def test_without_script_a_live_page_has_a_link_to_refresh(
    moving: tuple[list[QueueStatus], str], visit: Visitors
) -> None:
    queues, url = moving
    page = visit(java_script_enabled=False)
    page.goto(f"{url}/queues")
    assert page.locator(ROW).count() == 60
    assert not page.get_by_text("Loading").is_visible()
    del queues[1:]
    page.get_by_role("link", name="Refresh").click()
    page.locator(ROW).nth(1).wait_for(state="detached")


def test_copies_and_colours(visit: Visitors, address: str) -> None:
    page = visit(color_scheme="light", permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{address}/topics?at={PRESS}/alarm")
    page.get_by_role("button", name="Copy the path").click()
    page.locator(".copy.done").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"{PRESS}/alarm"
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    for theme, is_light in (("dark", False), ("light", True)):
        page.click("form[action='/theme'] button")
        page.wait_for_selector(f"html[data-theme='{theme}']")
        assert (page.evaluate(ground) == light) is is_light


def test_the_navigation_is_scrolled_to_its_current_screen(visit: Visitors, address: str) -> None:
    page = visit(viewport={"width": 320, "height": 800})
    within = """path => {
        const link = document.querySelector(`.top nav a[href="${path}"]`).getBoundingClientRect();
        const nav = document.querySelector(".top nav").getBoundingClientRect();
        return nav.left <= link.left + 1 && link.right <= nav.right + 1;
    }"""
    for width, other in ((320, "/"), (1000, "/topics")):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{address}/try")
        assert page.evaluate(within, "/try")
        assert not page.evaluate(within, "/")
        page.goto(address + other)
        assert page.evaluate(within, "/"), "scrolled no further than needed"
