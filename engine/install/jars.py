"""The jars: their list (jars.xml, pinned by jars.sha256), one download, a check at every start.

Each set is in a folder of the cache whose name is the digest of its pinned checksums. A folder is moved to its place
only after all its files are verified, so it is complete or absent, whatever happens during the download; after a change
of the pins another folder is used. The start of the engine resolves nothing and needs no network.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from arborcast.core.progress import Progress, no_progress
from arborcast.engine.embedded.home import free_mb
from arborcast.engine.install import java
from arborcast.engine.install.java import JavaRuntime, java_environ
from arborcast.engine.processes.errors import HomeError, JarError
from arborcast.engine.terminal import print_error

_DOWNLOADING = re.compile(r"^downloading \S*/(?P<jar>[^/\s]+\.jar) ")

_UNRESOLVED = re.compile(r":: (?P<module>\S+#\S+;\S+?): (?P<why>.+)$")

_FAILED = re.compile(r"\[FAILED\s*\]\s+\S+?#\S+?;\S+?!(?P<jar>\S+?\.jar)[^:]*:?\s*(?P<why>.*)$")

_SERVER = re.compile(r"(?P<why>\S*(?:Exception|Error):.*|Server access error.*|Host \S+ not found.*)", re.IGNORECASE)


@dataclass(frozen=True)
class IvyResult:
    """The result of a run of Ivy: `problem` is the reason of a failure, empty for success, and `jar` its jar if
    known."""

    problem: str = ""
    jar: str = ""


def retrieve(
    descriptor: Path, conf: str, into: Path, cache: Path, java: Path, expected: int, progress: Progress
) -> IvyResult:
    """Resolve one configuration of the descriptor and copy its jars into a folder. `cache` is Ivy's own, kept so that
    an interrupted download continues; `progress` gets each jar that is found and then each download, up to
    `expected`."""
    command = [
        str(java),
        *proxy_options(os.environ),
        "-jar",
        str(_ivy_jar()),
        *("-cache", str(cache)),
        *("-ivy", str(descriptor)),
        *("-confs", conf),
        *("-retrieve", f"{into}/[artifact]-[revision].[ext]"),
    ]
    lines: list[str] = []
    downloads = found = 0
    with subprocess.Popen(
        command,
        env=java_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 -- for the type checker: stdout is a pipe
        try:
            for raw in process.stdout:
                line = raw.strip()
                if _DOWNLOADING.match(line):
                    downloads += 1
                    progress(f"downloading the {conf} jars", min(downloads, expected), expected)
                elif line.startswith("found ") and not downloads:
                    found += 1
                    progress(f"finding the {conf} jars", min(found, expected), expected)
                lines.append(line)
        except BaseException:
            process.kill()  # after Ctrl-C nothing continues in the background
            raise
    return diagnose(lines, process.returncode)


def diagnose(lines: list[str], code: int) -> IvyResult:
    for line in lines:
        if "no space left on device" in line.lower():
            return IvyResult("No space left on device")
    why = next((match["why"] for line in lines if (match := _SERVER.search(line))), "")
    for line in lines:
        if match := _FAILED.search(line):
            return IvyResult(match["why"] or why or "the download failed", match["jar"])
    for line in lines:
        if match := _UNRESOLVED.search(line):
            name, _, revision = match["module"].partition("#")[2].partition(";")
            return IvyResult(
                f"{match['module']}: {match['why']}" + (f" ({why})" if why else ""), f"{name}-{revision}.jar"
            )
    if code != 0:
        last = next((line for line in reversed(lines) if line), "")
        return IvyResult(why or last or f"Ivy ended with code {code}")
    return IvyResult()


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Java ignores the proxy variables of the environment; these options have the same effect."""
    options = []
    for scheme in ("http", "https"):
        value = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        if value:
            proxy = urlsplit(value if "//" in value else f"//{value}")
            if proxy.hostname:
                options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
                options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    excluded = environ.get("no_proxy") or environ.get("NO_PROXY")
    if options and excluded:
        hosts = [f"*{host}" if host.startswith(".") else host for host in excluded.replace(" ", "").split(",") if host]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options


