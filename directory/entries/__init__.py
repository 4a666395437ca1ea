"""Entries of a directory and the topics that they stand for: names, LDIF, the mapping in both directions. Pure."""

from __future__ import annotations
