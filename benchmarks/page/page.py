"""Runs the benchmarks, keeps what they say, and writes docs/benchmarks.md from that.

    python -m benchmarks.page.page [--only NAME ...] [--no-long]   measure, keep, write the page
    python -m benchmarks.page.page --quick [--only NAME ...]       does everything run? Kept in build/benchmarks only
    python -m benchmarks.page.page --render                        write the page from what is kept
    python -m benchmarks.page.page --list                          the parts, and how long each took

A part that fails, or does not end, is reported and the others go on; the page keeps its last figures and says so. Exit
status 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.page import results
from benchmarks.page.parts import PARTS, Part, chosen
from benchmarks.page.render import write_page

DOCS = results.ROOT / "docs"
QUICK = results.ROOT / "build" / "benchmarks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; the published page stays as it is")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these parts; the others keep their figures")
    parser.add_argument(
        "--no-long", action="store_true", help="leave out those that take minutes and measure a part by itself"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--list", action="store_true", help="the parts and how long they took last time")
    parser.add_argument("--docs", type=Path, help="another folder for the page and its results")
    options = parser.parse_args()
    docs = options.docs or (QUICK if options.quick else DOCS)
    if options.list:
        _list(docs)
        return
    try:
        parts = [] if options.render else chosen(options.only, long=not options.no_long)
    except KeyError as error:
        parser.error(f"there is no part {error}; there are {', '.join(part.name for part in PARTS)}")
    failed = [part.name for part in parts if not measure(part, options.quick, docs)]
    write_page(docs)
    print(f"page: {docs / 'benchmarks.md'}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def measure(part: Part, quick: bool, docs: Path, python: tuple[str, ...] = ()) -> bool:
    """Measure one part and keep what came out. False when it failed. `python`: instead of the part's own module."""
    folder = docs / "benchmarks" / "results"
    print(f"== {part.name}: {part.command(quick)}", flush=True)
    load, started = results.load_average(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="arborcast-page-") as name:
        file = Path(name) / "figures.json"
        module = python or ("-m", f"benchmarks.{part.module}", *part.options(quick), "--json")
        command = [sys.executable, *module, str(file)]
        failure = _finish(command, part.limit_s)
        figures = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    tables = results.tables_of(figures, part.title) if figures else []
    result = results.Result(
        part=part.name,
        command=part.command(quick),
        quick=quick,
        date=results.now(),
        commit=results.commit(),
        machine=results.machine(),
        versions=results.versions(),
        load_before=load,
        load_after=results.load_average(),
        seconds=round(time.monotonic() - started, 1),
        tables=tables,
        failure=failure,
    )
    known = results.load(folder).get(part.name)
    if failure and known is not None and known.tables:
        # What was measured before says more than half a run.
        result = replace(known, failure=f"{failure} ({result.date}, commit {result.commit})")
    results.save(folder, result)
    print(f"== {part.name}: {failure or 'done'} after {time.monotonic() - started:.0f} s", flush=True)
    return not failure


def _finish(command: list[str], limit_s: float) -> str:
    """Run it; why it failed, or nothing. All that it started goes with it when it hangs or we are interrupted."""
    process = subprocess.Popen(command, cwd=results.ROOT, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            _stop(process)
    return "" if code == 0 else f"ended with status {code}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    # As Ctrl-C would: benchmarks end their brokers and jobs, which live in sessions of their own, on the way out.
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _list(docs: Path) -> None:
    known = results.load(docs / "benchmarks" / "results")
    for part in PARTS:
        last = known.get(part.name)
        took = f"{last.seconds:6.0f} s{' quick' if last.quick else '':6}" if last else f"{'never':>14}"
        print(f"{part.name:<15}{took}  {part.command(False)}")


if __name__ == "__main__":
    main()