def pyspark_folder() -> Path:
    """The folder of the package. Raises JarError."""
    # Not imported: that takes half a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarError("pyspark, whose Ivy fetches the jars, is not installed; run: make setup")
    return Path(spec.origin).parent


def _ivy_jar() -> Path:
    folder = pyspark_folder() / "jars"
    found = sorted(folder.glob("ivy-*.jar"))
    if not found:
        raise JarError(f"there is no ivy-*.jar in {folder}; run: make setup")
    return found[-1]


_DESCRIPTOR, _PINS = (Path(__file__).with_name(name) for name in ("jars.xml", "jars.sha256"))

SETS = ("spark", "broker", "wsdl")

# Space for a fetch, with a margin: all sets twice (Ivy's cache and ours).
_ROOM_MB = 200

_HELP = (
    "If this machine reaches the internet through a proxy, set https_proxy; if it does not reach it at all, copy the "
    "jar folder of another machine here and run: arborcast fetch --from FOLDER"
)

Report = Callable[[str], None]


def default_cache() -> Path:
    """The folder of fetched jars: ARBORCAST_CACHE, else arborcast/ in the user's cache folder."""
    if chosen := os.environ.get("ARBORCAST_CACHE"):
        return Path(chosen).expanduser().absolute()
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user).expanduser().absolute() / "arborcast"


def pins(which: str) -> dict[str, str]:
    """File name -> SHA-256 of every jar in a set."""
    pinned = {}
    for line in _PINS.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        folder, _, file = name.partition("/")
        if folder == which:
            pinned[file] = digest
    return pinned


def folder(which: str, cache: Path | None = None) -> Path:
    """The folder of the set after a fetch."""
    text = "\n".join(f"{digest}  {name}" for name, digest in sorted(pins(which).items()))
    return (cache or default_cache()) / "jars" / f"{which}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def jar_paths(which: str, cache: Path | None = None) -> list[Path]:
    """The jars of a set, each checked against its pin (60 MB take 0.1 s). Raises JarError; never fetches."""
    place = folder(which, cache)
    if not place.is_dir():
        raise JarError(f"the {which} jars have not been fetched into {place.parent}; run: arborcast fetch")
    pinned = pins(which)
    _verify(place, pinned, f"remove {place} and run: arborcast fetch")
    return [place / name for name in sorted(pinned)]


def is_fetched(which: str, cache: Path | None = None) -> bool:
    """Whether the set is complete and unchanged."""
    try:
        jar_paths(which, cache)
    except JarError:
        return False
    return True


def fetch(
    java: Callable[[], JavaRuntime],
    report: Report,
    cache: Path | None = None,
    source: Path | None = None,
    progress: Progress = no_progress,
) -> None:
    """Ensure that all sets are in the cache, from `source` (a folder with jars) or from the network.

    `java` is called only if something must be resolved; `report` gets a line per step. Raises JarError naming the jar,
    HomeError if the cache cannot be written or the disk is full, and the errors of `java`.
    """
    cache = cache or default_cache()
    missing = [which for which in SETS if not is_fetched(which, cache)]
    if not missing:
        report(f"jars: complete, in {cache / 'jars'}")
        return
    with _disk_errors(cache), _locked(cache, report):
        for which in missing:
            if is_fetched(which, cache):
                continue  # fetched by the process that had the lock
            with _draft(cache, which) as draft:
                if source is None:
                    _resolve(which, draft, cache, java(), report, progress)
                else:
                    _copy(which, draft, source, report)
                try:
                    _verify(draft, pins(which), "nothing was kept; try again")
                except JarError:
                    # Ivy would return the same file again, for ever.
                    shutil.rmtree(cache / "ivy", ignore_errors=True)
                    raise
                place = folder(which, cache)
                # The current files have failed their check, under the lock.
                shutil.rmtree(place, ignore_errors=True)
                draft.rename(place)
                report(f"jars: {which} set complete, {len(pins(which))} jars, checksums right")


