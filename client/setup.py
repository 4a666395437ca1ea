"""Writes the package before it is built: its source is the engine's client (see engine/install/client_package.py)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# An archive of sources has the package in it, and no tree around it.
if (ROOT / "jobs" / "install" / "client_package.py").is_file():
    sys.path.insert(0, str(ROOT / "src"))
    from arborcast.engine.install.client_package import write

    write(ROOT / "src", HERE)
    shutil.rmtree(HERE / "build", ignore_errors=True)  # setuptools would go on packing modules that are gone

setup()
