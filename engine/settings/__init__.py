"""Settings from files, environment and command line, and the parts' configuration derived from them."""

from __future__ import annotations
