"""Running the Ivy that ships inside pyspark, and reading what it says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from jobs.install.java import java_environ
from jobs.processes.errors import JarError

_DOWNLOADING = re.compile(r"^downloading \S*/(?P<jar>[^/\s]+\.jar) ")
_UNRESOLVED = re.compile(r":: (?P<module>\S+#\S+;\S+?): (?P<why>.+)$")
_FAILED = re.compile(r"\[FAILED\s*\]\s+\S+?#\S+?;\S+?!(?P<jar>\S+?\.jar)[^:]*:?\s*(?P<why>.*)$")
_SERVER = re.compile(r"(?P<why>\S*(?:Exception|Error):.*|Server access error.*|Host \S+ not found.*)", re.IGNORECASE)

# Finding out what the broker depends on takes half a minute in which nothing is downloaded: say so meanwhile.
_QUIET_S = 2.0


@dataclass(frozen=True)
class IvyResult:
    """How a run of Ivy went: `problem` is empty when all is there, else says why, and `jar` of which, if known."""

    problem: str = ""
    jar: str = ""


def retrieve(
    descriptor: Path, conf: str, into: Path, cache: Path, java: Path, expected: int, report: Callable[[str], None]
) -> IvyResult:
    """Resolves one configuration of the descriptor and copies its jars into a folder.

    `cache` is Ivy's own, kept so that an interrupted fetch goes on where it was; `report` gets a line per download,
    numbered up to `expected`.
    """
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
    said = time.monotonic()
    with subprocess.Popen(
        command,
        env=java_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 -- for the type checker: we asked for a pipe
        try:
            for raw in process.stdout:
                line = raw.strip()
                if match := _DOWNLOADING.match(line):
                    downloads += 1
                    report(f"  {min(downloads, expected)}/{expected}  {match['jar']}")
                elif line.startswith("found "):
                    found += 1
                    if time.monotonic() - said > _QUIET_S:
                        report(f"  found {found}/{expected} so far")
                        said = time.monotonic()
                lines.append(line)
        except BaseException:
            process.kill()  # Ctrl-C: nothing goes on in the background
            raise
    return diagnose(lines, process.returncode)


def diagnose(lines: list[str], code: int) -> IvyResult:
    """What Ivy's output says about how it went."""
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
    """Java ignores the proxy variables that every other tool here reads; these options say the same to it."""
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


def _ivy_jar() -> Path:
    # Not imported: pyspark takes half a second and we only want its folder.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarError("pyspark is not installed, and with it the Ivy that fetches jars; run: make setup")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarError(f"there is no ivy-*.jar in {Path(spec.origin).parent / 'jars'}; run: make setup", "ivy")
    return found[-1]
