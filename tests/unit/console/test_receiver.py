"""The page of one subscription for its subscriber: the link and its permissions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest

from arborcast.admin import dead_letters, messages, receiver_page
from arborcast.admin.dead_letters import LetterFilter, LetterList, RedriveCounts
from arborcast.console.questions import Questions
from arborcast.console.signing import SigningIn
from arborcast.core.errors import ConfigError, InfrastructureError, NotFound
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.topic_model.grants import Caller, Identity
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended, ending
from arborcast.topic_model.records.operations import OperationBegun, Operator
from arborcast.topic_model.subscriptions import Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.console import EVIL, Browser, ConsoleParts, console_parts
from tests.support.console_answers import LETTER, Answering, Asked
from tests.support.routing import make_subscription

AT_MS = 1_767_225_600_000
ROW = Attempt("01ab", "s1", TopicPath("a"), "http://r/", 2, "p", "parked", 1, AT_MS, 7.0, "server-error", EVIL, 503)


def made(name: str, owner: str = "ann") -> Subscription:
    return make_subscription(name, "a//.", owner=owner)


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    add_key(tmp_path / "secrets.keys", "k1")
    opened = console_parts(tmp_path, settings={"console__public_url": "https://console.example/"})
    opened.put(SubscriptionRecord(made("s1")), SubscriptionRecord(made("s2", "bob")))
    return opened


@pytest.fixture
def asked(answering: Answering) -> Asked:
    return answering(
        {
            messages.last_attempts: [ROW],
            receiver_page.send_test: "0test",
            dead_letters.listed: LetterList((LETTER,), 2),
            dead_letters.redrive: RedriveCounts(3, 0, 0),
        },
    )


def path_of(parts: ConsoleParts, name: str = "s1", days: float = 7.0) -> str:
    url = receiver_page.link(parts.console.settings, parts.control, name, days)
    assert url.startswith("https://console.example/receiver/")
    return urlsplit(url).path


def act(browser: Browser, path: str, action: str) -> None:
    browser.get(path)
    token = browser.page.xpath("//input[@name='token']/@value")[0]
    browser.post(path, {"token": token, "action": action})


def test_the_page_has_state_attempts_and_dead_letters(browser: Browser, parts: ConsoleParts, asked: Asked) -> None:
    assert browser.get(path_of(parts)).status_code == 200
    for words in ("Subscription s1", "active", "server-error", "503", "01ab", LETTER.notification, "and 2 more"):
        assert words in browser.text
    assert not browser.shows_hostile()
    # Tokens in the source may have any letters.
    assert "s2" not in browser.text
    assert not browser.page.xpath("//*[contains(@href, '/s2')]")
    assert not browser.page.xpath("//nav"), "no links to the other screens"
    (read,) = (arguments for function, arguments in asked if function is dead_letters.listed)
    assert read[-1] is parts.console.questions.views, "only the first visit reads all letters"


@pytest.mark.usefixtures("asked")
def test_actions_of_a_subscriber(browser: Browser, parts: ConsoleParts, asked: Asked) -> None:
    path = path_of(parts)
    act(browser, path, "pause")
    assert parts.subscription("s1").paused
    assert "It is paused." in browser.answer.text
    parts.put(SubscriptionSuspended("s1", "it fails", 1, 2))
    act(browser, path, "resume")
    assert not parts.subscription("s1").paused
    assert "s1" not in parts.control.suspensions

    act(browser, path, "test")
    assert "Test 0test is sent." in browser.answer.text
    act(browser, path, "redrive")
    redriven = [arguments for function, arguments in asked if function is dead_letters.redrive]
    assert redriven == [(LetterFilter(subscription="s1"), None, parts.control, Operator("console", "receiver of s1"))]
    assert "3 deliveries are tried again." in browser.answer.text
    made_by = [(each.actor, each.action) for each in parts.operations if isinstance(each, OperationBegun)]
    assert made_by == [("receiver of s1", "subscriptions pause"), ("receiver of s1", "subscriptions resume")]
    act(browser, path, "end")
    assert browser.answer.status_code == 400
    for _ in range(6):
        assert browser.answer.status_code != 429
        act(browser, path, "redrive")
    assert browser.answer.status_code == 429, "each request reads all dead letters"
    assert parts.subscription("s1")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("host", ["127.0.0.1:8090", "console.example"])  # of the proxy's request: both are usual
def test_actions_through_a_proxy_at_the_public_url(parts: ConsoleParts, host: str) -> None:
    browser, path = Browser(parts.app, host), path_of(parts)
    assert browser.get(path).status_code == 200
    token = browser.page.xpath("//input[@name='token']/@value")[0]
    fields = {"token": token, "action": "pause"}
    browser.post(path, fields, origin="https://other.example", sec_fetch_site="cross-site")
    assert (browser.answer.status_code, parts.subscription("s1").paused) == (403, False)
    browser.post(path, fields, origin="https://console.example", sec_fetch_site="same-origin")
    assert (browser.answer.status_code, parts.subscription("s1").paused) == (200, True)


@pytest.mark.parametrize("url", ["console.example", "https://console.example:none"])
def test_a_public_url_that_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"console\.public_url"):
        console_parts(tmp_path, settings={"console__public_url": url})


def test_errors_have_no_addresses_of_the_engine(browser: Browser, parts: ConsoleParts, answering: Answering) -> None:
    away = InfrastructureError("Kafka cannot be reached: 10.0.0.5:9092")
    answering(dict.fromkeys((dead_letters.listed, messages.last_attempts, dead_letters.redrive), away))
    for action, status in (("", 200), ("redrive", 503)):
        browser.get(path_of(parts))
        if action:
            act(browser, path_of(parts), action)
        assert browser.answer.status_code == status
        assert "Temporarily unavailable" in browser.text
        assert "10.0.0.5" not in browser.answer.text


def test_a_subscription_that_ends_meanwhile_is_shown_as_it_was(
    browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def value(_self: Questions, function: Any, *_arguments: Any, **_: Any) -> Any:
        parts.put(*ending("s1", "unsubscribed", 1))
        return LetterList((), 0) if function is dead_letters.listed else []

    monkeypatch.setattr(Questions, "_value", value)
    path = path_of(parts)
    assert [browser.get(path).status_code for _ in range(2)] == [200, 404]


@pytest.mark.usefixtures("asked")
def test_a_rotated_secret_is_shown_once(browser: Browser, parts: ConsoleParts) -> None:
    keys = KeyFile(Path(parts.console.settings.secrets.key_file))
    signed = made("s1")
    secret = SigningSecret(keys.seal(b"x" * 32, signed.sealing_context()))
    parts.put(SubscriptionRecord(msgspec.structs.replace(signed, protection=Protection((secret,)))))
    path = path_of(parts)
    act(browser, path, "rotate")
    shown = browser.page.xpath("//code[starts-with(text(), 'whsec_')]/text()")
    assert len(shown) == 1
    now = parts.subscription("s1")
    assert now.protection is not None
    assert [each.sealed for each in now.protection.secrets][1:] == [secret.sealed], "the old one also signs for a time"
    (begun,) = (each for each in parts.operations if isinstance(each, OperationBegun))
    assert (begun.actor, begun.action) == ("receiver of s1", "subscriptions rotate-secret")
    assert [each.subject for each in begun.changes] == ["s1"]
    assert shown[0] not in str(begun)
    assert "whsec_" not in browser.get(path).text


BROKEN = {
    "another subscription": "s2/{until}.{mark}",
    "later": "{name}/{later}.{mark}",
    "another mark": "{name}/{until}.{mark:.20}AA",
    "another key": "{name}/{until}.k9.{bare}",
    "no number": "{name}/x.{mark}",
    "the subscription is over": "{name}/{until}.{mark}",
    "of a session": "{name}/{until}.{session}",
}


@pytest.mark.parametrize("how", BROKEN)
def test_an_invalid_link_permits_nothing(browser: Browser, parts: ConsoleParts, asked: Asked, how: str) -> None:
    _, _, name, text = path_of(parts).split("/")
    until, _, mark = text.partition(".")
    session, bare, later = parts.console.sessions.token(name), mark.partition(".")[2], int(until) + 1
    path = "/receiver/" + BROKEN[how].format(name=name, until=until, mark=mark, session=session, bare=bare, later=later)
    if how == "the subscription is over":
        parts.put(*ending("s1", "unsubscribed", 1))
    assert (browser.get(path).status_code, asked) == (404, [])
    assert "this link opens nothing" in browser.text
    browser.get("/sign-in")  # a token of this session does not suffice
    assert browser.post(path, {"token": parts.console.sessions.token("x"), "action": "pause"}).status_code in (403, 404)
    assert all(not each.paused for each in parts.control.table.subscriptions())


def test_a_link_expires_and_cannot_be_forged(parts: ConsoleParts) -> None:
    settings, control = parts.console.settings, parts.control
    _, _, name, text = path_of(parts, days=1.0).split("/")
    marks = KeyFile(Path(settings.secrets.key_file))
    now_s = time.time()
    assert receiver_page.linked(marks, control, name, text, now_s).id == "s1"
    with pytest.raises(NotFound, match="has ended"):
        receiver_page.linked(marks, control, name, text, now_s + 86_401)
    with pytest.raises(NotFound):
        receiver_page.link(settings, control, "s9", 7.0)
    for days in (0.0, 91.0):
        with pytest.raises(ConfigError):
            receiver_page.link(settings, control, "s1", days)
    Path(settings.secrets.key_file).unlink()
    with pytest.raises(ConfigError, match="signed with the engine's key"):
        receiver_page.link(settings, control, "s1", 1.0)


@pytest.mark.usefixtures("asked")
def test_a_link_needs_no_sign_in_and_ends_with_its_user(tmp_path: Path) -> None:
    users = {"ann": Caller(Identity("ann"))}

    class Callers:
        async def find(self, name: str) -> Caller | None:
            return users.get(name)

    add_key(tmp_path / "secrets.keys", "k1")
    signing = SigningIn(cast(Any, Callers()))
    parts = console_parts(tmp_path, signing=signing, settings={"console__public_url": "https://console.example"})
    parts.put(SubscriptionRecord(made("s1")))
    browser, path = Browser(parts.app), path_of(parts)
    assert browser.get(path).status_code == 200
    assert "Subscription s1" in browser.text
    assert "Sign in" in browser.get("/subscriptions").text, "the link permits no other page"
    users.clear()
    assert browser.get(path).status_code == 404
    assert "no user any more" in browser.text
