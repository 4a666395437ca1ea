"""Topic patterns: the normal form that every topic expression compiles to, and its grammar."""

from __future__ import annotations
