from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores import open_directory
from arborcast.directory.stores.file import FileDirectory


def test_the_kind_that_the_settings_ask_for(tmp_path: Path) -> None:
    assert open_directory(DirectorySettings(kind="none"), tmp_path / "default") is None
    directory = open_directory(DirectorySettings(), tmp_path / "default")
    assert isinstance(directory, FileDirectory)
    assert directory.name == str(tmp_path / "default")
    chosen = open_directory(DirectorySettings(file="elsewhere.ldif"), tmp_path / "default")
    assert chosen is not None
    assert chosen.name == "elsewhere.ldif"
    ldap = open_directory(DirectorySettings(kind="ldap", base_dn="ou=t,dc=x"), tmp_path)
    assert ldap is not None
    assert ldap.name == "ldap://127.0.0.1:389 ou=t,dc=x"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (DirectorySettings(base_dn=""), "base_dn"),
        (DirectorySettings(kind="ldap", base_dn="topics"), "base_dn"),
        (DirectorySettings(kind="ldap", url="http://127.0.0.1"), "url"),
    ],
)
def test_settings_with_which_no_directory_can_be_reached(settings: DirectorySettings, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"directory\.{key}"):
        open_directory(settings, tmp_path)
