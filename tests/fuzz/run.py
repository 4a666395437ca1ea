"""A long run: python -m tests.fuzz.run TARGET --inputs N

With `--atheris`, if installed (it is no dependency), libFuzzer selects inputs by coverage.
Failing inputs are stored in tests/fuzz/found/TARGET/, which the test run reads; one for each kind of failure.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis

from tests.fuzz import _checks_framed, _checks_http, _checks_records, _checks_texts, _checks_wire
from tests.fuzz._generate import Target, inputs

_MODULES = (_checks_framed, _checks_http, _checks_wire, _checks_records, _checks_texts)
TARGETS: dict[str, Target] = {name: target for module in _MODULES for name, target in module.TARGETS.items()}

FOUND = Path(__file__).parent / "found"

# A longer time is a finding: a client could send a thousand such inputs. CPU time, so that a busy or suspended
# machine makes no findings.
_HANG_S = 5.0


class Hang(Exception):
    """An input exceeded the time limit."""


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


def checking(name: str, number: int, seed: int, kinds: dict[str, str]) -> Any:
    """Checks this number of inputs of a target. `kinds` gets the failures, one input for each place in the code."""
    target = TARGETS[name]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(inputs(target.seeds, target.snippets))
    def check(data: bytes) -> None:
        try:
            with _watched():
                target.check(data)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            if kind not in kinds:
                file = FOUND / name / hashlib.sha256(data).hexdigest()[:12]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
                kinds[kind] = f"{str(error)[:200]} ({file.name})"
                print(f"FOUND {kind}: {kinds[kind]}", flush=True)

    return check


def main() -> int:
    """The exit status is 1 when there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="let atheris choose the inputs of one target")
    options = parser.parse_args()
    # Refusals are logged, and the time of a million lines would dominate.
    logging.disable(logging.CRITICAL)
    if options.atheris:
        import atheris

        atheris.instrument_all()
        checked = checking(options.target, options.inputs, options.seed, {})
        atheris.Setup([sys.argv[0], f"-runs={options.inputs}"], checked.hypothesis.fuzz_one_input)
        atheris.Fuzz()
    failures = 0
    for name in TARGETS if options.target == "all" else [options.target]:
        began = time.monotonic()
        kinds: dict[str, str] = {}
        checking(name, options.inputs, options.seed, kinds)()
        took = time.monotonic() - began
        print(f"{name}: {options.inputs} inputs in {took:.1f} s, {len(kinds)} kinds of failure", flush=True)
        failures += len(kinds)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
