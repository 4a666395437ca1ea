"""Reference pages generated from the code, so that they cannot say anything else. `make docs` writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from jobs.reference import metrics_page, settings_page, tables_page

DOCS = Path(__file__).parents[2] / "docs"

PAGES: Mapping[Path, Callable[[], str]] = {
    DOCS / "metrics.md": metrics_page.render,
    DOCS / "settings.md": settings_page.render,
    DOCS / "tables.md": tables_page.render,
}
