"""The output of `arborcast --version`: our version, the commit, and the versions of the main dependencies.

None of them is imported. setup.py uses this file too, so it needs only the standard library.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

UNKNOWN = "unknown"

FILE = "commit.txt"
"""Written beside this file when a package of Arborcast is built: an installation has no git."""

_HERE = Path(__file__).parent

_GIT_S = 5.0


def lines() -> list[str]:
    """For people; the first line has the usual form of other programs."""
    kafka, delta = _pinned("broker", "kafka_"), _pinned("spark", "delta-spark_")
    return [
        f"arborcast {installed('arborcast')} (commit {commit(_HERE)})",
        f"Spark {installed('pyspark')}, Kafka {kafka}, Delta {delta}, Python {platform.python_version()}",
    ]


def commit(here: Path) -> str:
    """The commit of the code whose `engine/install` is `here`, with `-dirty` if files were changed since."""
    try:
        return (here / FILE).read_text(encoding="ascii").strip() or UNKNOWN
    except (OSError, UnicodeDecodeError):
        # In a clone the package is a link to the folder at the top.
        return _commit_from_git(here.resolve().parents[1])


def _commit_from_git(root: Path) -> str:
    git = shutil.which("git")
    # Only of a clone of Arborcast: a virtual environment may be inside another repository.
    if git is None or not (root / ".git").exists():
        return UNKNOWN
    try:
        done = subprocess.run(
            [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            # It must write nothing: the clone may belong to another user, or be in use.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip() if done.returncode == 0 else UNKNOWN


def installed(package: str) -> str:
    """The version of a package, UNKNOWN if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _pinned(which: str, start: str) -> str:
    """The version in the name of a jar: `kafka_2.13-4.3.1.jar` is 4.3.1."""
    from arborcast.engine.install.jars import pins

    name = next((each for each in pins(which) if each.startswith(start)), "")
    return name.removesuffix(".jar").rpartition("-")[2] or UNKNOWN
