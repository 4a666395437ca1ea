"""A long run: python -m tests.fuzz.run TARGET --inputs N

Without atheris the inputs are the numbered ones (`--seed S --first F`), so that any of them can be made again. With
`--atheris`, where that is installed (it is no dependency of ours), libFuzzer chooses them by the code that they reach.
What is found goes to tests/fuzz/found/TARGET/, where the test run picks it up; a kind of failure is kept once.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.fuzz._generate import EDGES, Generator
from tests.fuzz._targets import TARGETS, Target

_FOUND = Path(__file__).parent / "found"

# An input that takes longer is a finding: somebody could send a thousand of them. Of the processor's time, so that a
# machine that is busy, or was stopped, makes no findings.
_HANG_S = 5.0


class Hang(Exception):
    """An input took too long."""


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    def too_long(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {_HANG_S:.0f} s")

    previous = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


class Findings:
    """What went wrong, one input for each place in the code."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.kinds: dict[str, str] = {}

    def check(self, target: Target, data: bytes) -> None:
        """Check an input and keep it when it fails."""
        try:
            with _watched():
                target.check(data)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            if kind not in self.kinds:
                file = _FOUND / self._name / hashlib.sha256(data).hexdigest()[:12]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
                self.kinds[kind] = f"{str(error)[:200]} ({file.name})"
                print(f"FOUND {kind}: {self.kinds[kind]}", flush=True)


def numbered(name: str, first: int, inputs: int, seed: int) -> Findings:
    """Check inputs `first` to `first + inputs`."""
    target, findings = TARGETS[name], Findings(name)
    generator = Generator(target.seeds, target.snippets, seed)
    said = time.monotonic()
    for number in range(first, first + inputs):
        findings.check(target, generator.make(number))
        if time.monotonic() - said > 30:
            said = time.monotonic()
            print(f"{name}: {number - first + 1} of {inputs}", flush=True)
    return findings


def guided(name: str, inputs: int, seed: int) -> None:
    """Hand the target to libFuzzer, which ends this process by itself."""
    import atheris

    target, findings = TARGETS[name], Findings(name)
    atheris.instrument_all()
    with tempfile.TemporaryDirectory() as work:
        corpus, words = Path(work, "corpus"), Path(work, "words")
        corpus.mkdir()
        for number, data in enumerate(target.seeds):
            (corpus / str(number)).write_bytes(data)
        escaped = [
            "".join(f"\\x{byte:02x}" for byte in word) for word in (*target.snippets, *EDGES) if 0 < len(word) <= 60
        ]
        words.write_text("".join(f'"{word}"\n' for word in escaped))
        options = [
            f"-runs={inputs}",
            f"-dict={words}",
            f"-seed={seed + 1}",
            "-max_len=8192",
            "-timeout=60",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], lambda data: findings.check(target, data))
        atheris.Fuzz()


def main() -> int:
    """The exit status is 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--atheris", action="store_true", help="let atheris choose the inputs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    # What is refused is logged, and a million lines would be all that is measured.
    logging.disable(logging.CRITICAL)
    if options.atheris:
        if options.target == "all":
            parser.error("atheris takes one target at a time")
        guided(options.target, options.inputs, options.seed)
        return 0
    figures = {}
    for name in TARGETS if options.target == "all" else [options.target]:
        began = time.monotonic()
        findings = numbered(name, options.first, options.inputs, options.seed)
        took = time.monotonic() - began
        figures[name] = {"inputs": options.inputs, "seconds": round(took, 1), "findings": findings.kinds}
        print(f"{name}: {options.inputs} inputs in {took:.1f} s, {len(findings.kinds)} kinds of failure", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if any(each["findings"] for each in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
