"""Find OpenLDAP's slapd, or unpack Debian's package into the cache; `python -m tests.support.slapd_provision`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support import debian
from tests.support.debian import DebianProgram, provision_main

MODULES = ("back_mdb", "syncprov")


def _binaries(root: Path) -> list[Path]:
    modules = root / "usr/lib/ldap"
    if not _has_modules(modules):
        return []
    files = (file for name in MODULES for file in modules.glob(f"{name}*.so*"))
    return [root / "usr/sbin/slapd", *(file for file in files if not file.is_symlink())]


def _has_modules(directory: Path) -> bool:
    return all(any(directory.glob(f"{name}.*")) for name in MODULES)


SLAPD = DebianProgram(
    "slapd",
    ("slapd",),
    _binaries,
    # Debian's slapd also carries back-ends for Perl and SQL, whose libraries are large and of no use to us.
    never=re.compile(r"^(libc6|libperl.*|libodbc.*|.*-perl|perl.*)$"),
    rounds=4,  # libwrap0 -> libnsl2 -> libtirpc3 is the longest chain seen
)


@dataclass(frozen=True)
class SlapdInstall:
    """Where the parts of one slapd are. `libraries` is for LD_LIBRARY_PATH, empty for a system-wide one."""

    slapd: Path
    modules: Path | None
    schema: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment to start it in."""
        return debian.environment(self.libraries)


def find() -> SlapdInstall | None:
    """A slapd that starts: the system's, else the one in the cache. No network."""
    return _system() or _unpacked(SLAPD.root)


def provision(say: Callable[[str], None] = print) -> SlapdInstall:
    """`find`, else download and unpack. Raises Unavailable."""
    found = find() or _at(SLAPD.unpack(say))
    say(f"slapd: {found.slapd}")
    return found


def _system() -> SlapdInstall | None:
    slapd = shutil.which("slapd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/libexec"]))
    if slapd is None:
        return None
    schema = next((p for p in map(Path, ("/etc/ldap/schema", "/etc/openldap/schema")) if p.is_dir()), None)
    if schema is None:
        return None
    candidates = [Path("/usr/lib/ldap"), Path("/usr/lib64/openldap"), Path("/usr/lib/openldap")]
    modules = next((p for p in candidates if _has_modules(p)), None)
    return SlapdInstall(Path(slapd), modules, schema)


def _unpacked(root: Path) -> SlapdInstall | None:
    return _at(root) if SLAPD.starts(root) else None


def _at(root: Path) -> SlapdInstall:
    return SlapdInstall(root / "usr/sbin/slapd", root / "usr/lib/ldap", root / "etc/ldap/schema", SLAPD.libraries(root))


if __name__ == "__main__":
    sys.exit(provision_main("slapd", "the LDAP", provision))
