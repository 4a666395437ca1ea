"""Runs histories, and says what they came to."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable

from arborcast.core.settings import KafkaSettings
from tests.world.history import History
from tests.world.kernel import Kernel
from tests.world.known_faults import KNOWN, find
from tests.world.scenario import Scenario


class _OfTheLiving(logging.Filter):
    """What a process logs while it is unwound was never logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel: Kernel | None = None
        self.tell: Callable[[str], None] = lambda line: None

    def filter(self, record: logging.LogRecord) -> bool:
        kernel = self.kernel
        process = kernel.running if kernel is not None else None
        if process is not None and process.alive:
            self.tell(f"{process.name} {process.pid}: {record.levelname.lower()}: {record.getMessage()}")
        return False


LOGS = _OfTheLiving()


def run(seed: int, days: float, tell: Callable[[str], None] | None = None) -> History:
    """One history; raises what is wrong in it."""
    logger = logging.getLogger("arborcast")
    logger.setLevel(logging.INFO if tell else logging.CRITICAL)
    if LOGS not in logger.filters:
        for handler in list(logging.getLogger().handlers):
            logging.getLogger().removeHandler(handler)
        handler = logging.StreamHandler()
        handler.addFilter(LOGS)
        logging.getLogger().addHandler(handler)
    # Every third history loses the beginnings of its logs after a day.
    kafka = KafkaSettings(partitions=4, retention_hours=24 if seed % 3 == 0 else 168)
    history = History(seed, tell or (lambda line: None), kafka)
    LOGS.kernel, LOGS.tell = history.kernel, history.say
    try:
        history.run(Scenario(history, days), days)
    finally:
        LOGS.kernel = None
    return history


def find_known() -> int:
    """Each history without its fault and with it; the exit status."""
    logging.getLogger("arborcast").setLevel(logging.CRITICAL)
    missed = 0
    for fault in KNOWN:
        clean, found = find(fault, put_back=False), find(fault)
        well = not clean and fault.found in found
        missed += not well
        print(f"{'found' if well else 'MISSED'}: {fault.name}: {(clean or found).splitlines()[:1]}", flush=True)
    return 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="so many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--days", type=float, default=1.0, help="how long each lasts, in simulated days")
    parser.add_argument("--seed", type=int, help="this history alone, with its story")
    parser.add_argument("--minutes", type=float, help="begin no further history after so long")
    parser.add_argument(
        "--known", action="store_true", help="put back each fault that the dispatch has had, and find it"
    )
    options = parser.parse_args(arguments)
    if options.known:
        return find_known()
    if options.seed is not None:
        run(options.seed, options.days, print)
        return 0
    counts: Counter[str] = Counter()
    failed: list[int] = []
    hours, seeds = 0.0, 0
    began = time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        if options.minutes is not None and time.perf_counter() - began > options.minutes * 60:
            break
        seeds += 1
        try:
            history = run(seed, options.days)
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {str(error)[:1500]}", flush=True)
        else:
            counts.update(history.kernel.counts)
            counts["messages"] += history.numbers
            counts["pushes"] += history.network.pushes
            counts["pushes again after a crash or a time-out"] += history.oracle.excused
            counts["steps of the simulation"] += history.kernel.events
            hours += history.kernel.now / 3_600
        gc.collect()
    for name, count in sorted(counts.items()):
        print(f"{count:9} {name}")
    print(f"{hours / 24:.1f} simulated days, {seeds} seeds, {time.perf_counter() - began:.0f} s; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
