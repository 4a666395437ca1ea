"""The sources of a real slapd and a real Chromium; a run without one does not pass for a run with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import chromium, slapd
from tests.support.debian import DebianProgram, Unavailable, provision_main


class Needed(NamedTuple):
    program: DebianProgram
    find: Callable[[], object]
    provision: Callable[[Callable[[str], None]], object]
    require: Callable[[], object]
    file: str


SLAPD = Needed(slapd.SLAPD, slapd.find, slapd.provision, slapd.require_slapd, "usr/sbin/slapd")
CHROMIUM = Needed(
    chromium.CHROMIUM, chromium.find, chromium.provision, chromium.require_chromium, "usr/lib/chromium/chromium"
)


@pytest.fixture(params=[SLAPD, CHROMIUM], ids=["slapd", "chromium"])
def needed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Needed:
    """On a machine without the program, its cache, or Debian's apt."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    monkeypatch.setenv("ARBORCAST_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    found: Needed = request.param
    return found


def test_without_the_program_tests_are_skipped_or_fail(
    needed: Needed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = needed.program.name
    assert needed.program.cache == tmp_path / name, "the path in the environment"
    assert provision_main(name, "some", needed.provision) == 0
    assert f"{name}: some tests will be SKIPPED" in capsys.readouterr().err
    with pytest.raises(pytest.skip.Exception, match=f"NO {name.upper()}"):
        needed.require()
    # With CI=true, as before a merge.
    monkeypatch.setenv("CI", "true")
    assert provision_main(name, "some", needed.provision) == 1
    with pytest.raises(pytest.fail.Exception, match=f"NO {name.upper()}"):
        needed.require()


def test_a_partly_unpacked_package_is_not_used(needed: Needed) -> None:
    file = needed.program.root / needed.file
    file.parent.mkdir(parents=True)
    file.touch()
    assert needed.find() is None
    with pytest.raises(Unavailable):
        needed.provision(lambda line: None)
