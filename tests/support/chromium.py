"""A real browser for tests: one Chromium for each test file, and a separate context for each visitor.

`python -m tests.support.chromium` finds it, or unpacks Debian's package into the cache. Playwright's own download needs
a host that not every machine reaches.

Not one for the whole run: while Playwright runs, its event loop counts as running in this thread, and tests of
other files could not start theirs.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pytest

from tests.support import debian
from tests.support.debian import DebianProgram, provision_main, required

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request

# For slow machines.
PATIENCE_S = 120.0

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


_NAMES = ("chromium", "chromium-browser", "google-chrome")

CHROMIUM = DebianProgram(
    "chromium",
    # Without a font, text has no size; Playwright's driver needs libatomic.
    ("chromium", "chromium-common", "fonts-dejavu-core", "libatomic1"),
    lambda root: [root / "usr/lib/chromium/chromium"],
    never=re.compile(r"^(libc6|.*-perl|perl.*)$"),
    rounds=8,
)

_FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/fonts</cachedir></fontconfig>
"""


@dataclass(frozen=True)
class ChromiumInstall:
    """The program, and the environment to start it in."""

    executable: Path
    environment: dict[str, str] = field(default_factory=dict)


def find() -> ChromiumInstall | None:
    """A program that starts: the system's, else the one in the cache. No network."""
    executable = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if executable is not None:
        return ChromiumInstall(Path(executable), debian.environment(()))
    return _at(CHROMIUM.root) if CHROMIUM.starts(CHROMIUM.root) else None


def provision(say: Callable[[str], None] = print) -> ChromiumInstall:
    """`find`, else download and unpack. Raises Unavailable."""
    found = find() or _at(CHROMIUM.unpack(say))
    say(f"chromium: {found.executable}")
    return found


def _at(root: Path) -> ChromiumInstall:
    fonts = root / "fonts.conf"
    if not fonts.exists():
        fonts.write_text(_FONTS.format(root=root))
    environment = {**debian.environment(CHROMIUM.libraries(root)), "FONTCONFIG_FILE": str(fonts)}
    return ChromiumInstall(root / "usr/lib/chromium/chromium", environment)


def require_chromium() -> ChromiumInstall:
    """The install, or skip the test with a line in the summary; with CI=true a missing one fails the run."""
    return required(provision, "NO CHROMIUM, so no page was seen in a real browser")


class Chromium:
    """A headless browser, started again after a crash. It reaches only loopback."""

    def __init__(self, playwright: Playwright, install: ChromiumInstall) -> None:
        self._playwright = playwright
        self._install = install
        self._browser: Browser | None = None

    def running(self) -> Browser:
        if self._browser is None or not self._browser.is_connected():
            self._browser = self._playwright.chromium.launch(
                executable_path=self._install.executable,
                # Containers have no namespaces for its sandbox, and little shared memory.
                args=["--no-sandbox", "--disable-dev-shm-usage"],
                env=dict(self._install.environment),
                # A proxy address without a listener.
                proxy={"server": "http://127.0.0.1:9", "bypass": ",".join(_LOOPBACK)},
            )
        return self._browser

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    from playwright.sync_api import sync_playwright  # only for these tests

    install = require_chromium()
    with pytest.MonkeyPatch.context() as patch:
        # Its driver starts in this environment, and may need the same libraries.
        for name, value in install.environment.items():
            patch.setenv(name, value)
        patch.setenv("DEBUG", "pw:browser")  # the browser's output, and the signal that ended it
        playwright = sync_playwright().start()
    browser = Chromium(playwright, install)
    try:
        yield browser
        browser.close()
    finally:
        playwright.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test in which the browser itself crashes, as in about one of ten thousand, is run again."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun="TargetClosedError"))


@dataclass
class Visitors:
    """Opens each page in a new context, and collects its errors."""

    chromium: Chromium
    contexts: list[BrowserContext] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of complaints that the test causes."""

    def __call__(self, **options: Any) -> Page:
        """A new page; `options` as Playwright's `new_context` has them."""
        context = self.chromium.running().new_context(**{"reduced_motion": "reduce", **options})
        context.set_default_timeout(PATIENCE_S * 1_000)
        context.on("request", self._requested)
        context.on("weberror", lambda error: self.complaints.append(f"a script failed: {error.error}"))
        context.on("console", self._said)
        self.contexts.append(context)
        return context.new_page()

    def close(self) -> list[str]:
        """Close all pages; returns their errors."""
        for context in self.contexts:
            context.close()
        return [each for each in self.complaints if not any(part in each for part in self.expected)]

    def _requested(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname not in _LOOPBACK:
            self.complaints.append(f"a request beyond loopback: {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        # Violations of the content security policy are console messages, too.
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type} in the browser's console: {message.text}")


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A page</title><link rel='icon' href='data:,'>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The origin of a page without content, of another site."""
    with HTTPServer(("127.0.0.1", 0), _Blank) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def visit(chromium: Chromium) -> Iterator[Visitors]:
    """Opens pages. A request beyond loopback, an error of a script or an error line in the browser's
    console fails the test."""
    visitors = Visitors(chromium)
    yield visitors
    assert visitors.close() == []


def faults(page: Page) -> list[str]:
    """Violations that axe-core finds on the page in the light and the dark scheme, with their elements."""
    from axe_playwright_python.base import AXE_SCRIPT

    page.evaluate(AXE_SCRIPT)
    found = []
    # In the second scheme only the rules for colours: all others have the same result.
    for scheme, rules in zip(
        SCHEMES, ({}, {"runOnly": ["color-contrast", "link-in-text-block"], "preload": False}), strict=True
    ):
        page.emulate_media(color_scheme=scheme)
        options = {"resultTypes": ["violations"], **rules}
        violations = page.evaluate("options => axe.run(options).then(found => found.violations)", options)
        found += [
            f"{page.url}, {scheme}: {each['id']}: {node['html'][:200]} ({node['failureSummary']})"
            for each in violations
            for node in each["nodes"]
        ]
    return found


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


if __name__ == "__main__":
    sys.exit(provision_main("chromium", "the browser", provision))
