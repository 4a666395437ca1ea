"""Directories on a real server: opened for a test, filled, and set up in other ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from arborcast.directory.entries.changes import Put
from arborcast.directory.entries.mapping import Listing
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.ldap import LdapDirectory
from tests.support.directory import topic

Open = Callable[..., LdapDirectory]


def fill(directory: LdapDirectory, *paths: str) -> Listing:
    """Write these topics."""
    result = directory.write([Put(topic(path)) for path in paths], directory.load())
    assert result.problems == ()
    return result.listing


def changed(settings: DirectorySettings, **facts: Any) -> DirectorySettings:
    """The settings with other values."""
    return replace(settings, **facts)
