"""The engine's wheel has one top-level name, and works beside a package that has folders of the names of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.wheels import PACKAGES, engine_wheel, without_ours

pytestmark = pytest.mark.slow


def test_the_wheel_works_beside_packages_with_the_names_of_its_folders(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in PACKAGES:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("OTHER = True\n")
    with zipfile.ZipFile(engine_wheel(tmp_path)) as wheel:
        assert {name.partition("/")[0] for name in wheel.namelist()} == {"arborcast", "arborcast-0.1.0.dist-info"}
        wheel.extractall(site)

    code = (
        f"import {', '.join(PACKAGES)}, arborcast.cli, arborcast.dispatch.hot.sink\n"
        f"assert all(each.OTHER for each in ({', '.join(PACKAGES)}))\n"
        "print(arborcast.cli.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=without_ours() | {"PYTHONPATH": os.pathsep.join((str(site), sysconfig.get_path("purelib")))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "arborcast" / "cli" / "__init__.py")
