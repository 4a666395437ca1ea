"""Where a real slapd comes from, and that a run without one cannot pass for a run with one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import slapd, slapd_provision
from tests.support.slapd_provision import SlapdUnavailable


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No slapd installed, none in the cache, no Debian to get one from."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    monkeypatch.setenv("ARBORCAST_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_is_where_the_environment_says(bare_machine: Path) -> None:
    assert slapd_provision.cache_directory() == bare_machine / "slapd"


def test_without_a_server_setup_goes_on_and_says_what_will_be_missing(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert slapd_provision.main() == 0
    assert "SKIPPED" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    assert slapd_provision.main() == 1


def test_a_test_that_needs_a_server_is_skipped_aloud(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO SLAPD"):
        slapd.require_slapd()


def test_and_fails_where_the_run_decides_over_a_merge(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NO SLAPD"):
        slapd.require_slapd()


def test_a_half_unpacked_package_is_not_taken_for_a_server(bare_machine: Path) -> None:
    slapd_file = bare_machine / "slapd" / "root" / "usr" / "sbin" / "slapd"
    slapd_file.parent.mkdir(parents=True)
    slapd_file.touch()
    assert slapd_provision.find() is None
    with pytest.raises(SlapdUnavailable):
        slapd_provision.provision(lambda line: None)
