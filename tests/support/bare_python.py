"""A Python with all packages that Arborcast needs, and without Arborcast: what the hosts of a cluster have."""

from __future__ import annotations

import site
import venv
from pathlib import Path


def bare_python(folder: Path) -> Path:
    """Make one in `folder`; its executable."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder that a .pth file names is searched for packages, but not for further .pth files: that of an editable
    # installation has no effect.
    (packages / "packages.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "python"
