"""A console with example data, and screenshots of it for the documents:

python -m tests.support.console_example
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from arborcast.engine.terminal import print_line
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionRecord,
    SubscriptionSuspended,
    TopicPolicy,
    TopicRecord,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.console import ConsoleParts, console_parts, served
from tests.support.console_answers import INSPECTIONS, QUEUE_RECORDS, answering
from tests.support.routing import make_subscription

IMAGES = Path(__file__).parents[2] / "docs" / "images"

_MOMENT_MS = 1_767_262_800_000

_MACHINES = ("oven", "packer", "press", "robot")

_OF_A_MACHINE = {
    "alarm": TopicPolicy(priority=50, routing="reliable"),
    "state": TopicPolicy(retain=True),
    "temperature": TopicPolicy(),
}


def _records() -> Iterable[ControlRecord]:
    plant = "{urn:plant}plant"
    yield TopicRecord(TopicPath(plant), code="1")
    for line in range(1, 5):
        yield TopicRecord(TopicPath(f"{plant}/line{line}"), code=f"1.{line}")
        for machine in _MACHINES:
            for name, policy in _OF_A_MACHINE.items():
                types = ("Alarm",) if name == "alarm" else ()
                yield TopicRecord(TopicPath(f"{plant}/line{line}/{machine}/{name}"), "", types, policy=policy)
    for floor in range(3):
        yield TopicRecord(TopicPath(f"building/floor{floor}/door"))
    yield TopicRecord(TopicPath("ALL/ALARM/ALARM1"))
    for number in range(6):
        address = f"https://panel{number}.example:8443/notifications"
        what = f"{plant}//." if number % 2 else "//alarm"
        made = make_subscription(f"s{number}", what, consumer=address, created_ms=_MOMENT_MS, paused=number == 4)
        yield SubscriptionRecord(made)
    yield from QUEUE_RECORDS
    yield SubscriptionSuspended("s3", "connection refused for two days", _MOMENT_MS, _MOMENT_MS)


def example(
    home: Path, more: Iterable[ControlRecord] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> ConsoleParts:
    """A plant, a building, and their subscribers."""
    return console_parts(home, [*_records(), *more], settings=settings)


def _take_pictures() -> None:
    from playwright.sync_api import sync_playwright

    from tests.support.chromium import require_chromium

    install = require_chromium()
    with (
        pytest.MonkeyPatch.context() as patched,
        tempfile.TemporaryDirectory() as home,
        served(example(Path(home)).app) as url,
        sync_playwright() as playwright,
    ):
        answering(patched)
        browser = playwright.chromium.launch(
            executable_path=install.executable, args=["--no-sandbox"], env=dict(install.environment)
        )
        light = browser.new_page(viewport={"width": 1200, "height": 760})
        light.goto(f"{url}/topics?at={{urn:plant}}plant/line2/press/alarm")
        light.screenshot(path=IMAGES / "console-topics.png")
        light.fill("#priority", "70")
        light.click("form[action='/topics/put'] button.main")
        light.goto(f"{url}/topics?at=building&do=remove")
        light.click("button.danger")
        light.goto(f"{url}/topics/review")
        light.screenshot(path=IMAGES / "console-review.png")
        dark = browser.new_page(viewport={"width": 1200, "height": 560}, color_scheme="dark")
        dark.goto(f"{url}/subscriptions")
        dark.screenshot(path=IMAGES / "console-subscriptions.png")
        light.set_viewport_size({"width": 1200, "height": 850})
        light.goto(f"{url}/queues?queue={INSPECTIONS}")
        light.get_by_text("Updated").wait_for()
        light.screenshot(path=IMAGES / "console-queues.png")
        browser.close()
    for file in sorted(IMAGES.glob("console-*.png")):
        print_line(f"{file.name}: {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    _take_pictures()
