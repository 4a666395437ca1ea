"""What pages with a list have beside their filter: the files of the list, and its saved views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request

from arborcast.console.downloads import MEDIA_TYPES, Download
from arborcast.console.guard import principal_of
from arborcast.console.saved_views import SavedView, SavedViews, view_url


class ListTools(NamedTuple):
    """The address of the current view, the saved views of the list, and the addresses of its files by format."""

    url: str
    views: Sequence[SavedView]
    files: Mapping[str, str]


class Lists:
    """All pages with a list, by path."""

    def __init__(self, folder: Path) -> None:
        self.views = SavedViews(folder)
        self._downloads: dict[str, Download | None] = {}

    def add(self, path: str, download: Download | None) -> None:
        self._downloads[path] = download

    def __contains__(self, path: str) -> bool:
        return path in self._downloads

    def tools(self, request: Request) -> ListTools | None:
        """Those of a page; None for one without a list."""
        path = request.url.path
        if path not in self:
            return None
        url, download = view_url(path, request.url.query), self._downloads[path]
        views = [each for each in self.views.of(principal_of(request.scope).name) if each.path == path]
        has_file = download and (not download.needs or request.query_params.get(download.needs))
        sign = "&" if "?" in url else "?"
        return ListTools(url, views, {each: f"{url}{sign}format={each}" for each in MEDIA_TYPES if has_file})
