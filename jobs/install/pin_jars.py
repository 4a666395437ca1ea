"""Writes jars.sha256 anew after a change of jars.xml: python -m jobs.install.pin_jars.

Downloads everything into an empty cache, so that what gets pinned is what the repositories hand out today. Read the
difference before you commit it: a jar that changed without a new version is a reason to stop.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from jobs.install import ivy, jars, java
from jobs.processes.errors import JarError
from jobs.terminal import complain

_FOLDER = Path(__file__).parent


def pinned_lines(which: str, work: Path) -> list[str]:
    """The lines of one set, as sha256sum would write them. Raises JarError when a jar cannot be had."""
    into = work / which
    into.mkdir()
    expected = len(jars.pins(which))
    outcome = ivy.retrieve(
        _FOLDER / "jars.xml", which, into, work / "ivy", java.find_java().executable, expected, print
    )
    if outcome.problem:
        raise JarError(f"could not fetch {outcome.jar or which}: {outcome.problem}", outcome.jar)
    return [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {which}/{path.name}" for path in sorted(into.glob("*.jar"))
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        lines = [line for which in jars.SETS for line in pinned_lines(which, Path(work))]
    (_FOLDER / "jars.sha256").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except JarError as error:
        complain(error)
        sys.exit(1)
