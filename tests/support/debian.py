"""Debian programs for tests, unpacked into the cache if they are not installed.

No root, no system service, nothing installed: `apt-get download` and `dpkg -x` into the cache directory. The second run
uses it without a network. If the download fails, the tests that need the program are skipped with a line in the summary
of the run (or fail with CI=true).
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
from typing import NoReturn, TypeVar

import pytest

Found = TypeVar("Found")


class Unavailable(Exception):
    """The program is not installed and cannot be unpacked. The message has the reason and the remedy."""


@dataclass(frozen=True)
class DebianProgram:
    """`packages` contain it; `binaries` are the files whose shared libraries are needed, too. Packages that
    `never` matches are not unpacked; dependencies of libraries are followed `rounds` times."""

    name: str
    packages: tuple[str, ...]
    binaries: Callable[[Path], list[Path]]
    never: re.Pattern[str]
    rounds: int

    @property
    def cache(self) -> Path:
        """The folder of the unpacked program: below ARBORCAST_CACHE, by default ~/.cache/arborcast."""
        root = os.environ.get("ARBORCAST_CACHE")
        return (Path(root) if root else Path.home() / ".cache" / "arborcast") / self.name

    @property
    def root(self) -> Path:
        return self.cache / "root"

    def libraries(self, root: Path) -> tuple[Path, ...]:
        """The value of LD_LIBRARY_PATH."""
        return tuple(sorted({found.parent for found in root.glob("**/*.so*")}))

    def starts(self, root: Path) -> bool:
        """Whether it is unpacked with all shared libraries that the loader needs."""
        return bool(self.binaries(root)) and self.missing(root) == set()

    def missing(self, root: Path) -> set[str] | None:
        """Names of missing shared libraries; None when a file is no program."""
        result = subprocess.run(
            ["/usr/bin/ldd", *map(str, self.binaries(root))],
            env=environment(self.libraries(root)),
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            return None
        return set(re.findall(r"^\s*(\S+) => not found", result.stdout, re.MULTILINE))

    def unpack(self, say: Callable[[str], None]) -> Path:
        """Download and unpack it; returns the folder. Raises Unavailable."""
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise Unavailable(
                f"{self.name} is not on the PATH and this is not Debian or Ubuntu: install it with your package tool"
            )
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache, prefix="unpack-") as scratch:
            root = Path(scratch) / "root"
            self._download_and_unpack(Path(scratch), root, say)
            shutil.rmtree(self.root, ignore_errors=True)
            root.rename(self.root)
        if not self.starts(self.root):
            raise Unavailable(f"{self.name} was unpacked into {self.cache} but does not start there")
        return self.root

    def _download_and_unpack(self, scratch: Path, root: Path, say: Callable[[str], None]) -> None:
        options = _apt_options(self.packages[0], scratch, say)
        wanted, done = list(self.packages), set(self.packages)
        for _ in range(self.rounds):
            say(f"{self.name}: downloading Debian's {', '.join(wanted)}")
            _run(["apt-get", *options, "download", *wanted], scratch)
            for archive in sorted(scratch.glob("*.deb")):
                _run(["dpkg", "-x", str(archive), str(root)], scratch)
                archive.unlink()
            missing = self.missing(root)
            if missing is None:
                raise Unavailable(f"{self.name}: Debian's packages {', '.join(self.packages)} do not have it")
            if not missing:
                return
            libraries = _libraries_of(wanted, options, scratch)
            wanted = [name for name in libraries if not (name in done or self.never.match(name) or _installed(name))]
            done.update(wanted)
            if not wanted:
                raise Unavailable(f"{self.name} needs shared libraries that no package provides: {sorted(missing)}")
        raise Unavailable(
            f"{self.name}'s shared libraries depend on too many others: install it with your package tool"
        )


def environment(libraries: Iterable[Path]) -> dict[str, str]:
    """The environment to start the program in; `libraries` is empty for a system program."""
    path = os.pathsep.join(map(str, libraries))
    return {**os.environ, "LD_LIBRARY_PATH": path} if path else dict(os.environ)


def refuse(reason: str) -> NoReturn:
    """Skip the test with a line in the summary; fail the run with CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def required(provision: Callable[[Callable[[str], None]], Found], missed: str) -> Found:
    """The result of `provision`; without it the test is skipped with a line in the summary, or fails with CI=true."""
    try:
        return provision(lambda line: None)
    except Unavailable as error:
        refuse(f"{missed}: {error} (try: make setup)")


def provision_main(name: str, whose: str, provision: Callable[[Callable[[str], None]], object]) -> int:
    """For `make setup`: exit code 0 even without the program, which only tests need; 1 with CI=true."""
    try:
        provision(lambda line: print(line, flush=True))
    except Unavailable as error:
        print(f"{name}: NOT AVAILABLE. {error}.", file=sys.stderr)
        print(f"{name}: {whose} tests will be SKIPPED (pytest's summary counts them).", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    return 0


def _apt_options(package: str, scratch: Path, say: Callable[[str], None]) -> list[str]:
    """Options with which apt-get finds the package, with downloaded package lists if the machine has none."""
    if "Candidate: " in _run(["apt-cache", "policy", package], scratch):
        return []
    say(f"{package}: reading Debian's package lists")
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
    return sorted(set(re.findall(r"^\s*\|?(?:Pre)?Depends: (lib[\w.+-]+)$", output, re.MULTILINE)))


def _installed(package: str) -> bool:
    result = subprocess.run(
        ["/usr/bin/dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package], capture_output=True, text=True, check=False
    )
    return result.stdout.startswith("ii")


def _run(command: Sequence[str], directory: Path) -> str:
    try:
        result = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)}: {error}") from error
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command[:3])} failed: {lines[-1] if lines else result.returncode}")
    return result.stdout
