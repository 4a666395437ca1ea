"""A Python with all dependencies of Arborcast, but without Arborcast: as on the hosts of a cluster."""

from __future__ import annotations

import site
import venv
from pathlib import Path


def bare_python(folder: Path) -> Path:
    """Create one in `folder`; returns its executable."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Python reads no .pth files in a folder that is itself named by one: that of an editable installation has no
    # effect.
    (packages / "packages.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "python"
