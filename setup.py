"""A build step beside pyproject.toml: packages contain the commit of their sources (`arborcast --version`).

SOURCE_COMMIT is the commit where git is missing, as in the build of an image.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent


def _write_commit(root: Path) -> None:
    # The path of a build does not contain our packages.
    sys.path.insert(0, str(ROOT / "src"))
    from arborcast.engine.install import version

    commit = os.environ.get("SOURCE_COMMIT") or version.commit(ROOT / "engine" / "install")
    file = root / "arborcast" / "engine" / "install" / version.FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{commit}\n", encoding="ascii")


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout uses git
            _write_commit(Path(self.build_lib))


class ArchiveWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        _write_commit(Path(base_dir, "src"))


class EditableAsPath(editable_wheel):
    """With the package `arborcast` setuptools installs a plain path. Without, an import hook, which editors ignore."""

    def run(self) -> None:
        self.distribution.packages.append("arborcast")
        super().run()


setup(cmdclass={"build_py": BuildWithCommit, "editable_wheel": EditableAsPath, "sdist": ArchiveWithCommit})
