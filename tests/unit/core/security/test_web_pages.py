"""Requests as browsers send them (Fetch, 3.2.5; Fetch Metadata; RFC 6454), by the page's action."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import EVERYWHERE
from arborcast.core.security.web_pages import PageRule, is_of_browser, origin_of, page_headers, read_origins

OURS = "127.0.0.1:8080"
WANTED = frozenset({"https://wanted.example"})
LOOPBACK = PageRule("127.0.0.1", "https://wsn.example", WANTED, "a.public_url", "a.pages")
NETWORK = replace(LOOPBACK, host=EVERYWHERE)


def fetched(site: str, mode: str = "no-cors", dest: str = "empty", **more: str) -> dict[str, str]:
    """As Chromium since 76, Firefox since 90 and Safari since 16.4."""
    return {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest, **more}


FOREIGN = {
    # fetch(..., {mode: "no-cors"}) and sendBeacon: without a preflight.
    "a page of another site posts": ("POST", fetched("cross-site", origin="https://evil.example")),
    "a page on another port posts": ("POST", fetched("same-site", origin="http://127.0.0.1:9000")),
    "another name of this machine posts": ("POST", fetched("cross-site", origin="http://localhost:8080")),
    "a page of another site posts with cors": ("POST", fetched("cross-site", "cors", origin="https://evil.example")),
    "a preflight": ("OPTIONS", fetched("cross-site", "cors", origin="https://evil.example")),
    "a page from a file, and a frame without an origin, post": ("POST", fetched("cross-site", origin="null")),
    "a form is sent": ("POST", fetched("cross-site", "navigate", "document", origin="https://evil.example")),
    "an extension posts": ("POST", fetched("cross-site", "cors", origin="chrome-extension://abcdef")),
    "a page reads": ("GET", fetched("cross-site", "cors", origin="https://evil.example")),
    "an image of a page": ("GET", fetched("cross-site", dest="image")),
    "a script of a page": ("GET", fetched("same-site", dest="script")),
    "a frame of a page": ("GET", fetched("cross-site", "navigate", "iframe")),
    "an embedded object": ("GET", fetched("cross-site", "navigate", "object")),
    # To http addresses other than loopback, browsers send no Sec-Fetch-*; older ones never send it.
    "Firefox 78 and Safari 14 post": ("POST", {"origin": "https://evil.example"}),
    "Safari 14 sends a form": ("POST", {"origin": "null"}),
}

TAKEN = {
    "a SOAP client": ("POST", {}),
    "a WebSocket library without fetch metadata": ("GET", {}),
    "the address bar": ("GET", fetched("none", "navigate", "document")),
    "a followed link": ("GET", fetched("cross-site", "navigate", "document")),
    "a link on a page of another port": ("GET", fetched("same-site", "navigate", "document")),
    "an own page reads": ("GET", fetched("same-origin", "cors")),
    "an own page posts": ("POST", fetched("same-origin", "cors", origin=f"http://{OURS}")),
    "an own page posts from Safari 14": ("POST", {"origin": f"http://{OURS}"}),
    "a page under the public name posts, the proxy sets Host": ("POST", {"origin": "https://wsn.example"}),
    "a permitted page posts": ("POST", fetched("cross-site", "cors", origin="https://wanted.example")),
    "a preflight of a permitted page": ("OPTIONS", {"origin": "https://wanted.example"}),
}


@pytest.mark.parametrize("rule", [LOOPBACK, NETWORK], ids=["loopback", "network"])
@pytest.mark.parametrize("case", [*FOREIGN, *TAKEN])
def test_pages_of_other_sites_are_refused_with_advice(rule: PageRule, case: str) -> None:
    method, headers = (FOREIGN | TAKEN)[case]
    refusal = rule.refusal(method, {"host": OURS, **headers})
    assert ("web pages" in refusal and "set as a.pages" in refusal) if case in FOREIGN else not refusal


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "127.0.0.1.evil.example:8080", "localhost.evil.example"),
        *("x.localhost", "10.0.0.1:8080", "0.0.0.0:8080", "[fe80::1]:8080", "wsn.example.evil.example"),
    ],
)
def test_on_loopback_a_foreign_name_is_refused(host: str, method: str) -> None:
    """The requests of a page at a name that resolves to this machine are same-origin: GET has no other mark."""
    headers = {"host": host} if method == "GET" else {"host": host, "origin": f"http://{host}"}
    refusal = LOOPBACK.refusal(method, headers)
    assert "127.0.0.1 or localhost" in refusal
    assert "a.public_url" in refusal
    assert NETWORK.refusal(method, headers) == "", "behind a proxy a server may have any name"


def test_own_names_and_programs_without_a_host_are_accepted() -> None:
    for host in ("127.0.0.1", OURS, "localhost:1", "LOCALHOST", "[::1]:8080", "127.9.9.9", "wsn.example:8", ""):
        assert LOOPBACK.refusal("POST", {"host": host}) == ""
    assert LOOPBACK.refusal("POST", {}) == ""
    for listening in ("localhost", "127.0.0.1", "::1", "127.0.0.5"):
        assert PageRule(listening).refusal("GET", {"host": "evil.example"})
        assert not PageRule(listening).refusal("GET", {"host": "localhost:8080"})


def test_origins_in_the_notation_of_browsers() -> None:
    assert origin_of("https://wsn.example/") == origin_of("HTTPS://WSN.Example:443/a?b") == "https://wsn.example"
    assert origin_of("http://wsn.example:443") == "http://wsn.example:443"
    assert origin_of("http://[::1]:8080/x") == "http://[::1]:8080"
    assert origin_of("ftp://wsn.example") == origin_of("") == ""


def test_origins_of_a_setting() -> None:
    wanted = {"https://a.example", "http://localhost:3000"}
    assert read_origins(" https://a.example , http://localhost:3000,", "k") == wanted
    for wrong in ("*", "null", "a.example", "https://a.example/", "https://a.example:443", "http://h:99999", "file://"):
        with pytest.raises(ConfigError, match="k: "):
            read_origins(wrong, "k")


def test_headers_of_pages() -> None:
    sent = [(b"host", b"h"), (b"origin", b"http://x"), (b"cookie", b"c"), (b"sec-fetch-site", b"none")]
    assert page_headers(sent) == {"host": "h", "origin": "http://x", "sec-fetch-site": "none"}
    assert is_of_browser(page_headers(sent))
    assert not is_of_browser({"host": "h", "user-agent": "Arborcast"})
