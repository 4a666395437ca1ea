"""Topic patterns: the normal form of topic expressions, and its grammar."""

from __future__ import annotations
