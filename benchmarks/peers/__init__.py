"""Arborcast and other systems in one run, with the same publishers, receivers and checks.

peers   the program
others  the other systems, as processes; their jars, pinned in jars.xml and jars.sha256
"""

from __future__ import annotations
