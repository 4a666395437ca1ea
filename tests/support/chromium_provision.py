"""Find Chromium, or unpack Debian's package into the cache; `python -m tests.support.chromium_provision`.

Playwright's own download is not used: it comes from a host that not every machine reaches, and Debian's is as good.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import debian
from tests.support.debian import DebianProgram, provision_main

_NAMES = ("chromium", "chromium-browser", "google-chrome")

CHROMIUM = DebianProgram(
    "chromium",
    # Without a font there is no text, and so no size of anything; Playwright's driver needs libatomic.
    ("chromium", "chromium-common", "fonts-dejavu-core", "libatomic1"),
    lambda root: [root / "usr/lib/chromium/chromium"],
    never=re.compile(r"^(libc6|.*-perl|perl.*)$"),
    rounds=8,
)

_FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/fonts</cachedir></fontconfig>
"""


@dataclass(frozen=True)
class ChromiumInstall:
    """The program, and the environment to start it in."""

    executable: Path
    environment: dict[str, str] = field(default_factory=dict)


def find() -> ChromiumInstall | None:
    """One that starts: the system's, else the one in the cache. No network."""
    executable = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if executable is not None:
        return ChromiumInstall(Path(executable), debian.environment(()))
    return _at(CHROMIUM.root) if CHROMIUM.starts(CHROMIUM.root) else None


def provision(say: Callable[[str], None] = print) -> ChromiumInstall:
    """`find`, else download and unpack. Raises Unavailable."""
    found = find() or _at(CHROMIUM.unpack(say))
    say(f"chromium: {found.executable}")
    return found


def _at(root: Path) -> ChromiumInstall:
    fonts = root / "fonts.conf"
    if not fonts.exists():
        fonts.write_text(_FONTS.format(root=root))
    environment = {**debian.environment(CHROMIUM.libraries(root)), "FONTCONFIG_FILE": str(fonts)}
    return ChromiumInstall(root / "usr/lib/chromium/chromium", environment)


if __name__ == "__main__":
    sys.exit(provision_main("chromium", "the browser", provision))
