"""The screens. Each has a `SCREEN`: its name, its title, where it begins, and its routes; `app` lists them."""

from __future__ import annotations
