"""An engine with a console, its topics in LDAP; and screenshots after some minutes of demonstration:

python -m tests.support.console_engine 10
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.chromium import require_chromium
from tests.support.command import COMMAND, Engine
from tests.support.console_example import IMAGES
from tests.support.slapd import ENGINE_DN, ENGINE_PASSWORD, SUFFIX, Slapd
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class ConsoleEngine:
    """An engine, the URL of its console, and the DN of its topics in LDAP."""

    engine: Engine
    console: str
    base: str
    slapd: Slapd

    _last: ClassVar[Engine | None] = None

    @classmethod
    def stop_last(cls) -> None:
        """Stop the running engine, if any."""
        if cls._last is not None:
            cls._last.down()
            cls._last = None


@pytest.fixture(scope="session")
def console_engine(slapd: Slapd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleEngine]:
    """One for tests of the console and of the command; each test has its trees."""
    home = tmp_path_factory.mktemp("console-engine") / "home"
    home.mkdir()
    base = f"ou=console{os.getpid()},{SUFFIX}"
    settings = home.parent / "arborcast.toml"
    settings.write_text(
        f'[directory]\nkind = "ldap"\nurl = "{slapd.url}"\nbase_dn = "{base}"\nbind = "simple"\n'
        f'bind_dn = "{ENGINE_DN}"\npassword = "{ENGINE_PASSWORD}"\npoll_interval_s = 0.1\n[metrics]\nsample_s = 1\n'
        # Spark's start and stop are slow on a busy machine.
        "[stack]\nstart_timeout_s = 400\nstop_timeout_s = 60\n"
    )
    settings.chmod(0o600)
    engine = ConsoleEngine._last = Engine(home)
    try:
        engine.up("--config", str(settings))
        yield ConsoleEngine(engine, engine.status()["addresses"]["console"], base, slapd)
    finally:
        ConsoleEngine.stop_last()


def _take_pictures(minutes: float) -> None:
    """Screenshots after this many minutes of the demonstration."""
    from playwright.sync_api import sync_playwright

    install = require_chromium()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        engine = Engine(Path(folder) / "home")
        demonstration = subprocess.Popen(
            [COMMAND, "up", "--demo", "--gateway-port", "0", "--kafka-port", "0"],
            stdout=subprocess.DEVNULL,
            env=engine.environment(None),
            start_new_session=True,
        )
        try:
            wait_until(lambda: engine.status().get("ready", False), "the engine is ready", timeout_s=300)
            time.sleep(minutes * 60)
            console = engine.status()["addresses"]["console"]
            browser = playwright.chromium.launch(
                executable_path=install.executable, args=["--no-sandbox"], env=dict(install.environment)
            )
            page = browser.new_page(viewport={"width": 1200, "height": 860})
            page.goto(f"{console}/engine")
            page.locator("#chart-cpu polyline").first.wait_for(state="attached")
            page.screenshot(path=IMAGES / "console-engine.png")
            page.set_viewport_size({"width": 1200, "height": 640})
            page.goto(f"{console}/try?watch={{urn:arborcast:demo}}building//.")
            page.get_by_text("subscribed", exact=True).wait_for()
            page.get_by_label("Topic", exact=True).fill("{urn:arborcast:demo}building/roof/light")
            page.get_by_role("button", name="Publish").click()
            page.get_by_text("building/roof/light").first.wait_for()
            page.screenshot(path=IMAGES / "console-try.png")
            browser.close()
        finally:
            engine.down()
            demonstration.wait(300)


if __name__ == "__main__":
    _take_pictures(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
