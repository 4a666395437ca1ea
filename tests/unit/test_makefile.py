"""What `make run` installs into a fresh clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.gateway_process import ROOT


def commands(folder: Path, target: str) -> str:
    """What make would run in a clone without an environment."""
    for name in ("Makefile", "pyproject.toml", "client/pyproject.toml", "constraints.txt", "deploy/job.lock"):
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place)
    make = ["make", "--no-print-directory", "-n", target]
    return subprocess.run(make, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout


def test_run_installs_only_what_running_needs(tmp_path: Path) -> None:
    said = commands(tmp_path, "run")
    assert "deploy/job.lock" in said
    for tools in ("requirements.lock", "notebook", "extras=dev", "slapd", "chromium"):
        assert tools not in said


def test_java_is_looked_for_before_any_package_is_installed(tmp_path: Path) -> None:
    (found,) = re.findall(r"! (\w+=\S+)? ?\S+/python (-m arborcast\.engine\.install\.java)", commands(tmp_path, "run"))
    variable, module = found
    environ = {**os.environ, **dict([variable.split("=")] if variable else [])}
    ended = subprocess.run(
        [sys.executable, "-S", *module.split()], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.startswith("Java ")
