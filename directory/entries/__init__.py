"""Entries of a directory and their mapping to topics: names, LDIF, changes. Pure."""

from __future__ import annotations
