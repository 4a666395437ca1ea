"""The distributions as users get them: built from a copy of the tree, and installed outside of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from tests.support.gateway_process import ROOT

CLIENT_NEEDS = ("lxml", "msgspec", "requests-futures")

# Dependencies of requests-futures.
_BELOW = ("requests", "urllib3", "certifi", "idna", "charset-normalizer")

PACKAGES = (
    "admin",
    "analysis",
    "cli",
    "client",
    "console",
    "core",
    "directory",
    "dispatch",
    "engine",
    "ingest",
    "jobs",
    "topic_model",
    "wire",
)
_MADE = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")


def client_wheel(folder: Path) -> Path:
    """Build `arborcast-client` in a new folder."""
    return _built(_tree(folder / "client-tree") / "client")


def engine_wheel(folder: Path) -> Path:
    """Build `arborcast` in a new folder."""
    return _built(_tree(folder / "engine-tree"))


def _tree(target: Path) -> Path:
    for name in (*PACKAGES, "src"):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=_MADE)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, target)
    return target


def link_client_needs(folder: Path) -> None:
    """Link the client's dependencies of this environment, and nothing else, into `folder`."""
    for name in (*CLIENT_NEEDS, *_BELOW):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            path = Path(str(found.locate_file(top)))
            if path.exists() and not (folder / top).exists():
                (folder / top).symlink_to(path)


def _built(project: Path) -> Path:
    # With this environment's setuptools and no network.
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(project / "dist")]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(project)],
        check=True,
        cwd=project,
        env=without_ours() | {"SOURCE_COMMIT": "0123456789ab"},
    )
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel


def without_ours() -> dict[str, str]:
    """The environment of a process that must not find the packages of this tree, or another engine."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "ARBORCAST_"))}
