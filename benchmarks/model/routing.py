"""All measurements of routing, each in a process of its own so that none finds another's memory.

python -m benchmarks.model.routing [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_PARTS = ("routing_match", "routing_apply", "routing_snapshot")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model.routing")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        for part in _PARTS:
            file = Path(directory) / part
            quick = ["--quick"] if arguments.quick else []
            subprocess.run([sys.executable, "-m", f"benchmarks.model.{part}", *quick, "--json", str(file)], check=True)
            figures.append(json.loads(file.read_text()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
