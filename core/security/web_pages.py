"""Protection of servers against cross-site requests of web pages.

A browser sends the requests of any page to any reachable address, loopback included. It marks them with headers that no
script can set: Origin (RFC 6454) and Sec-Fetch-* (Fetch Metadata). After DNS rebinding (a name of the attacker resolves
to a loopback address) page and server have the same origin, and only the Host header shows the foreign name. Other
programs send neither Origin nor Sec-Fetch-*, and as Host the name in their URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import urlsplit

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import in_url, is_loopback

_CHECKED_HEADERS = {
    name.encode(): name for name in ("host", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest")
}

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class PageRule:
    """The rule of a server that listens on `host` and is also reached as `public_url`. It accepts requests of pages of
    its own origin and of `allowed_origins`, and navigation by links."""

    host: str
    public_url: str = ""
    allowed_origins: frozenset[str] = frozenset()
    public_url_setting: str = ""
    """The setting of `public_url`, for refusals."""
    origins_setting: str = ""
    """The setting of `allowed_origins`, for refusals."""

    def refusal(self, method: str, headers: Mapping[str, str], *, links: bool = True) -> str:
        """The reason for refusing a request, as a sentence; empty if it is accepted. Without `links`, as for a GET that
        changes something, navigation by a link is refused, too."""
        host = headers.get("host", "")
        if host and self._on_loopback and not (_is_loopback(host) or _name(host) == self._public_name):
            setting = self.public_url_setting
            more = f" (the name of a proxy in front is set as {setting})" if setting else ""
            return (
                f"this server listens on loopback and is not reached as {host[:200]!r}: use 127.0.0.1 or localhost"
                f"{more}"
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if (origin is None and site is None) or origin in self.allowed_origins:
            return ""
        if origin is None:
            foreign = site in ("cross-site", "same-site") and not (links and _follows_link(method, headers))
        else:
            foreign = origin.partition("://")[2] != host and origin != origin_of(self.public_url)
        if not foreign:
            return ""
        more = "; the origins of pages that may send them are set as " + self.origins_setting
        if not self.origins_setting:
            more = ": open the address itself in the browser, or use another client"
        page = "of another site" if origin is None else f"at {origin[:200]!r}"
        return f"requests of web pages {page} are refused{more}"

    @cached_property
    def _on_loopback(self) -> bool:
        return is_loopback(self.host)

    @cached_property
    def _public_name(self) -> str:
        return urlsplit(self.public_url).hostname or ""


def origin_of(url: str) -> str:
    """The origin of an http or https URL as browsers write it; empty for other schemes. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return ""
    host, port = in_url(parts.hostname), parts.port
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, _DEFAULT_PORTS[parts.scheme]) else "")


def read_origins(text: str, key: str) -> frozenset[str]:
    """Origins, separated by commas, of the setting `key`. Raises ConfigError."""
    origins = frozenset(filter(None, (part.strip() for part in text.split(","))))
    for each in origins:
        try:
            right = origin_of(each)
        except ValueError:
            right = ""
        if each != right:
            hint = f"write {right}" if right else "write scheme, host and port, such as https://pages.example:8443"
            raise ConfigError(f"{key}: {each!r} is not the origin of a page: {hint}")
    return origins


def page_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers that a rule checks, from the headers of an ASGI request."""
    return {_CHECKED_HEADERS[name]: value.decode("latin-1") for name, value in headers if name in _CHECKED_HEADERS}


def is_of_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request for a page. `headers` by names in lower case."""
    return "origin" in headers or "sec-fetch-site" in headers


def _follows_link(method: str, headers: Mapping[str, str]) -> bool:
    """Whether the request is a navigation by a link: the page with the link cannot read the answer."""
    return (
        method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )


@lru_cache(64)  # a few names, thousands of requests a second
def _is_loopback(host: str) -> bool:
    return is_loopback(_name(host))


def _name(host: str) -> str:
    """The host of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
