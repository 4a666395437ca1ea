"""Where a real slapd and a real Chromium come from, and that a run without one cannot pass for a run with one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import chromium, chromium_provision, slapd, slapd_provision
from tests.support.debian import DebianProgram, Unavailable, provision_main


class Needed(NamedTuple):
    program: DebianProgram
    find: Callable[[], object]
    provision: Callable[[Callable[[str], None]], object]
    require: Callable[[], object]
    file: str


SLAPD = Needed(
    slapd_provision.SLAPD, slapd_provision.find, slapd_provision.provision, slapd.require_slapd, "usr/sbin/slapd"
)
CHROMIUM = Needed(
    chromium_provision.CHROMIUM,
    chromium_provision.find,
    chromium_provision.provision,
    chromium.require_chromium,
    "usr/lib/chromium/chromium",
)


@pytest.fixture(params=[SLAPD, CHROMIUM], ids=["slapd", "chromium"])
def needed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Needed:
    """On a machine where it is not installed, nor in the cache, and which is no Debian to get it from."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    monkeypatch.setenv("ARBORCAST_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    found: Needed = request.param
    return found


def test_the_cache_is_where_the_environment_says(needed: Needed, tmp_path: Path) -> None:
    assert needed.program.cache == tmp_path / needed.program.name


def test_without_it_setup_goes_on_and_says_what_will_be_missing(
    needed: Needed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = needed.program.name
    assert provision_main(name, "some", needed.provision) == 0
    assert f"{name}: some tests will be SKIPPED" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    assert provision_main(name, "some", needed.provision) == 1


def test_a_test_that_needs_it_is_skipped_aloud(needed: Needed) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"NO {needed.program.name.upper()}"):
        needed.require()


def test_and_fails_where_the_run_decides_over_a_merge(needed: Needed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"NO {needed.program.name.upper()}"):
        needed.require()


def test_a_half_unpacked_package_is_not_taken_for_it(needed: Needed) -> None:
    file = needed.program.root / needed.file
    file.parent.mkdir(parents=True)
    file.touch()
    assert needed.find() is None
    with pytest.raises(Unavailable):
        needed.provision(lambda line: None)
