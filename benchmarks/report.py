"""Arguments, tables and JSON of a measurement, and the machine that it ran on."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

Cell = str | int | float | None


@dataclass
class Table:
    """A titled table; `note` explains it."""

    title: str
    columns: tuple[str, ...]
    note: str = ""
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        assert len(cells) == len(self.columns), f"{len(cells)} cells for {len(self.columns)} columns"
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
    options: argparse.Namespace
    tables: list[Table] = field(default_factory=list)

    @contextmanager
    def table(self, title: str, *columns: str, note: str = "") -> Iterator[Table]:
        table = Table(title, columns, note)
        try:
            yield table
        finally:
            self.tables.append(table)
            print(table.render(), flush=True)

    def as_json(self) -> dict[str, object]:
        return {
            "benchmark": self.name,
            "machine": machine(),
            "quick": self.quick,
            "options": {name: str(value) for name, value in vars(self.options).items() if name != "json"},
            "tables": [
                {
                    "title": table.title,
                    "note": table.note,
                    "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
                }
                for table in self.tables
            ],
        }


Measure = Callable[[Report], bool | None]


def run(measure: Measure, options: Callable[[argparse.ArgumentParser], object] | None = None) -> None:
    """The main function of a measurement: `--quick`, `--json FILE`, and its own `options`.

    A measurement that returns False ends with exit status 1.
    """
    module = sys.modules["__main__"]
    assert module.__spec__ is not None, "start it with python -m"
    parser = argparse.ArgumentParser(
        prog=f"python -m {module.__spec__.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    if options is not None:
        options(parser)
    chosen = parser.parse_args()
    report = Report(module.__spec__.name.rpartition(".")[2], chosen.quick, chosen)
    print(f"{report.name}: {machine()}", flush=True)
    # So that no process is left behind by a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        held = measure(report)
    finally:
        # The tables that were finished before a failure are written too.
        if chosen.json:
            chosen.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    sys.exit(held is False)


def machine() -> str:
    """One line about the machine and its load."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = psutil.virtual_memory().total / 2**30
    python = f"{platform.python_implementation()} {platform.python_version()}"
    # On a busy machine times are upper bounds.
    load = ", ".join(f"{average:.1f}" for average in psutil.getloadavg())
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} x {model}, {memory:.0f} GiB, {system}, {python}, load {load}"


def resident() -> int:
    """Bytes of this process that are in memory, after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def cpu_s(*processes: psutil.Process) -> float:
    """Seconds of CPU so far."""
    return float(sum(sum(each.cpu_times()[:2]) for each in processes))


def cpu_with_children_s(processes: Iterable[psutil.Process]) -> float:
    """Seconds of CPU so far of these processes, of which some may have ended, and of their ended children."""
    used = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            used += sum(process.cpu_times()[:4])
    return used


def on_disk(folder: Path) -> tuple[float, int]:
    """MiB and the number of the files below a folder. Blocks count, since Kafka's index files are sparse."""
    blocks = count = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # files are deleted meanwhile
            if path.is_file():
                blocks, count = blocks + path.stat().st_blocks, count + 1
    return blocks * 512 / 2**20, count


def seconds(action: Callable[[], object], repeat: int = 1) -> float:
    """The best time of `repeat` runs: a disturbance only makes a run slower."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie; NaN without values."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 120.0, every_s: float = 0.05) -> float:
    """Poll until the condition holds; the seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"after {timeout_s:g} s still not: {what}")
        time.sleep(every_s)
    return time.monotonic() - began


def warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
