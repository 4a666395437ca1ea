"""Find OpenLDAP's slapd, or unpack Debian's package into the cache; `python -m tests.support.slapd_provision`.

No root, no system service, nothing installed: `apt-get download` and `dpkg -x` into a directory of ours. The second run
finds everything there and needs no network. Where neither works, the tests that need a server say so in the summary
of the run (and fail where CI=true).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MODULES = ("back_mdb", "syncprov")

# Debian's slapd also carries back-ends for Perl and SQL, whose libraries are large and of no use to us.
_NEVER = re.compile(r"^(libc6|libperl.*|libodbc.*|.*-perl|perl.*)$")
_MAX_ROUNDS = 4  # libwrap0 -> libnsl2 -> libtirpc3 is the longest chain seen


@dataclass(frozen=True)
class SlapdInstall:
    """Where the parts of one slapd are. `libraries` is for LD_LIBRARY_PATH, empty for a system-wide one."""

    slapd: Path
    modules: Path | None
    schema: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment to start it in."""
        environment = dict(os.environ)
        if self.libraries:
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, self.libraries))
        return environment


class SlapdUnavailable(Exception):
    """There is no slapd here and we cannot get one. The message says why and what to do."""


def cache_directory() -> Path:
    """Where the unpacked package lives: below ARBORCAST_CACHE, by default ~/.cache/arborcast."""
    root = os.environ.get("ARBORCAST_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "arborcast") / "slapd"


def find() -> SlapdInstall | None:
    """A slapd that starts: the system's, else the one in the cache. No network."""
    return _system() or _unpacked(cache_directory() / "root")


def provision(say: Callable[[str], None] = print) -> SlapdInstall:
    """`find`, else download and unpack. Raises SlapdUnavailable."""
    found = find()
    if found is not None:
        say(f"slapd: {found.slapd}")
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise SlapdUnavailable("slapd is not on the PATH and this is not Debian or Ubuntu: install OpenLDAP's server")
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpack-") as scratch:
        root = Path(scratch) / "root"
        _download_and_unpack(Path(scratch), root, say)
        target = cache / "root"
        shutil.rmtree(target, ignore_errors=True)
        root.rename(target)
    found = _unpacked(cache / "root")
    if found is None:
        raise SlapdUnavailable(f"slapd was unpacked into {cache} but does not start there")
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
    slapd = root / "usr/sbin/slapd"
    modules = root / "usr/lib/ldap"
    if not slapd.exists() or not _has_modules(modules):
        return None
    libraries = tuple(sorted({p.parent for p in root.glob("**/*.so.*") if p.parent != modules}))
    install = SlapdInstall(slapd, modules, root / "etc/ldap/schema", libraries)
    return None if _missing_libraries(install) else install


def _has_modules(directory: Path) -> bool:
    return all(any(directory.glob(f"{name}.*")) for name in MODULES)


def _missing_libraries(install: SlapdInstall) -> set[str]:
    """Names of shared libraries that the loader would not find."""
    binaries = [install.slapd]
    if install.modules is not None:
        binaries += [p for name in MODULES for p in install.modules.glob(f"{name}*.so*") if not p.is_symlink()]
    result = subprocess.run(
        ["/usr/bin/ldd", *map(str, binaries)], env=install.environment(), capture_output=True, text=True, check=False
    )
    return set(re.findall(r"^\s*(\S+) => not found", result.stdout, re.MULTILINE))


def _download_and_unpack(scratch: Path, root: Path, say: Callable[[str], None]) -> None:
    options = _apt_options(scratch, say)
    wanted, done = ["slapd"], {"slapd"}
    for _ in range(_MAX_ROUNDS):
        for package in wanted:
            say(f"slapd: downloading Debian package {package}")
            _run(["apt-get", *options, "download", package], scratch)
        for archive in sorted(scratch.glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(root)], scratch)
            archive.unlink()
        libraries = tuple(sorted({p.parent for p in root.glob("**/*.so.*")}))
        probe = SlapdInstall(root / "usr/sbin/slapd", root / "usr/lib/ldap", root / "etc/ldap/schema", libraries)
        missing = _missing_libraries(probe)
        if not missing:
            return
        wanted = [p for p in _libraries_of(wanted, options, scratch) if p not in done and not _installed(p)]
        done.update(wanted)
        if not wanted:
            raise SlapdUnavailable(f"slapd needs shared libraries that no package provides: {sorted(missing)}")
    raise SlapdUnavailable("slapd's shared libraries depend on too many others: install slapd with your package tool")


def _apt_options(scratch: Path, say: Callable[[str], None]) -> list[str]:
    """Options under which apt-get knows slapd, with package lists of our own where the machine has none."""
    if "Candidate: " in _run(["apt-cache", "policy", "slapd"], scratch):
        return []
    say("slapd: reading Debian's package lists")
    if os.geteuid() == 0:
        _run(["apt-get", "update", "-q"], scratch)
        return []
    state = scratch / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True)
    options = ["-o", f"Dir::State::lists={state}/lists", "-o", f"Dir::Cache={state}/cache"]
    _run(["apt-get", *options, "update", "-q"], scratch)
    return options


def _libraries_of(packages: Iterable[str], options: Sequence[str], scratch: Path) -> list[str]:
    output = _run(["apt-cache", *options, "depends", "--important", *packages], scratch)
    names = re.findall(r"^\s*\|?(?:Pre)?Depends: (lib[\w.+-]+)$", output, re.MULTILINE)
    return sorted({name for name in names if not _NEVER.match(name)})


def _installed(package: str) -> bool:
    result = subprocess.run(
        ["/usr/bin/dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package], capture_output=True, text=True, check=False
    )
    return result.stdout.startswith("ii")


def _run(command: Sequence[str], directory: Path) -> str:
    try:
        result = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlapdUnavailable(f"{' '.join(command)}: {error}") from error
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise SlapdUnavailable(f"{' '.join(command[:3])} failed: {lines[-1] if lines else result.returncode}")
    return result.stdout


def main() -> int:
    """For `make setup`: exit code 0 even without a server, since nothing but tests needs one; 1 where CI=true."""
    try:
        provision(lambda line: print(line, flush=True))
    except SlapdUnavailable as error:
        print(f"slapd: NOT AVAILABLE. {error}.", file=sys.stderr)
        print("slapd: the LDAP tests will be SKIPPED (pytest's summary counts them).", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
