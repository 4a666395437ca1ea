"""A separate base on the shared server for each test, and directories that are closed after the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.ldap import LdapDirectory
from tests.support.directory import Open
from tests.support.slapd import SUFFIX, Slapd

_bases = itertools.count()


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens directories and closes them after the test."""
    directories: list[LdapDirectory] = []

    def open_one(settings: DirectorySettings) -> LdapDirectory:
        directories.append(LdapDirectory(settings))
        return directories[-1]

    yield open_one
    for directory in directories:
        directory.close()


@pytest.fixture
def settings(slapd: Slapd) -> DirectorySettings:
    """A base for one test on the shared server."""
    return slapd.settings(base_dn=f"ou=own{os.getpid()}-{next(_bases)},{SUFFIX}")
