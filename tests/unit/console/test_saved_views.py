"""Named views of lists: saved, opened, found and deleted without script."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest

from arborcast.console import saved_views
from arborcast.console.saved_views import SavedView, SavedViews
from arborcast.core.errors import InfrastructureError
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.console_answers import answering

FILTER = "/subscriptions?topic=&endpoint=panel&state=failing&sort=-Created&after=s3"
URL = "/subscriptions?endpoint=panel&state=failing&sort=-Created"


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)


def views(browser: Browser) -> dict[str, str]:
    """The views beside the filter, with their addresses."""
    links = browser.page.xpath("//div[contains(@class, 'views')]/a[not(contains(@href, 'format='))]")
    return {each.text_content(): each.get("href") for each in links}


def save(browser: Browser, page: str, name: str) -> None:
    browser.get(page)
    browser.submit("/views", name=name)


def test_a_filter_is_saved_under_a_name_and_deleted(browser: Browser) -> None:
    save(browser, FILTER, "  Failing \n panels ")
    assert "View Failing panels saved." in browser.answer.text
    assert str(browser.answer.url).endswith(URL), "the view is open"
    assert views(browser) == {"Failing panels": URL}
    assert browser.page.xpath("//a[@aria-current='true'][.='Failing panels']")
    browser.get("/subscriptions")
    assert views(browser) == {"Failing panels": URL}
    assert not browser.page.xpath("//a[@aria-current='true'][.='Failing panels']")
    assert not browser.page.xpath("//button[@value='delete']"), "it is not open"
    browser.get("/deliveries/dead")
    assert views(browser) == {}, "each list has its own"
    browser.get(URL)
    (name,) = browser.page.xpath("//form[@action='/views'][.//button[@value='delete']]//input[@name='name']/@value")
    token = browser.page.xpath("//input[@name='token']/@value")[0]
    browser.post("/views", {"token": token, "url": "/subscriptions", "name": name, "action": "delete"})
    assert "View deleted." in browser.answer.text
    assert views(browser) == {}


def test_the_field_that_finds_has_views(browser: Browser) -> None:
    save(browser, "/deliveries/dead?reason=503", "No room at <b>panels</b>")
    browser.get("/find?q=NO+ROOM", x_fragment="1")
    assert browser.page.xpath("//li/a/@href") == ["/deliveries/dead?reason=503"]
    assert not browser.page.xpath("//li//b")
    browser.get("/find?q=room")
    assert browser.page.xpath("//main//li/a/@href") == ["/deliveries/dead?reason=503"]
    browser.get(f"/find?{urlencode({'q': 'No room at <b>panels</b>'})}")
    assert str(browser.answer.url).endswith("/deliveries/dead?reason=503")


@pytest.mark.parametrize("url", ["https://evil.example/", "//evil.example/", "/topics?at=a", "/nowhere", ""])
def test_only_lists_have_views(browser: Browser, url: str) -> None:
    browser.get("/subscriptions")
    browser.submit("/views", name="x", url=url)
    assert browser.answer.status_code == 400
    assert browser.answer.url.host == "127.0.0.1"


def test_names_and_limits(browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "_VIEWS", 2)
    for name in ("b", "A", "c", "b"):
        save(browser, f"/subscriptions?endpoint={name}", name)
        assert ("2 views are saved: delete one first." in browser.answer.text) == (name == "c")
    save(browser, "/subscriptions?state=suspended", "b")
    save(browser, "/subscriptions?endpoint=" + "x" * 1_000, "b")
    assert "The filter is too long for a view" in browser.answer.text
    for name in ("", " \t", "x" * 61):
        save(browser, "/subscriptions", name)
        assert "Enter a name of at most 60 characters." in browser.answer.text
    # Without sign-in views are of the machine.
    other = Browser(console_parts(parts.console.settings.home).app)
    other.get("/subscriptions")
    assert list(views(other).items()) == [("A", "/subscriptions?endpoint=A"), ("b", "/subscriptions?state=suspended")]


def test_views_of_users_are_apart_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    saved = SavedViews(tmp_path)
    saved.save("anna", "a", "/subscriptions?state=failing")
    assert (saved.of("anna"), saved.of("berta")) == ([SavedView("a", "/subscriptions?state=failing")], [])
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    for damage in (b"", b"{", b"[]", b'{"v": 2, "views": []}'):
        file.write_bytes(damage)
        assert saved.of("anna") == []
    saved.save("anna", "a", "/subscriptions")
    saved.remove("anna", "a", "/subscriptions")
    saved.remove("anna", "a", "/subscriptions")
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="the views cannot be stored"):
        SavedViews(tmp_path / "file").save("anna", "a", "/subscriptions")
    saved = SavedViews(tmp_path / "views")
    saved.save("anna", "a", "/subscriptions")

    def read(_person: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(saved._files, "read", read)
        assert saved.of("anna") == []
        with pytest.raises(InfrastructureError):
            saved.save("anna", "b", "/subscriptions")
    assert [each.name for each in saved.of("anna")] == ["a"]
