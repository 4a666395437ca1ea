"""Results as they are kept in docs/benchmarks/results: one small JSON file for each part of the page.

A file says what was run, when, of which commit, on what, beside how much other work, and what came out; a part that
failed keeps the figures of before and says that it failed since.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from arborcast.engine.install import java
from arborcast.engine.processes.errors import StackError

ROOT = Path(__file__).parents[2]

Cell = str | int | float | None
Row = Mapping[str, Cell]

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "kafka-python", "pycurl", "lxml", "uvicorn", "uvloop", "msgspec")


@dataclass(frozen=True)
class Table:
    """One table of a benchmark."""

    title: str
    rows: list[dict[str, Cell]]
    note: str = ""


@dataclass(frozen=True)
class Result:
    """What one part of the page has measured."""

    part: str
    command: str
    quick: bool
    date: str
    commit: str
    machine: dict[str, str]
    versions: dict[str, str]
    load_before: float
    load_after: float
    seconds: float
    tables: list[Table] = field(default_factory=list)
    failure: str = ""

    def rows(self, title: str) -> list[dict[str, Cell]]:
        """The rows of the first table whose title begins so; none when there is no such table."""
        return next((table.rows for table in self.tables if table.title.startswith(title)), [])

    def find(self, title: str, column: str, **wanted: Cell) -> float | None:
        """The number in the first row of that table with these cells (`_` stands for a blank in a column's name)."""
        for row in self.rows(title):
            if all(row.get(name.replace("_", " ")) == value for name, value in wanted.items()):
                value = row.get(column)
                return float(value) if isinstance(value, int | float) else None
        return None


def save(folder: Path, result: Result) -> None:
    """Write the file of this part, and no other."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (folder / f"{result.part}.json").write_text(_rows_on_lines(text) + "\n", encoding="utf-8")


def load(folder: Path) -> dict[str, Result]:
    """All results in the folder, by part."""
    return {file.stem: read(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def read(text: str) -> Result:
    """One result from its file's text."""
    found = json.loads(text)
    tables = [Table(each["title"], each["rows"], each.get("note", "")) for each in found.pop("tables")]
    return Result(**found, tables=tables)


def tables_of(figures: Any, title: str) -> list[Table]:
    """Tables from what a benchmark's --json says: those of the harness, or plain lists and objects of numbers."""
    if isinstance(figures, dict) and "tables" in figures:
        return [Table(each["title"], _rounded(each["rows"]), each.get("note", "")) for each in figures["tables"]]
    if isinstance(figures, dict) and figures and all(_is_report(each) for each in figures.values()):
        return [table for each in figures.values() for table in tables_of(each, title)]
    if isinstance(figures, list) and all(isinstance(each, dict) and not _is_report(each) for each in figures):
        return [Table(title, _rounded(figures))]
    if isinstance(figures, list):
        return [table for each in figures for table in tables_of(each, title)]
    return list(_tables_of_object(figures, title))


def _is_report(figures: Any) -> bool:
    return isinstance(figures, dict) and "tables" in figures


def _tables_of_object(figures: Mapping[str, Any], title: str) -> Iterator[Table]:
    plain = {key: value for key, value in figures.items() if not isinstance(value, dict | list)}
    if plain:
        yield Table(title, _rounded([plain]))
    for key, value in figures.items():
        if isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
            yield Table(f"{title}: {key}", _rounded([{"what": name, **each} for name, each in value.items()]))
        elif isinstance(value, dict):
            yield Table(f"{title}: {key}", _rounded([value]))
        elif isinstance(value, list):
            rows = [each if isinstance(each, dict) else {key: each} for each in value]
            yield Table(f"{title}: {key}", _rounded(rows))


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Cell]]:
    # Four digits: more would only make noise look like knowledge, and differences in the repository larger.
    return [{name: float(f"{cell:.4g}") if isinstance(cell, float) else cell for name, cell in r.items()} for r in rows]


def _rows_on_lines(text: str) -> str:
    """A row of a table on a line of its own: a file that people can read and compare."""
    return re.sub(r"\{\n\s+([^{}\[\]]*?)\n\s+\}", lambda m: "{" + re.sub(r"\n\s+", " ", m[1]) + "}", text)


def now() -> str:
    """Date and time of a run, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def commit() -> str:
    """Which commit was measured; `+` when files under version control differ from it."""
    named = _git("rev-parse", "--short=12", "HEAD")
    return named + ("+" if named and _git("status", "--porcelain", "--untracked-files=no") else "")


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)):
        model = found[1]
    return {
        "cores": str(os.cpu_count()),
        "processor": model,
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Python, Java, and the packages whose speed ours depends on."""
    found = {"Python": platform.python_version(), "Arborcast": metadata.version("arborcast")}
    try:
        found["Java"] = java.find_java().version
    except StackError:
        found["Java"] = "none"
    jars = (ROOT / "engine/install/jars.sha256").read_text(encoding="utf-8")
    if kafka := re.search(r"broker/kafka_2\.13-(\S+)\.jar", jars):
        found["Kafka broker"] = kafka[1]
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def load_average() -> float:
    """Processes that ran or wanted to, averaged over the last minute."""
    return round(psutil.getloadavg()[0], 2)


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments],  # noqa: S607
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
