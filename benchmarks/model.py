"""Micro-benchmarks, in one process: matching, subscribing, snapshots, a worker's steps, the directory.

    python -m benchmarks.model [CASE ...]

Cases: match, apply, snapshot, steps, directory (reads and edits of a topic tree: slapd on loopback, and an
LDIF file). Without cases: all.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import pickle
import random
import statistics
import tempfile
import time
import warnings
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.directory.entries.changes import Put
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.file import FileDirectory
from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.sync.sync import DirectorySync
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest, Transport
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.delivery.transport.futures import FuturesTransport
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.filters import Conditions, Subject
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model import expressions
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    TopicRecord,
    decode,
    encode,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import (
    EndpointReference,
    Protection,
    SigningSecret,
    Subscription,
    TopicFilter,
    XPathFilter,
)
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, cpu_s, resident, run, seconds, wait_for
from benchmarks.rig import ReceiverProcess
from tests.support import slapd
from tests.support.directory import Log
from tests.support.outbound import THIS_MACHINE

_PLANT = "urn:example:plant"
_NAMESPACES = {"tns": _PLANT, "p": _PLANT}
_NOW_MS = 1_780_000_000_000
_CHUNK = 10_000


def topic(number: int, depth: int = 4) -> TopicPath:
    """A topic of a tree whose branches are ten wide near the root and as wide as needed at the end."""
    middle = "".join(f"/level{level}-{number // 10 ** (level % 3 + 1) % 10}" for level in range(1, depth - 1))
    return TopicPath(f"{{{_PLANT}}}plant{middle}/machine{number}")


def subscription(number: int, normal: str) -> Subscription:
    """As a client makes it: no text is shared with another subscription."""
    name = f"{number:032x}"
    return Subscription(
        id=name,
        consumer=EndpointReference(f"http://10.{number % 200}.7.9:8080/consumers/{number}"),
        address=f"http://broker.example:9000/subscriptions/{name}",
        topics=(TopicFilter(expressions.CONCRETE, normal.replace(f"{{{_PLANT}}}", "p:"), normal, {"p": _PLANT}),),
        created_ms=_NOW_MS + number,
        terminates_ms=_NOW_MS + 3_600_000 + number,
    )


def exact(number: int) -> ControlRecord:
    return SubscriptionRecord(subscription(number, topic(number)))


def mixed(number: int) -> ControlRecord:
    """Of ten records: a topic, seven exact subscriptions, a renewal, an end."""
    match number % 10:
        case 0:
            return TopicRecord(topic(number))
        case 8:
            return SubscriptionRecord(subscription(number - 7, topic(number - 7, 5)))
        case 9:
            return SubscriptionEnded(f"{number - 7:032x}", "unsubscribed", _NOW_MS)
        case _:
            return exact(number)


def table_of(count: int, make: Callable[[int], ControlRecord] = exact) -> RoutingTable:
    routing = RoutingTable()
    for number in range(count):
        routing.apply(make(number))
    return routing


def _nanoseconds(match: Callable[[TopicPath], object], asked: Sequence[TopicPath]) -> float:
    """Best time of three. Each topic is a new string, as in a notification that was just decoded."""
    best = float("inf")
    for _ in range(3):
        spent = 0.0
        for start in range(0, len(asked), 1_000):
            fresh = [TopicPath(path[:1] + path[1:]) for path in asked[start : start + 1_000]]
            spent += seconds(partial(_match_all, match, fresh))
        best = min(best, spent / len(asked) * 1e9)
    return best


def _match_all(match: Callable[[TopicPath], object], paths: Sequence[TopicPath]) -> None:
    for path in paths:
        match(path)


def _zipf(choices: Sequence[TopicPath], count: int, generator: random.Random) -> list[TopicPath]:
    """Draws in which the n-th of the choices is n times as rare as the first."""
    cumulative = list(itertools.accumulate(1 / rank for rank in range(1, len(choices) + 1)))
    return [choices[bisect(cumulative, generator.random() * cumulative[-1])] for _ in range(count)]


def _match(report: Report) -> None:
    sizes = (1_000, 20_000) if report.quick else (1_000, 100_000, 1_000_000)
    draws = 20_000 if report.quick else 300_000
    columns = ("topics and subscriptions", "depth", "hot 1,000", "zipf", "uniform", "bare dict, uniform")
    note = "bare dict: one dictionary of finished answers"
    with report.table("match, nanoseconds", *columns, note=note) as table:
        for size, depth in [*((size, 4) for size in sizes), (sizes[1], 12)]:
            generator, topics = random.Random(size), [topic(number, depth) for number in range(size)]
            records = {number: SubscriptionRecord(subscription(number, path)) for number, path in enumerate(topics)}
            routing = table_of(size, records.__getitem__)
            answers: dict[str, object] = {path: routing.match(path) for path in topics}
            gc.collect()
            uniform = generator.choices(topics, k=draws)
            table.add(
                size,
                depth,
                _nanoseconds(routing.match, generator.choices(topics[:1_000], k=draws)),
                _nanoseconds(routing.match, _zipf(topics, draws, generator)),
                _nanoseconds(routing.match, uniform),
                _nanoseconds(answers.__getitem__, uniform),
            )


def _apply(report: Report) -> None:
    count = 20_000 if report.quick else 1_000_000
    kinds: dict[str, Callable[[int], ControlRecord]] = {
        "exact, a topic each": exact,
        "exact, 1,000 topics": lambda number: SubscriptionRecord(subscription(number, topic(number % 1_000))),
        "subtree of a topic each": lambda number: SubscriptionRecord(subscription(number, f"{topic(number)}//.")),
        "topics": lambda number: TopicRecord(topic(number)),
        "mixed log": mixed,
    }
    columns = ("records", "decoded and applied/s", "applied/s", "resident bytes each")
    with report.table(f"{count:,} records from their encoded form into a new table", *columns) as table:
        for name, make in kinds.items():
            routing, before, decoding, applying = RoutingTable(), resident(), 0.0, 0.0
            for start in range(0, count, _CHUNK):
                encoded = [encode(make(number)) for number in range(start, min(count, start + _CHUNK))]
                begin = time.perf_counter()
                records = [decode(key, value) for key, value in encoded]
                middle = time.perf_counter()
                for record in records:
                    routing.apply(record)
                applying += time.perf_counter() - middle
                decoding += middle - begin
            table.add(name, count / (decoding + applying), count / applying, (resident() - before) / count)
            del routing
    pairs = 20_000 if report.quick else 1_000_000
    columns = ("kind", "pairs/s", "resident before, MB", "after, MB")
    note = "each pair is matched in between; ids, consumers and topics never repeat"
    with report.table(f"{pairs:,} pairs of subscribe and unsubscribe", *columns, note=note) as table:
        for kind, more in (("exact", ""), ("subtree", "//.")):
            routing = table_of(10_000)
            _pairs(routing, range(10**7, 10**7 + pairs // 20), more)
            before = resident()
            spent = seconds(partial(_pairs, routing, range(2 * 10**7, 2 * 10**7 + pairs), more))
            table.add(kind, pairs / spent, before / 1e6, resident() / 1e6)


def _pairs(routing: RoutingTable, numbers: range, more: str) -> None:
    for number in numbers:
        routing.apply(SubscriptionRecord(subscription(number, f"{topic(number)}{more}")))
        assert routing.match(topic(number))
        routing.apply(SubscriptionEnded(f"{number:032x}", "unsubscribed", _NOW_MS))


def _snapshot(report: Report) -> None:
    sizes = (20_000,) if report.quick else (100_000, 1_000_000)
    columns = ("subscriptions", "checkpoint ms", "build s", "bytes each", "write s", "open ms", "first answer us")
    steps = ("changes", "apply ms", "overlay ms", "pickle ms", "open ms", "100 answers ms", "pickled bytes")
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            routing, file = table_of(size), Path(folder) / f"snapshot-{size}"
            marks = [time.perf_counter()]
            checkpoint = routing.checkpoint()
            marks.append(time.perf_counter())
            built = Snapshot.build(checkpoint)
            marks.append(time.perf_counter())
            built.write(file)
            marks.append(time.perf_counter())
            snapshot = Snapshot.open(file)
            view = SnapshotView(snapshot)
            marks.append(time.perf_counter())
            assert view.match(topic(size // 2))
            marks.append(time.perf_counter())
            taken, build, write, opened, answered = (b - a for a, b in itertools.pairwise(marks))
            with report.table("the base of the workers", *columns, note="exact subscriptions") as table:
                table.add(size, taken * 1e3, build, built.size / size, write, opened * 1e3, answered * 1e6)
            with report.table(f"overlays on {size:,} subscriptions", *steps) as table:
                for changes in (100, 1_000):
                    records = [exact(size + number) for number in range(changes)]
                    marks = [time.perf_counter()]
                    for record in records:
                        routing.apply(record)
                    marks.append(time.perf_counter())
                    overlay = checkpoint.overlay()
                    marks.append(time.perf_counter())
                    pickled = pickle.dumps(overlay)
                    marks.append(time.perf_counter())
                    view = SnapshotView(snapshot, pickle.loads(pickled))  # noqa: S301  # written five lines above
                    marks.append(time.perf_counter())
                    assert all(view.match(topic(size + number)) for number in range(100))
                    marks.append(time.perf_counter())
                    table.add(changes, *((b - a) * 1e3 for a, b in itertools.pairwise(marks)), len(pickled))


def _steps(report: Report) -> None:
    """What a worker does for one notification and one subscriber."""
    count, place = 2_000 if report.quick else 50_000, TopicPath("{urn:t}bench/p1")
    content = b'<b:m xmlns:b="urn:bench" size="7"><b:a>1</b:a>' + b"x" * 740 + b"</b:m>"
    message = Notification("0" * 32, place, content, 1)
    _, record = notifications.encode(message)
    topics = (TopicFilter("", "t:bench//.", "{urn:t}bench//."),)
    plain = Subscription("s" * 24, EndpointReference("http://h/c"), "http://b/s", topics)
    filtered = Subscription(
        "f", EndpointReference("http://h/"), content=(XPathFilter(XPATH_1, "@size > 5", {"b": "urn:bench"}),)
    )
    keys = KeyRing({"k1": bytes(range(32))})
    secret = SigningSecret(keys.seal(bytes(range(32)), plain.sealing_context()))
    signed = Envelope(msgspec.structs.replace(plain, protection=Protection((secret,))), Vault(SecretSettings(), keys))
    envelope, conditions, fifty = Envelope(plain), Conditions(), [message] * 50
    routing = RoutingTable()
    routing.apply(SubscriptionRecord(plain))
    view, received = SnapshotView(Snapshot.build(routing)), Received(message, 0, 0)

    def lane() -> None:
        lanes.add(received, plain)
        taken = lanes.take()
        assert taken is not None
        lanes.settle(taken[0].id, place)

    lanes = Lanes(LaneLimits(1, 1))
    steps: dict[str, Callable[[], object]] = {
        "read the record": lambda: notifications.decode(record),
        "match by topic": lambda: view.match(place),
        "a content filter, payload parsed": lambda: Subject(conditions, message).passes(filtered),
        "queue in a lane, take and settle": lane,
        "envelope, one message": lambda: envelope.request([message], attempt=1),
        "envelope, fifty messages": lambda: envelope.request(fifty, attempt=1),
        "envelope, one message, signed": lambda: signed.request([message], attempt=1),
    }
    with report.table("a worker's steps", "step", "us each") as table, ReceiverProcess() as receiver:
        for name, step in steps.items():
            table.add(name, _each(step, count // (50 if "fifty" in name else 1)))
        request = envelope.request([message], attempt=1)
        target = PushRequest(receiver.url, request.headers, request.body)
        transports: tuple[tuple[str, Transport, int], ...] = (
            ("libcurl", CurlTransport(PushSettings(), THIS_MACHINE), count),
            ("requests-futures", FuturesTransport(PushSettings(), THIS_MACHINE), count // 10),
        )
        for name, transport, number in transports:
            _push(transport, target, 200)
            before = cpu_s(psutil.Process())
            _push(transport, target, number)
            table.add(f"push with {name}, CPU", (cpu_s(psutil.Process()) - before) / number * 1e6)
            transport.close()


def _directory(report: Report) -> None:
    """A tree with branches of ten; each topic has a code."""
    # The same filter as in the tests: ldap3 reads two names that pyasn1 has renamed.
    warnings.filterwarnings("ignore", "(tagMap|typeMap) is deprecated", DeprecationWarning)
    count, edits = (500, 10) if report.quick else (10_000, 100)
    paths, level = list[str](), [""]
    while len(paths) < count:
        level = [f"{above}/t{n}" if above else f"t{n}" for above in level for n in range(10)]
        paths += level
    records = [TopicRecord(TopicPath(path), code=f"c{number}") for number, path in enumerate(paths[:count])]
    title, columns = f"{count:,} topics in a directory", ("what", "OpenLDAP", "LDIF file")
    with report.table(title, *columns) as table, tempfile.TemporaryDirectory(prefix="slapd-") as folder:
        server = slapd.create(slapd.provision(lambda line: None), Path(folder) / "s")
        server.start()
        try:
            server.seed()
            ldap, path = LdapDirectory(server.settings()), Path(folder) / "topics.ldif"
            file = partial(FileDirectory, path, DirectorySettings(poll_interval_s=0.05))
            puts, one = [Put(each) for each in records], [Put(TopicRecord(TopicPath("one"), code="one"))]
            ways: tuple[LdapDirectory | FileDirectory, ...] = ldap, file()
            table.add("write all, s", *(seconds(partial(each.write, puts, each.load())) for each in ways))
            table.add("load, best of 3, s", seconds(ldap.load, 3), seconds(lambda: file().load(), 3))
            added = [seconds(partial(each.write, one, each.load())) * 1e3 for each in ways]
            table.add("write one more topic, ms", *added)
            table.add("size of the file, MB", None, path.stat().st_size / 1e6)
            found = _edits(server, ldap, TopicPath("t0/t1"), edits)
            table.add(f"from an edit to the control log, median of {edits}, ms", statistics.median(found), None)
            table.add("from an edit to the control log, slowest, ms", max(found), None)
        finally:
            server.kill()


def _edits(server: slapd.Slapd, directory: LdapDirectory, path: TopicPath, count: int) -> list[float]:
    """Milliseconds until a manual edit of this topic is in the control log."""
    log, found = Log(), []
    log.sync = DirectorySync(directory, log.append)
    log.sync.start()
    dn = ",".join(f"topicName={step}" for step in reversed(path.split("/"))) + f",{slapd.BASE_DN}"
    try:
        wait_for(lambda: path in log.topics(), "all topics are synchronized")
        with server.admin() as person:
            for number in range(-1, count):
                code, started = f"edited{number}", time.monotonic()
                person.modify(dn, {"topicCode": [("MODIFY_REPLACE", [code])]})
                wait_for(partial(_has_code, log, code), "the edit is known", every_s=0.002)
                if number >= 0:  # the first one waits for the stream
                    found.append((time.monotonic() - started) * 1e3)
    finally:
        log.sync.close()
    return found


def _has_code(log: Log, code: str) -> bool:
    return bool(log.tree.paths_with_code(code))


def _push(transport: Transport, request: PushRequest, count: int) -> None:
    begun = 0
    while begun < count or transport.in_flight:
        while begun < count and transport.in_flight < 64:
            transport.submit(request, lambda _: None)
            begun += 1
        transport.drive(1.0)


def _each(action: Callable[[], object], count: int) -> float:
    """Microseconds."""
    return seconds(lambda: [action() for _ in range(count)], 3) / count * 1e6


CASES = {
    "match": _match,
    "apply": _apply,
    "snapshot": _snapshot,
    "steps": _steps,
    "directory": _directory,
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))


def measure(report: Report) -> None:
    for case in report.options.cases or CASES:
        CASES[case](report)


if __name__ == "__main__":
    run(measure, options)
