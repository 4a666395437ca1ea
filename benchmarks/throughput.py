"""From publishers through the gateway to subscribers: rates, delays, and the CPU time of each part.

    python -m benchmarks.throughput [CASE ...] [--subscribers N] [--publishers N] ... [SETTING=VALUE ...]

Without cases: one row with the given quantities. Cases: standard (one and many publishers and subscribers, CPU),
scaling (one quantity at a time), isolation (subscribers that fail, many endpoints), changes (of subscriptions), backlog
(`--count` messages in the log, from their append until the last arrival; with `--signed`, rounds without and with
signatures take turns). For hours: `benchmarks.storms.soak`.

With many subscribers a small backlog shows the fan-out of one notification: `--count 1 --subscribers 50000`. One
partition delivers it: compare with `--count 100 --subscribers 500 --topics 1`.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import psutil

from arborcast.core.security.keyring import KeyFile, Keys
from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionRecord, TopicRecord
from arborcast.topic_model.subscriptions import DeliveryForm, Protection, SigningSecret
from arborcast.topic_model.topics import TopicPath
from benchmarks.load import Traffic
from benchmarks.report import Report, run
from benchmarks.rig import OUTCOME, TOPICS, Outcome, Rig, rig, settings_of
from tests.support.dispatch_job import subscription
from tests.support.receiver import refusing_url

_PARTS = ("gateway", "kafka", "jvm", "driver", "worker", "receiver")
_CLOSED = "publishers send when they have their answer"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}, or SETTING=VALUE")
    parser.add_argument("--publishers", type=int, default=16)
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--topics", type=int, help=f"of each publisher (1), or of a backlog ({TOPICS})")
    parser.add_argument("--one-topic", action="store_true", help="all publishers use one topic")
    parser.add_argument("--size", type=int, default=800, help="bytes of a message")
    parser.add_argument("--parts", type=int, default=1, help="parts of each message, at the old edge")
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--rate", type=float, help="messages a second, open loop; else closed loop")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=20_000, help="of the case backlog")
    parser.add_argument("--rounds", type=int, default=3, help="of the case backlog")
    parser.add_argument("--signed", action="store_true")
    parser.add_argument("--edge", choices=("soap", "old"), default="soap")
    parser.add_argument("--form", choices=("notify", "raw"), default="notify", help="raw: a request for each message")
    parser.add_argument("--mode", choices=("auto", "realtime", "batch"), default="auto")
    parser.add_argument("--transport", choices=("curl", "futures"), default="curl")


def measure(report: Report) -> None:
    chosen = report.options
    cases = [each for each in chosen.cases if "=" not in each]
    settings = {
        "dispatch.mode": chosen.mode,
        "push.transport": chosen.transport,
        **settings_of([each for each in chosen.cases if "=" in each]),
    }
    ports = (50 if report.quick else 1_000) if "isolation" in cases else 0
    with rig(settings, gateway=True, more_ports=ports) as running:
        for case in cases or ["one"]:
            CASES[case](report, running)


def _one(report: Report, running: Rig) -> None:
    chosen = report.options
    # The old edge has topics without a namespace.
    root = "" if chosen.edge == "old" else "{urn:t}"
    names = [f"s{number}" for number in range(chosen.subscribers)]
    paths = running.subscribe(names, f"{root}bench//.", chosen.form)
    traffic = Traffic(
        0, chosen.publishers, chosen.seconds, chosen.rate, chosen.edge, chosen.size, topics=chosen.topics or 1,
        one_topic=chosen.one_topic, priority=chosen.priority, parts=chosen.parts, alone=chosen.parts > 1,
    )  # fmt: skip
    running.publish(paths, replace(traffic, seconds=1 if report.quick else 4))
    outcome = running.publish(paths, replace(traffic, seconds=2) if report.quick else traffic)
    with report.table("through the gateway", *OUTCOME, note="open loop" if chosen.rate else _CLOSED) as table:
        table.add(*outcome.cells())
    _cpu(report, {"these": outcome})


def _standard(report: Report, running: Rig) -> None:
    seconds, found = 3.0 if report.quick else 15.0, {}
    one = running.subscribe(["one"], "{urn:t}bench//.")
    many = running.subscribe([f"many{number}" for number in range(50)], "{urn:t}wide//.")
    running.publish(one, Traffic(0, 16, 3))
    with report.table("closed loop", "case", *OUTCOME, note=_CLOSED) as table:
        for publishers, size in ((1, 800), (16, 800), (16, 30_000)):
            case = f"{publishers} publishers, {size:,} bytes"
            found[case] = running.publish(one, Traffic(0, publishers, seconds, size=size))
            table.add(case, *found[case].cells())
        running.publish(many, Traffic(0, 8, 1, 20, topic="wide/p"))
        case = "8 publishers, 50 subscribers"
        found[case] = running.publish(many, Traffic(0, 8, seconds, topic="wide/p"))
        table.add(case, *found[case].cells())
    _cpu(report, found)


def _cpu(report: Report, outcomes: dict[str, Outcome]) -> None:
    with report.table("CPU, microseconds for each delivery", "case", *_PARTS, "all") as table:
        for name, outcome in outcomes.items():
            used = [outcome.cpu.get(part, 0.0) / max(outcome.delivered, 1) * 1e6 for part in _PARTS]
            table.add(name, *used, sum(used))


def _scaling(report: Report, running: Rig) -> None:
    seconds, quick = (2.0, True) if report.quick else (6.0, False)
    one = running.subscribe(["scaled"], "{urn:t}scale//.")
    base = Traffic(0, 8, seconds, topic="scale/p")
    running.publish(one, base)
    with report.table("offered rate, one subscriber", "messages/s", *OUTCOME, note="open loop") as table:
        for rate in (100, 1_000) if quick else (50, 500, 1_000, 2_000, 4_000, 6_000):
            table.add(rate, *running.publish(one, replace(base, connections=16, rate=rate)).cells())
    with report.table("size, one subscriber", "payload bytes", *OUTCOME, note=_CLOSED) as table:
        for size in (100, 30_000) if quick else (100, 1_000, 10_000, 100_000, 1_000_000):
            # An envelope is about 500 bytes.
            table.add(size, *running.publish(one, replace(base, size=size + 500)).cells())
    with report.table("topics, one subscriber", "topics", *OUTCOME, note=_CLOSED) as table:
        for topics in (1, 100) if quick else (1, 100, 1_000, 10_000):
            # Added first: how many topics publishers may add in a minute is limited.
            name = f"scale/n{topics}x"
            running.control(
                [TopicRecord(TopicPath(f"{{urn:t}}{name}{a}/t{b}")) for a in range(8) for b in range(topics)]
            )
            running.publish(one, Traffic(0, 8, 3, 100))
            table.add(topics * 8, *running.publish(one, replace(base, topic=name, topics=topics)).cells())
    with report.table("subscribers", "subscribers", *OUTCOME, note=_CLOSED) as table:
        for number in (1, 10) if quick else (1, 5, 10, 50, 200):
            paths = running.subscribe([f"fan{number}-{each}" for each in range(number)], f"{{urn:t}}fan{number}//.")
            fan = replace(base, topic=f"fan{number}/p")
            running.publish(paths, replace(fan, seconds=1, rate=20))
            table.add(number, *running.publish(paths, fan).cells())
    with report.table("subscriptions of other topics, 500/s", "subscriptions", *OUTCOME, note="open loop") as table:
        there = 0
        for number in (0, 1_000) if quick else (0, 10_000, 100_000, 300_000):
            running.control([_other(each) for each in range(there, number)])
            there = number
            running.publish(one, replace(base, seconds=3, rate=100))
            table.add(number, *running.publish(one, replace(base, rate=500)).cells())


def _isolation(report: Report, running: Rig) -> None:
    """Healthy subscribers beside others that fail; many endpoints."""
    seconds, url = (4.0 if report.quick else 20.0), running.receiver.url
    well = running.subscribe([f"well{number}" for number in range(7)], "{urn:t}ten//.", "raw")
    traffic = Traffic(0, 4, seconds, 100, topic="ten/p")
    with refusing_url() as dead, report.table("7 of 10 subscribers, 100/s", "the other three", *OUTCOME) as table:
        kinds = {
            "healthy": {f"also{number}": f"{url}/also{number}" for number in range(3)},
            "one hangs, one refuses, one fails half": {"hangs": f"{url}/hang", "dead": dead, "half": f"{url}/half"},
        }
        for kind, others in kinds.items():
            running.add(others, "{urn:t}ten//.", form="raw")
            for _ in range(1 if kind == "healthy" else 2):
                table.add(kind, *running.publish(well, traffic).cells())
            running.control([SubscriptionEnded(name, "unsubscribed", 1) for name in others])
    ports = running.receiver.more_ports
    consumers = {f"port{port}": f"http://127.0.0.1:{port}/port{port}" for port in ports}
    running.add(consumers, "{urn:t}ports//.", form="raw")
    paths = [f"/{name}" for name in consumers]
    columns = ("round", *OUTCOME, "workers' descriptors", "workers' MiB")
    with report.table(f"{len(ports):,} endpoints, 2/s", *columns) as table:
        for number in range(3):
            outcome = running.publish(paths, Traffic(0, 1, seconds / 2, 2, topic="ports/p"))
            descriptors, memory = 0, 0
            for process in running.processes()["worker"]:
                with suppress(psutil.NoSuchProcess):
                    descriptors += process.num_fds()
                    memory += process.memory_info().rss
            table.add(number + 1, *outcome.cells(), descriptors, memory / 2**20)


def _changes(report: Report, running: Rig) -> None:
    """Changes of subscriptions beside a steady load."""
    many, seconds = (5_000, 5.0) if report.quick else (100_000, 30.0)
    one = running.subscribe(["steady"], "{urn:t}steady//.")
    traffic = Traffic(0, 8, seconds, 500, topic="steady/p")
    running.publish(one, replace(traffic, seconds=6, rate=200))
    with report.table("500/s to one subscriber", "beside it", *OUTCOME) as table:
        table.add("nothing", *running.publish(one, traffic).cells())
        with _changing(running, 100):
            table.add("100 changes/s", *running.publish(one, traffic).cells())
        running.control([_other(number) for number in range(many)])
        running.publish(one, replace(traffic, seconds=3, rate=50))
        table.add(f"{many:,} subscriptions", *running.publish(one, traffic).cells())
        with _changing(running, 100):
            table.add(f"{many:,} and 100 changes/s", *running.publish(one, traffic).cells())


def _other(number: int, name: str = "other") -> SubscriptionRecord:
    topic = f"{{urn:other}}tree/branch{number % 300}/leaf{number}"
    return SubscriptionRecord(subscription(f"{name}{number}", f"http://127.0.0.1:9/{name}{number}", topic))


@contextmanager
def _changing(running: Rig, per_second: int) -> Iterator[None]:
    """Subscriptions begin at this rate, and end 50 seconds later."""
    stop = threading.Event()

    def change() -> None:
        started = time.monotonic()
        for number in itertools.count():
            records: list[ControlRecord] = [_other(number, "passing")]
            if number > 50 * per_second:
                records.append(SubscriptionEnded(f"passing{number - 50 * per_second}", "unsubscribed", 1))
            running.control(records)
            if stop.wait(max(started + (number + 1) / per_second - time.monotonic(), 0)):
                return

    thread = threading.Thread(target=change, name="changes")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _backlog(report: Report, running: Rig) -> None:
    chosen = report.options
    count, topics = min(chosen.count, 2_000) if report.quick else chosen.count, chosen.topics or TOPICS
    names = [f"s{number}" for number in range(chosen.subscribers)]
    paths = {"bench": running.subscribe(names, form=chosen.form)}
    if chosen.signed:
        paths["signed"] = _subscribe_signed(running, names, chosen.form, KeyFile(running.home / "secrets.keys"))
    title = f"{count:,} at once for {chosen.subscribers:,} subscribers, form {chosen.form}, mode {chosen.mode}"
    with report.table(title, "round", "topics", *OUTCOME, "worker CPU us each") as table:
        for number in range(1 if report.quick else chosen.rounds):
            for root, receiving in paths.items():
                running.receiver.clear()
                before = _workers_cpu(running)
                sent = running.append(f"{root}{number}", count, topics, root=root)
                outcome = running.delivered(sent, receiving, topics)
                used = (_workers_cpu(running) - before) / max(1, outcome.delivered) * 1e6
                table.add(number + 1, root, *outcome.cells(), used)


def _workers_cpu(running: Rig) -> float:
    used = running.cpu()
    return used.get("worker", 0.0) + used.get("daemon", 0.0)  # the daemon has the times of workers that ended


def _subscribe_signed(running: Rig, names: list[str], form: DeliveryForm, keys: Keys) -> list[str]:
    """Subscriptions with signed pushes to one topic; their paths."""
    for name in names:
        plain = subscription(f"signed-{name}", f"{running.receiver.url}/signed-{name}", "signed//.", form=form)
        secret = SigningSecret(keys.seal(bytes(range(32)), plain.sealing_context()))
        running.control([SubscriptionRecord(msgspec.structs.replace(plain, protection=Protection((secret,))))])
    return [f"/signed-{name}" for name in names]


CASES = {
    "one": _one,
    "standard": _standard,
    "scaling": _scaling,
    "isolation": _isolation,
    "changes": _changes,
    "backlog": _backlog,
}

if __name__ == "__main__":
    run(measure, options)
