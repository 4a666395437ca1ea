"""Templates, and the files that pages are made of."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from arborcast.core.printable import printable
from arborcast.core.security.uris import without_password
from arborcast.engine.install.version import installed
from arborcast.engine.monitoring import charts
from arborcast.engine.monitoring.figures import WORDS

_HERE = Path(__file__).parent

_SEGMENTS = re.compile(r"[^/]*/+|[^/]+")

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class StaticFiles:
    """The files in `static/` and the style of charts, in memory. Their address has a hash of all of them, so browsers
    may cache them for ever, and modules find each other by relative imports."""

    def __init__(self) -> None:
        files = [*sorted((_HERE / "static").iterdir()), charts.STYLE]
        self._files = {file.name: file.read_bytes() for file in files if file.suffix in _TYPES}
        digest = hashlib.sha256()
        for name, data in self._files.items():
            digest.update(name.encode() + b"\0" + data)
        self._version = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        """Where a page finds a file. Raises KeyError for one that is not there: a template is wrong."""
        if name not in self._files:
            raise KeyError(name)
        return f"/static/{self._version}/{name}"

    async def serve(self, request: Request) -> Response:
        name, version = request.path_params["name"], request.path_params["version"]
        data = self._files.get(name)
        if data is None:
            raise HTTPException(404, "there is no such file")
        tag = f'"{self._version}"'
        # A page of an earlier version gets the current file, without caching.
        kept = "public, max-age=31536000, immutable" if version == self._version else "no-cache"
        headers = {"etag": tag, "cache-control": kept}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, headers={**headers, "content-type": _TYPES[Path(name).suffix]})


class Templates:
    """Everything that is put into a template is escaped, and written out where it is a character that does something
    (`core.printable`): names and payloads are strangers'."""

    def __init__(self) -> None:
        self.static = StaticFiles()
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_seen,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals["static"] = self.static.url
        self._environment.globals["zone"] = _zone
        self._environment.globals["version"] = installed("arborcast")
        self._environment.globals["words"] = WORDS
        self._environment.filters["moment"] = _moment
        self._environment.filters["number"] = "{:,}".format
        self._environment.filters["endpoint"] = without_password
        self._environment.filters["span"] = _span
        self._environment.filters["breaks"] = _breaks

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(name).render(values)


def _seen(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breaks(text: str) -> Markup:
    """A path or an address whose lines break behind a slash only."""
    return Markup("<wbr>").join(escape(part) for part in _SEGMENTS.findall(printable(text)))


def _moment(ms: int) -> str:
    """The time as people here read it, to the second."""
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _zone() -> str:
    """The time zone of all times on the pages."""
    now = datetime.now().astimezone()
    offset, name = now.strftime("%z"), now.tzname()
    return "UTC" if name == "UTC" else f"UTC{offset[:3]}:{offset[3:5]} ({name})"


def _span(seconds: float) -> str:
    """How long, in two units at most."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, small, size, parts in (("d", "h", 86_400, 24), ("h", "min", 3_600, 60), ("min", "s", 60, 60)):
        if whole >= size:
            rest = whole % size * parts // size
            return f"{whole // size:,} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
