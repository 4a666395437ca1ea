"""Writes every generated page: python -m jobs.reference, or `make docs`."""

from __future__ import annotations

from jobs.reference import PAGES
from jobs.terminal import say

for target, render in PAGES.items():
    target.write_text(render(), encoding="utf-8")
    say(f"wrote {target}")
