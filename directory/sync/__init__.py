"""The two-way synchronisation of the topic tree with its directory, in a thread; problems are listed in a file."""

from __future__ import annotations
