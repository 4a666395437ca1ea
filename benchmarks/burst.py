"""The rate at which a backlog is pushed: from the append of all notifications until the last arrival.

    python -m benchmarks.burst [--count 20000] [--subscribers 1] [--form notify] [--signed] [SETTING=VALUE ...]

`raw` is one message in a request; with `notify` messages that wait share requests. With many subscribers a small count
shows the fan-out of one notification: `--count 1 --subscribers 50000`. One partition delivers it: compare with
`--count 100 --subscribers 500 --topics 1`. With `--signed`, rounds without and with signatures take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import msgspec

from arborcast.core.security.keyring import KeyFile, Keys, add_key
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import DeliveryForm, Protection, SigningSecret
from benchmarks.report import Report, run
from benchmarks.rig import OUTCOME, Rig, rig, settings_of, subscription


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--form", choices=("raw", "notify"), default="raw")
    parser.add_argument("--mode", choices=("auto", "realtime", "batch"), default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--signed", action="store_true")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")


def measure(report: Report) -> None:
    chosen = report.options
    count = min(chosen.count, 2_000) if report.quick else chosen.count
    title = f"{count:,} at once for {chosen.subscribers:,} subscribers, form {chosen.form}, mode {chosen.mode}"
    names = [f"s{number}" for number in range(chosen.subscribers)]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "secrets.keys"
        add_key(keys, "k1")
        settings = {"dispatch.gear": chosen.mode, "secrets.key_file": str(keys), **settings_of(chosen.settings)}
        with rig(settings) as running:
            paths = {"bench": running.subscribe(names, form=chosen.form)}
            if chosen.signed:
                paths["signed"] = _subscribe_signed(running, names, chosen.form, KeyFile(keys))
            with report.table(title, "round", "topics", *OUTCOME, "worker CPU us each") as table:
                for number in range(1 if report.quick else chosen.rounds):
                    for root, receiving in paths.items():
                        running.receiver.clear()
                        before = _workers_cpu(running)
                        sent = running.append(f"{root}{number}", count, chosen.topics, root=root)
                        outcome = running.delivered(sent, receiving, chosen.topics)
                        used = (_workers_cpu(running) - before) / max(1, outcome.delivered) * 1e6
                        table.add(number + 1, root, *outcome.cells(), used)


def _workers_cpu(running: Rig) -> float:
    used = running.cpu()
    return used.get("worker", 0.0) + used.get("daemon", 0.0)  # the daemon has the times of workers that ended


def _subscribe_signed(running: Rig, names: list[str], form: DeliveryForm, keys: Keys) -> list[str]:
    """Subscriptions with signed pushes, each to one topic; returns their paths."""
    records = []
    for name in names:
        plain = subscription(f"signed-{name}", f"{running.receiver.url}/signed-{name}", "signed//.", form)
        secret = SigningSecret(keys.seal(bytes(range(32)), plain.sealing_context()))
        records.append(SubscriptionRecord(msgspec.structs.replace(plain, protection=Protection((secret,)))))
    running.control(records)
    return [f"/signed-{name}" for name in names]


if __name__ == "__main__":
    run(measure, options)
