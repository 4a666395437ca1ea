"""The console for tests: over a control log that is a list, or over Kafka's; called in this process, or served."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from lxml import html

from arborcast.console.app import make_app
from arborcast.console.console import Console, PageState
from arborcast.console.guard import Sessions
from arborcast.console.signing import SigningIn
from arborcast.core.security.keyring import KeyRing
from arborcast.engine.settings.loading import Settings, load_settings
from arborcast.ingest.http.listening import listen_on
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded
from arborcast.topic_model.subscriptions import Subscription
from tests.support.gateway_parts import ControlList
from tests.support.served_app import running

EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script>\u202e"
"""Text of an attacker: see `Browser.shows_hostile`."""

KEYS = KeyRing({"test": b"k" * 32})


@dataclasses.dataclass
class ConsoleParts:
    """A console over a list of control records. With `changes.error` Kafka is away; `trouble` is the message."""

    control: ControlView
    changes: ControlList
    console: Console
    app: Any
    operations: list[OperationBegun | OperationEnded]
    trouble: str = ""
    ready: bool = True

    def subscription(self, name: str) -> Subscription:
        found = self.control.table.get(name)
        assert found is not None, f"no subscription {name}"
        return found

    def put(self, *records: ControlRecord) -> None:
        """Append records of another writer."""
        # Not through `commit`: no other event loop can run beside Playwright's browser.
        self.changes.records += records
        for record in records:
            self.control.apply(record)


def console_parts(
    home: Path,
    records: Iterable[ControlRecord] = (),
    *,
    signing: SigningIn | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ConsoleParts:
    loaded = settings_in(home, **(settings or {}))
    state = PageState()
    control = ControlView(state)
    changes = ControlList(control)
    sessions = Sessions(KEYS, "arborcast-test", secure=False)
    console = Console(
        loaded,
        control,
        changes,
        sessions,
        trouble=lambda: parts.trouble,
        ready=lambda: parts.ready,
        state=state,
        record=(operations := list[OperationBegun | OperationEnded]()).append,
    )
    parts = ConsoleParts(control, changes, console, make_app(console, signing), operations)
    if records:
        parts.put(*records)
    return parts


def settings_in(home: Path, **overrides: Any) -> Settings:
    """Settings of a file in an empty folder; `overrides` as on the command line (`kafka__prefix`)."""
    file = home / "console-test.toml"
    home.mkdir(exist_ok=True)
    file.touch()
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_settings(file, home, given, environ={})


class Browser:
    """A browser without script: keeps cookies, follows redirects, fills in the forms of the current page."""

    def __init__(self, app: Any, host: str = "127.0.0.1:8090", client: str = "127.0.0.1") -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 5000))
        self._cookies = httpx.Cookies()
        self._base = f"http://{host}"
        self.answer = httpx.Response(0)

    def goes_on_with(self, app: Any) -> None:
        """Continue with another server process, with the same cookies."""
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5000))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._send("GET", path, headers)

    def at(self, path: str, **headers: str) -> Browser:
        """With this page as the current one."""
        self.get(path, **headers)
        return self

    def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> httpx.Response:
        """POST a form without the page's token."""
        return self._send("POST", path, headers, data=dict(fields))

    def submit(self, action: str, /, files: Mapping[str, Any] | None = None, **fields: Any) -> httpx.Response:
        """Submit the form of the current page with this action, with these fields filled in or changed."""
        return self._send("POST", action, {}, data={**values_of(self.page, action), **fields}, files=files)

    @property
    def page(self) -> html.HtmlElement:
        # `wbr` is no text.
        return html.document_fromstring(self.answer.text.replace("<wbr>", ""))

    @property
    def text(self) -> str:
        """The visible text, in one line."""
        return " ".join(" ".join(self.page.xpath("//main//text()")).split())

    def rows(self, table: int = 1) -> list[str]:
        """The visible text of a table's rows, counted from 1."""
        found = self.page.xpath(f"(//main//table)[{table}]/tbody/tr")
        return [" ".join(" ".join(each.xpath(".//text()")).split()) for each in found]

    def shows_hostile(self, *secrets: str) -> bool:
        """Whether the page has injected markup, a bidirectional control character, or one of these secrets."""
        main = self.answer.text.partition("<main")[2] or self.answer.text
        return any(each in main for each in ("<img src=x", "<script>alert", "\u202e", *secrets))

    def _send(self, method: str, path: str, headers: Mapping[str, str], **rest: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url=self._base, cookies=self._cookies, follow_redirects=True
            ) as client:
                answer = await client.request(
                    method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}, **rest
                )
                self._cookies = client.cookies
                return answer

        self.answer = asyncio.run(send())
        return self.answer


def values_of(page: html.HtmlElement, action: str) -> dict[str, Any]:
    """The values of the first form with this action."""
    forms = [form for form in page.forms if form.get("action") == action]
    assert forms, f"no form {action} in {[form.get('action') for form in page.forms]}"
    given: dict[str, Any] = {}
    for name, value in forms[0].form_values():
        given.setdefault(name, []).append(value)
    return given


def submitted(browser: httpx.Client, page: httpx.Response, action: str, /, **fields: Any) -> httpx.Response:
    """A form of a page, as a browser sends it to a real server."""
    values = values_of(html.document_fromstring(page.text), action)
    return browser.post(action, data={**values, **fields}, follow_redirects=True)


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The URL at which the application is served to real browsers until the block ends."""
    listener = listen_on("127.0.0.1", 0, host_by="console.host", port_by="console.port")
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    with running(server, listener) as port:
        yield f"http://127.0.0.1:{port}"
