"""The distributions: one top-level name, no file in common, and the commit of the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.engine.install import version
from tests.support.gateway_process import ROOT
from tests.support.wheels import PACKAGES, client_wheel, engine_wheel, without_ours

pytestmark = pytest.mark.slow


def test_the_wheels_share_no_file_and_only_the_top_level_name(tmp_path: Path) -> None:
    wheels = [client_wheel(tmp_path), engine_wheel(tmp_path)]
    client, engine = (set(zipfile.ZipFile(wheel).namelist()) for wheel in wheels)
    assert not client & engine
    modules = {f"arborcast/{file.relative_to(ROOT)}" for name in PACKAGES for file in (ROOT / name).rglob("*.py")}
    assert {name for name in client | engine if name.endswith(".py")} == {*modules, "arborcast/__init__.py"}
    assert {name.partition("/")[0] for name in engine} == {"arborcast", "arborcast-0.1.0.dist-info"}
    site = tmp_path / "site"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    assert version.commit(site / "arborcast" / "engine" / "install") == "0123456789ab"
    for name in PACKAGES:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("OTHER = True\n")
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


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=m", "-C", str(folder)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("1")
    for command in (["init"], ["add", "."], ["commit", "-m", "one"], ["tag", "v9"]):
        git(tmp_path, *command)
    return tmp_path


def test_the_command_prints_all_versions_without_imports() -> None:
    code = (
        "import sys; from arborcast.cli import app; app(standalone_mode=False);"
        "print(*sorted({'pyspark', 'delta', 'kafka', 'deltalake'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    first, second, imported = done.stdout.split("\n")[:3]
    assert re.fullmatch(r"arborcast \d+\.\d+\.\d+ \(commit ([0-9a-f]{12}(-dirty)?|unknown)\)", first)
    assert re.fullmatch(r"Spark 4\.\d+\.\d+, Kafka 4\.\d+\.\d+, Delta 4\.\d+\.\d+, Python 3\.\d+\.\d+", second)
    assert imported == ""
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0


def test_the_commit_is_of_the_clone_not_of_an_outer_repository(clone: Path) -> None:
    at = git(clone, "rev-parse", "--short=12", "HEAD")
    assert version.commit(clone / "engine" / "install") == at
    (clone / "file").write_text("2")
    assert version.commit(clone / "engine" / "install") == f"{at}-dirty"
    inside = clone / "venv" / "site-packages"
    inside.mkdir(parents=True)
    assert version.commit(inside / "engine" / "install") == "unknown"


def test_a_source_archive_has_its_commit(tmp_path: Path) -> None:
    """A wheel is built from it elsewhere, without git."""
    source = tmp_path / "source"
    for name in (*PACKAGES, "src"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copyfile(ROOT / name, source / name)
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path / "dist")]
    environment = {"PATH": "/usr/bin:/bin", "SOURCE_COMMIT": "0123456789ab"}
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    assert version.commit(source / "engine" / "install") == "unknown", "the source is unchanged"
    (made,) = (tmp_path / "dist").iterdir()
    shutil.unpack_archive(made, tmp_path / "made", "gztar", filter="data")
    (file,) = (tmp_path / "made").rglob("engine/install/commit.txt")
    assert version.commit(file.parent) == "0123456789ab"
