"""Runs histories, and reports their outcomes."""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from arborcast.core.settings import KafkaSettings
from tests.world.history import History
from tests.world.kernel import Kernel
from tests.world.known_faults import KNOWN, find
from tests.world.scenario import Scenario


class _OfTheLiving(logging.Filter):
    """Drops log records of processes that are being unwound."""

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
    """Run one history, and raise its findings."""
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


class Outcome(NamedTuple):
    """The outcome of one history. `finding` is empty without one."""

    seed: int
    days: float
    counts: Counter[str]
    finding: str = ""


def outcome(seed: int, days: float) -> Outcome:
    try:
        history = run(seed, days)
    except Exception as error:
        return Outcome(seed, 0.0, Counter(), str(error)[:1500])
    counts = Counter(history.kernel.counts)
    counts["messages"] += history.numbers
    counts["pushes"] += history.network.pushes
    counts["repeated pushes after a crash or a timeout"] += history.oracle.excused
    counts["steps of the simulation"] += history.kernel.events
    return Outcome(seed, history.kernel.now / 86_400.0, counts)


def outcomes(seeds: Iterable[int], days: float, jobs: int) -> Iterator[Outcome]:
    """The outcomes of many histories, each in a separate process: none depends on earlier ones."""
    # Forked processes have all modules, whose objects are no garbage.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    context = multiprocessing.get_context("fork")
    # As daemons they end with this process when it is interrupted.
    left, running = iter(seeds), dict[Connection, int]()
    while True:
        for seed in itertools.islice(left, jobs - len(running)):
            receiver, sender = context.Pipe(duplex=False)
            context.Process(target=_report, args=(sender, seed, days), daemon=True).start()
            sender.close()
            running[receiver] = seed
        if not running:
            return
        over = wait(list(running))
        for receiver in [each for each in running if each in over]:
            seed = running.pop(receiver)
            try:
                yield receiver.recv()
            except EOFError:
                yield Outcome(seed, 0.0, Counter(), "its process has ended")
            receiver.close()


def _report(sender: Connection, seed: int, days: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender.send(outcome(seed, days))


def find_known() -> int:
    """Run each history without and with its fault; returns the exit status."""
    logging.getLogger("arborcast").setLevel(logging.CRITICAL)
    missed = 0
    without: dict[object, str] = {}
    for fault in KNOWN:
        if fault.history not in without:
            without[fault.history] = find(fault, put_back=False)
        clean, found = without[fault.history], find(fault)
        well = not clean and all(kind in found for kind in fault.found.split())
        missed += not well
        print(f"{'found' if well else 'MISSED'}: {fault.name}: {(clean or found).splitlines()[:1]}", flush=True)
    return 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="the number of histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--days", type=float, default=1.0, help="simulated days of each")
    parser.add_argument("--seed", type=int, help="only this history, with a log of its events")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no history after this time")
    parser.add_argument("--jobs", type=int, default=1, help="the number of processes")
    parser.add_argument("--known", action="store_true", help="reintroduce each known fault, and find it")
    options = parser.parse_args(arguments)
    if options.known:
        return find_known()
    if options.seed is not None:
        run(options.seed, options.days, print)
        return 0
    began = time.perf_counter()

    def minutes() -> float:
        return (time.perf_counter() - began) / 60.0

    every = range(options.first, options.first + options.seeds)
    seeds = itertools.takewhile(lambda seed: minutes() < options.minutes, every)
    counts: Counter[str] = Counter()
    failed: list[int] = []
    days, histories = 0.0, 0
    try:
        for each in outcomes(seeds, options.days, options.jobs):
            counts.update(each.counts)
            days += each.days
            histories += 1
            if each.finding:
                failed.append(each.seed)
                print(f"seed {each.seed}: {each.finding}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; counts of the complete histories:")
    for name, count in sorted(counts.items()):
        print(f"{count:9} {name}")
    print(f"{days:.1f} simulated days, {histories} seeds, {minutes() * 60.0:.0f} s; failed: {sorted(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
