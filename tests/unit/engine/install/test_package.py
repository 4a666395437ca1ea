"""The wheels have one top-level name and no file in common, and work beside packages with the names of our folders."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.gateway_process import ROOT
from tests.support.wheels import PACKAGES, client_wheel, engine_wheel, without_ours

pytestmark = pytest.mark.slow


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return [client_wheel(folder), engine_wheel(folder)]


def test_each_file_is_in_one_of_the_wheels(wheels: list[Path]) -> None:
    client, engine = map(files_of, wheels)
    assert not client & engine
    modules = {f"arborcast/{file.relative_to(ROOT)}" for name in PACKAGES for file in (ROOT / name).rglob("*.py")}
    assert {name for name in client | engine if name.endswith(".py")} == {*modules, "arborcast/__init__.py"}
    assert {name.partition("/")[0] for name in engine} == {"arborcast", "arborcast-0.1.0.dist-info"}


def test_the_wheels_work_beside_packages_with_the_names_of_their_folders(wheels: list[Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in PACKAGES:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("OTHER = True\n")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)

    code = (
        f"import {', '.join(PACKAGES)}, arborcast.cli, arborcast.dispatch.hot.sink\n"
        f"assert all(each.OTHER for each in ({', '.join(PACKAGES)}))\n"
        "from arborcast import tables\n"
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
