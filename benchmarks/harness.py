"""What measurements share: arguments, tables, the machine they ran on, resident memory."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

Cell = str | int | float | None


@dataclass
class Table:
    """A titled table; `note` says what to read from it."""

    title: str
    columns: tuple[str, ...]
    note: str = ""
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def render(self) -> str:
        texts = [list(self.columns), *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in texts]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(["", self.title, *([self.note] if self.note else []), *lines])


@dataclass
class Report:
    """The tables of one run, printed as they are finished."""

    name: str
    quick: bool
    tables: list[Table] = field(default_factory=list)

    @contextmanager
    def table(self, title: str, *columns: str, note: str = "") -> Iterator[Table]:
        table = Table(title, columns, note)
        yield table
        self.tables.append(table)
        print(table.render(), flush=True)


def machine() -> str:
    """One line that says what the figures were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = psutil.virtual_memory().total / 2**30
    python = f"{platform.python_implementation()} {platform.python_version()}"
    # What else ran: on a busy machine times are upper bounds.
    load = ", ".join(f"{average:.1f}" for average in psutil.getloadavg())
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} x {model}, {memory:.0f} GiB, {system}, {python}, load {load}"


def run(measure: Callable[[Report], None]) -> None:
    """The main function of a measurement: `--quick` for a small one, `--json FILE` for the figures."""
    module = sys.modules["__main__"].__spec__
    assert module is not None, "start it with python -m"
    parser = argparse.ArgumentParser(prog=f"python -m {module.name}")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    arguments = parser.parse_args()
    report = Report(module.name.rpartition(".")[2], arguments.quick)
    print(f"{report.name}: {machine()}", flush=True)
    try:
        measure(report)
    finally:
        # What was finished before a failure is worth keeping.
        if arguments.json:
            arguments.json.write_text(json.dumps(as_json(report), indent=1) + "\n")


def as_json(report: Report) -> dict[str, object]:
    return {
        "benchmark": report.name,
        "machine": machine(),
        "quick": report.quick,
        "tables": [
            {
                "title": table.title,
                "note": table.note,
                "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
            }
            for table in report.tables
        ],
    }


def resident() -> int:
    """Bytes of this process that are in memory, garbage collected before."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def seconds(action: Callable[[], object], repeat: int = 1) -> float:
    """The best time of so many runs: what disturbs a measurement only ever makes it slower."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def median_ms(times_s: Iterable[float]) -> float:
    return statistics.median(times_s) * 1e3


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
