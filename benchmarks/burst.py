"""How fast a backlog leaves: notifications appended all at once, until the receivers have the last one.

    python -m benchmarks.burst [--count 20000] [--subscribers 1] [--form raw|notify] [--mode auto] [SETTING=VALUE ...]

`raw` is one message in a request; with `notify` messages that wait share requests. With many subscribers a small count
shows the fan-out of one notification: `--count 1 --subscribers 50000`. One partition delivers it: compare with
`--count 100 --subscribers 500 --topics 1`.
"""

from __future__ import annotations

import argparse

from benchmarks.report import Report, run
from benchmarks.rig import OUTCOME, rig, settings_of


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--form", choices=("raw", "notify"), default="raw")
    parser.add_argument("--mode", choices=("auto", "realtime", "batch"), default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")


def measure(report: Report) -> None:
    chosen = report.options
    count = min(chosen.count, 2_000) if report.quick else chosen.count
    title = f"{count:,} at once for {chosen.subscribers:,} subscribers, form {chosen.form}, mode {chosen.mode}"
    with rig({"dispatch.gear": chosen.mode, **settings_of(chosen.settings)}) as running:
        paths = running.subscribe([f"s{number}" for number in range(chosen.subscribers)], form=chosen.form)
        with report.table(title, "round", *OUTCOME) as table:
            for number in range(1 if report.quick else chosen.rounds):
                running.receiver.clear()
                sent = running.append(f"b{number}", count, chosen.topics)
                table.add(number + 1, *running.delivered(sent, paths, chosen.topics).cells())


if __name__ == "__main__":
    run(measure, options)
