"""A soak of a whole engine with its default settings, minute by minute: delays, memory, threads, files and disk.

    python -m benchmarks.storms.soak --minutes 60 [--rate 50] [--subscribers 20] [--publishers 8] [--topics 8]
        [--failing | --ending 200] [--home DIR] [--json FILE]

Without --rate publishers send when they have their answer: full load. A minute ends when all of its messages have
arrived. Publishers create the topics. With --failing there are two more subscriptions, to an address without a listener
and to a receiver that takes three seconds for each answer; only their parked messages should grow. With --ending N
subscriptions at new addresses without a listener end in each minute, and must leave nothing behind. The exit status is
0 if nothing was lost, repeated, reordered or left behind, the audit balances, and no part has logged an error.
"""

from __future__ import annotations

import argparse
import re
import time
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from arborcast.client import FuturesClient
from arborcast.dispatch.operations.audit import audit
from benchmarks.load import Traffic, send
from benchmarks.report import Report, cpu_with_children_s, on_disk, percentile, run
from benchmarks.rig import OUTCOME, ReceiverProcess, check
from benchmarks.storms.endings import Endings
from benchmarks.storms.victim import Victim, kept
from tests.support.receiver import refusing_url

_TOPIC = "{urn:t}soak//."
_ERROR = re.compile(r"^\S+ error .*", re.MULTILINE)
_FOLDERS = ("kafka", "tables", "parked", "log")

# Before this time the JVM is warming up.
_WARM_MINUTES = 5


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=float, help="notifications per second")
    parser.add_argument("--subscribers", type=int, default=20)
    parser.add_argument("--publishers", type=int, default=8)
    parser.add_argument("--topics", type=int, default=0, help="new ones, in equal parts in each minute")
    # Messages of failing receivers would be among the traces of ended subscriptions.
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--failing", action="store_true")
    others.add_argument("--ending", type=int, default=0, metavar="N")
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")


def measure(report: Report) -> bool:
    with kept(report.options.home, "soak-") as folder, ReceiverProcess() as receiver:
        # The limit of new topics is not measured.
        limit = {"topics.new_per_minute": "1000000"} if report.options.topics else {}
        victim = Victim(folder / "home", limit)
        try:
            return _soak(report, victim, receiver)
        finally:
            victim.end()


def _soak(report: Report, victim: Victim, receiver: ReceiverProcess) -> bool:
    chosen, since_ms, wrong = report.options, int(time.time() * 1000), 0
    seconds, minutes = (2.0, 2) if report.quick else (60.0, chosen.minutes)
    own_topics = max(1, chosen.topics // chosen.publishers // minutes)
    victim.up()
    paths = [f"/well-{number}" for number in range(chosen.subscribers)]
    samples: list[dict[str, float]] = []
    endings, traces = Endings(victim), list[dict[str, float]]()
    columns = ("minute", *OUTCOME, "p99.9 ms", "CPU us each", "MiB", "threads", "open files")
    with ExitStack() as stack:
        urls = [receiver.url + path for path in paths]
        if chosen.failing:
            urls += [f"{receiver.url}/slow/3", stack.enter_context(refusing_url())]
        with FuturesClient(victim.gateway, workers=16) as client:
            for made in [client.subscribe(_TOPIC, to=url) for url in urls]:
                made.result(600)
        folders = (f"{name} {unit}" for name in _FOLDERS for unit in ("MiB", "files"))
        table = stack.enter_context(report.table(f"{len(paths)} subscribers", *columns, *folders))
        for minute in range(1, minutes + 1):
            receiver.clear()
            before = _cpu(victim)
            topic = f"soak/m{minute}/p" if chosen.topics else "soak/p"
            sent = send(
                Traffic(victim.gateway_port, chosen.publishers, seconds, chosen.rate, topic=topic, topics=own_topics)
            )
            arrived = receiver.arrivals(len(sent.acknowledged) * len(paths), paths=paths)
            outcome = check(sent.acknowledged, arrived, paths, own_topics)
            outcome.refused = sent.refused
            used, usage = (_cpu(victim) - before) / max(1, outcome.delivered) * 1e6, victim.usage()
            wrong += outcome.lost + outcome.twice + outcome.disorder
            disk = [figure for name in _FOLDERS for figure in on_disk(victim.home.path / name)]
            parts = usage.values()
            table.add(
                *(minute, *outcome.cells(), percentile(outcome.delays, 0.999), used),
                *(sum(each.memory_mib for each in parts), sum(each.threads for each in parts)),
                *(sum(each.descriptors for each in parts), *disk),
            )
            samples.append({part: each.memory_mib for part, each in usage.items()})
            if chosen.ending:
                endings.wave(chosen.ending)
                if minute in (max(1, min(_WARM_MINUTES, minutes - 1)), minutes):
                    traces.append(endings.traces())
            print(*(f"{cell:.4g}" for cell in table.rows[-1] if isinstance(cell, int | float)), flush=True)
    with report.table("memory, MiB", "part", "warm", "end", "change %") as table:
        warm = samples[min(_WARM_MINUTES, len(samples)) - 1]
        for part, mib in samples[-1].items():
            table.add(part, warm[part], mib, (mib - warm[part]) / warm[part] * 100 if warm[part] else None)
    if traces:
        with report.table(f"left by {chosen.ending} subscriptions a minute", "what", "warm", "end") as table:
            for what, end in traces[-1].items():
                table.add(what, traces[0][what], end)
                wrong += end > traces[0][what]
    found = audit(victim.kafka, since_ms, patience_s=60)
    print(f"audit: {found.notifications:,} notifications, {found.unbalanced} do not balance")
    errors = [line for file in victim.home.logs.glob("*.log") for line in _ERROR.findall(file.read_text())]
    print(f"logs: {len(errors)} errors", *errors[:20], sep="\n")
    return found.balanced and not wrong and not errors


def _cpu(victim: Victim) -> float:
    return cpu_with_children_s(chain.from_iterable(victim.processes().values()))


if __name__ == "__main__":
    run(measure, options)
