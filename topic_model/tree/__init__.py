"""The topic tree: a fold of the control log, as elements, and the changes that are planned on it."""

from __future__ import annotations
