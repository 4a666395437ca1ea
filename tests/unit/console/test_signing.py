"""Sign-in to a console in the network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from arborcast.console.guard import Sessions
from arborcast.console.signing import signing_for
from arborcast.core.errors import ConfigError
from arborcast.ingest.access.users_file import hash_password
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import IdentitiesUnavailable
from tests.support.console import KEYS, Browser, ConsoleParts, console_parts, settings_in

RIGHT = "what only they know"

NETWORK = "192.0.2.7"

HOST = "console.example:8090"

_POLICY = """
[[allow]]
do = ["subscribe"]
topics = ["//."]
users = ["looker"]

[[allow]]
do = ["subscribe"]
topics = ["a//."]
users = ["partly"]

[[allow]]
do = ["manage"]
topics = ["//."]
groups = ["operators"]
"""


@pytest.fixture(scope="module")
def hashed() -> str:
    return hash_password(RIGHT, log_n=4)


@pytest.fixture
def given(tmp_path: Path, hashed: str) -> dict[str, Any]:
    """Settings of a console in the network."""
    users = tmp_path / "users.toml"
    names = {"anna": '["operators"]', "looker": "[]", "partly": "[]"}
    users.write_text(
        "".join(f'[users.{name}]\npassword = "{hashed}"\ngroups = {groups}\n' for name, groups in names.items())
    )
    users.chmod(0o600)
    policy = tmp_path / "policy.toml"
    policy.write_text(_POLICY)
    return {
        "console__host": NETWORK,
        "access__methods": "basic",
        "access__users_file": str(users),
        "access__policy_file": str(policy),
        "access__cache_s": 0.0,
    }


@pytest.fixture
def parts(tmp_path: Path, given: dict[str, Any]) -> ConsoleParts:
    signing = signing_for(settings_in(tmp_path, **given))
    assert signing is not None
    return console_parts(tmp_path, [TopicRecord(TopicPath("a/b"))], signing=signing, settings=given)


@pytest.fixture
def browser(parts: ConsoleParts) -> Browser:
    return Browser(parts.app, HOST, client="192.0.2.1")


def sign_in(browser: Browser, name: str, password: str = RIGHT) -> int:
    return browser.at("/sign-in?next=/topics%3Fat%3Da/b").submit("/sign-in", name=name, password=password).status_code


def test_without_a_session_only_the_sign_in_page_is_served(browser: Browser) -> None:
    assert browser.get("/topics?at=a/b").url.path == "/sign-in"
    assert "a/b" not in browser.text
    assert not browser.page.xpath("//nav//a")
    assert browser.get("/topics/export?form=json", sec_fetch_mode="cors").status_code == 401
    assert browser.get("/health/live").status_code == 200
    assert browser.post("/topics/save", {}).url.path == "/sign-in"
    assert browser.post("/topics/save", {}, sec_fetch_mode="cors").status_code == 401


def test_sign_in_redirects_to_the_requested_page_of_this_site(browser: Browser) -> None:
    browser.get("/sign-in")
    before = dict(browser._cookies)
    assert sign_in(browser, "anna") == 200
    assert dict(browser._cookies) != before, "a new session"
    assert str(browser.answer.url).endswith("/topics?at=a/b")
    assert "anna" in browser.answer.text
    browser.submit("/topics/put", priority="3")
    browser.get("/topics/review")
    assert "1 change to save" in browser.text
    browser.submit("/sign-out")
    assert browser.get("/topics").url.path == "/sign-in"
    browser.at("/sign-in?next=https://evil.example/").submit("/sign-in", name="anna", password=RIGHT)
    assert browser.answer.url.host == "console.example"


def test_a_form_of_an_expired_session_is_sent_after_the_next_sign_in(parts: ConsoleParts, browser: Browser) -> None:
    sign_in(browser, "anna")
    former = browser.get("/session").json()
    assert former["user"] == "anna"
    parts.console.sessions._clock = lambda: time.time() + 13 * 3600
    assert browser.get("/session").json()["user"] == ""
    sign_in(browser, "anna")
    for known, status in ((former, 403), (browser.get("/session").json(), 200)):
        assert browser.post("/theme", {"token": known["token"], "back": "/topics"}).status_code == status


@pytest.mark.parametrize(("name", "password"), [("anna", "wrong"), ("nobody", RIGHT), ("", ""), ("<b>", "x")])
def test_wrong_credentials(browser: Browser, name: str, password: str) -> None:
    assert sign_in(browser, name, password) == 403
    assert "Wrong user name or password." in browser.text
    assert "<b>" not in browser.answer.text
    assert browser.get("/topics").url.path == "/sign-in"


def test_a_user_with_read_access_changes_nothing(parts: ConsoleParts, browser: Browser) -> None:
    sign_in(browser, "looker")
    assert "a/b" in browser.text
    assert not browser.page.xpath("//form[@action='/topics/put']")
    token = browser.page.xpath("//input[@name='token']/@value")[0]
    written = len(parts.changes.records)
    for path in ("/topics/put", "/topics/save", "/topics/import", "/subscriptions/act", "/deliveries/dead/act"):
        assert browser.post(path, {"token": token, "at": "a/b", "sure": "yes", "action": "purge"}).status_code == 403
    assert len(parts.changes.records) == written
    assert "View mine saved." in browser.at("/triggers").submit("/views", name="mine").text
    assert browser.get("/triggers?format=csv").headers["content-type"].startswith("text/csv")


def test_users_with_fewer_rights_and_removed_users(parts: ConsoleParts, browser: Browser, tmp_path: Path) -> None:
    sign_in(browser, "looker")
    browser.at("/triggers").submit("/views", name="mine")
    for name, sees in (("partly", False), ("anna", True)):
        other = Browser(parts.app, HOST, client="192.0.2.1")
        assert other.get("/triggers?format=csv").url.path == "/sign-in"
        assert sign_in(other, name) == (200 if sees else 403)
        assert ("may not see this console" in other.answer.text) is not sees
        assert ("content-disposition" in other.get("/triggers?format=csv").headers) is sees
        assert "mine" not in other.get("/triggers").text
    users = tmp_path / "users.toml"
    users.write_text(users.read_text().replace("[users.anna]", "[users.other]"))
    parts.app._callers.users._source._users._next_check = 0.0  # after a time
    assert other.get("/topics").url.path == "/sign-in"


def test_while_users_cannot_be_looked_up_pages_say_so(
    parts: ConsoleParts, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(browser, "anna")
    away = AsyncMock(side_effect=IdentitiesUnavailable("the directory does not answer", 1.0))
    monkeypatch.setattr(parts.app._callers, "find", away)
    for path in ("/topics", "/live"):
        answer = browser.get(path)
        assert (answer.status_code, answer.text) == (503, "the directory does not answer\n")


def test_cookies_are_authenticated_and_expire() -> None:
    now = [1_000.0]
    sessions = Sessions(KEYS, "c", secure=True, clock=lambda: now[0])
    session, header = sessions.begin("anna")
    assert header.endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")
    cookie = header.partition(";")[0]
    known = sessions.read(cookie)
    assert known is not None
    assert known[:2] == (session, "anna")
    for other in ('look={"wide": 1}', "a=b c", "=", 'half="x'):
        assert sessions.read(f"{other}; {cookie}; {other}") == known, "cookies of other ports are sent, too"
    for wrong in (cookie.replace("anna", "otto"), cookie[:-1], "c=x~other.key", "c", "\x00=;;;"):
        assert sessions.read(wrong) is None
    now[0] += 13 * 3600
    assert sessions.read(cookie) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "without authentication: set access.methods"),
        ({"access__methods": "certificate"}, 'access.methods must contain "basic"'),
        ({"access__methods": "basic"}, "users"),
    ],
)
def test_a_console_in_the_network_needs_users(tmp_path: Path, given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        signing_for(settings_in(tmp_path, console__host=NETWORK, **given))
    for host in ("127.0.0.1", "::1", "localhost"):
        assert signing_for(settings_in(tmp_path, console__host=host)) is None


def test_credentials_for_the_gateway_end_with_the_session(parts: ConsoleParts, browser: Browser) -> None:
    sign_in(browser, "anna")
    browser.at("/try").submit("/try/credentials", name="bus-user", password="bus-word")  # noqa: S106  # a password that the test makes up
    assert "bus-user" in browser.text
    before = browser._cookies
    browser.submit("/sign-out")
    browser._cookies = before  # a copied cookie is valid until its expiry
    browser.get("/try")
    assert "anna" in browser.answer.text
    assert "bus-user" not in browser.text


def test_behind_a_proxy_failures_count_for_the_client(tmp_path: Path, given: dict[str, Any]) -> None:
    proxied = dict(given, gateway__trusted_proxies="192.0.2.1", access__failures_per_minute=1)
    signing = signing_for(settings_in(tmp_path, **proxied))
    assert signing is not None
    app = console_parts(tmp_path, signing=signing, settings=proxied).app

    def tries(password: str, client: str) -> str:
        browser = Browser(app, HOST, client="192.0.2.1")
        browser.get("/sign-in", x_forwarded_for=client)
        token = browser.page.xpath("//input[@name='token']/@value")[0]
        browser.post("/sign-in", {"token": token, "name": "anna", "password": password}, x_forwarded_for=client)
        return browser.answer.text

    tries("wrong", "198.51.100.7")
    assert "wrong credentials" in tries(RIGHT, "198.51.100.7")
    assert "sign-out" in tries(RIGHT, "198.51.100.8"), "another client of the same proxy"