def _resolve(which: str, draft: Path, cache: Path, java: JavaRuntime, report: Report, progress: Progress) -> None:
    pinned = pins(which)
    report(f"jars: fetching the {which} set, {len(pinned)} jars")
    outcome = retrieve(_DESCRIPTOR, which, draft, cache / "ivy", java.executable, len(pinned), progress)
    if outcome.problem:
        jar = outcome.jar or next((name for name in sorted(pinned) if not (draft / name).exists()), "")
        if "no space left" in outcome.problem.lower():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(draft))
        raise JarError(f"could not fetch {jar or which + ' jars'}: {outcome.problem}. {_HELP}")


def _copy(which: str, draft: Path, source: Path, report: Report) -> None:
    report(f"jars: copying the {which} set from {source}")
    # A copied cache folder, a folder for each set, or one flat folder.
    found = {path.name: path for path in sorted(source.rglob("*.jar"))}
    for name in sorted(pins(which)):
        if name not in found:
            raise JarError(f"{name} is not in {source} nor below it")
        shutil.copyfile(found[name], draft / name)


def _verify(place: Path, pinned: Mapping[str, str], advice: str) -> None:
    present = {path.name for path in place.iterdir()}
    if missing := sorted(pinned.keys() - present):
        raise JarError(f"{missing[0]} is missing in {place}; {advice}")
    if extra := sorted(present - pinned.keys()):
        raise JarError(f"{extra[0]} in {place} is not a pinned jar; {advice}")
    for name, digest in pinned.items():
        with (place / name).open("rb") as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
        if actual != digest:
            raise JarError(
                f"{name} in {place} is not the pinned one: its SHA-256 is {actual}, expected {digest}; {advice}",
            )


@contextlib.contextmanager
def _draft(cache: Path, which: str) -> Iterator[Path]:
    """A temporary folder on the cache's own file system; removed at the end unless it was renamed."""
    draft = Path(tempfile.mkdtemp(prefix=f".{which}-", dir=cache / "jars"))
    draft.chmod(0o755)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def _locked(cache: Path, report: Report) -> Iterator[None]:
    """One fetch at a time: two checkouts may share the cache. The kernel releases the lock of a dead process."""
    (cache / "jars").mkdir(parents=True, exist_ok=True)
    with (cache / "jars" / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("jars: another fetch is in progress, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in (cache / "jars").glob(".*-*"):  # of a killed fetch
            shutil.rmtree(leftover, ignore_errors=True)
        free = free_mb(cache)
        if free < _ROOM_MB:
            raise OSError(errno.ENOSPC, f"only {free} MiB free", str(cache))
        yield


@contextlib.contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"the disk is full ({error.strerror}); fetching needs {_ROOM_MB} MiB"
        else:
            why = error.strerror or str(error)
        raise HomeError(
            f"cannot write to the cache {cache}: {why}. Make room, or set ARBORCAST_CACHE to another folder."
        ) from error


def pinned_lines(which: str, work: Path) -> list[str]:
    """The lines of one set, in the format of sha256sum. Raises JarError for an unavailable jar."""
    into = work / which
    into.mkdir()
    expected = len(pins(which))
    outcome = retrieve(_DESCRIPTOR, which, into, work / "ivy", java.find_java().executable, expected, no_progress)
    if outcome.problem:
        raise JarError(f"could not fetch {outcome.jar or which}: {outcome.problem}")
    return [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {which}/{path.name}" for path in sorted(into.glob("*.jar"))
    ]


def pin() -> None:
    """Write jars.sha256 again after a change of jars.xml: python -m arborcast.engine.install.jars, or `make pins`.

    Downloads everything into an empty cache, so that the pins are those of the current files in the repositories. Read
    the difference before you commit it: a jar that changed without a new version is a reason to stop.
    """
    with tempfile.TemporaryDirectory() as work:
        lines = [line for which in SETS for line in pinned_lines(which, Path(work))]
    _PINS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        pin()
    except JarError as error:
        print_error(error)
        sys.exit(1)
