"""The demonstration that `make run` shows: a building reports, one subscriber listens to a subtree of it."""

from __future__ import annotations
