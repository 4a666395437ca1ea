"""The topic tree: a fold over the control log, its XML form, and plans of changes."""

from __future__ import annotations
