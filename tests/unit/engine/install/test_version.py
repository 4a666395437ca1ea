"""What `arborcast --version` says, and where it has it from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.engine.install import version
from tests.support.wheels import PACKAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "src", *PACKAGES)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=m", "-C", str(folder)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("1")
    for command in (["init"], ["add", "."], ["commit", "-m", "one"], ["tag", "v9"]):
        git(tmp_path, *command)
    return tmp_path


def test_the_command_says_all_versions_and_imports_none_of_it() -> None:
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


def test_a_clone_is_asked_and_says_whether_it_was_changed(clone: Path) -> None:
    at = git(clone, "rev-parse", "--short=12", "HEAD")
    assert version.commit(clone / "engine" / "install") == at
    (clone / "file").write_text("2")
    assert version.commit(clone / "engine" / "install") == f"{at}-dirty"


def test_somebody_elses_repository_is_not_asked(clone: Path) -> None:
    inside = clone / "venv" / "site-packages"
    inside.mkdir(parents=True)
    assert version.commit(inside / "engine" / "install") == "unknown"


@pytest.mark.parametrize("way", ["sdist", "bdist_wheel"])
def test_what_is_built_knows_the_commit_it_was_built_of(tmp_path: Path, way: str) -> None:
    """The archive is what a wheel is made of elsewhere, where there is no git."""
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True)
        else:
            shutil.copyfile(ROOT / name, source / name)
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", way, "--dist-dir", str(tmp_path / "dist")]
    environment = {"PATH": "/usr/bin:/bin", "SOURCE_COMMIT": "0123456789ab"}
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    assert version.commit(source / "engine" / "install") == "unknown", "the source stays as it is"
    (made,) = (tmp_path / "dist").iterdir()
    shutil.unpack_archive(made, tmp_path / "made", "zip" if zipfile.is_zipfile(made) else "gztar")
    (file,) = (tmp_path / "made").rglob("engine/install/commit.txt")
    assert file.read_text() == "0123456789ab\n"
    assert version.commit(file.parent) == "0123456789ab"
