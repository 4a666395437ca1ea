"""How long a topic tree takes to come in, and an edit to get through: `python -m benchmarks.model.ldap_directory`.

A real slapd on loopback, and the LDIF file beside it. The tree has branches of ten, five levels deep.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from arborcast.directory.entries.changes import Put
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.contract import Directory
from arborcast.directory.stores.file import FileDirectory
from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.sync.sync import DirectorySync
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run
from tests.support import slapd as support
from tests.support.directory import Log, Watch, eventually
from tests.support.slapd_provision import provision


def make_topics(count: int) -> list[TopicRecord]:
    """`count` topics in branches of ten, each with a code."""
    paths: list[str] = []
    level = [""]
    while len(paths) < count:
        level = [f"{above}/t{n}" if above else f"t{n}" for above in level for n in range(10)]
        paths += level
    return [TopicRecord(TopicPath(path), code=f"c{number}") for number, path in enumerate(paths[:count])]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str


def delays(name: str, seconds: Sequence[float]) -> list[Row]:
    ordered = sorted(seconds)
    return [
        Row(f"{name}, median of {len(ordered)}", statistics.median(ordered) * 1000, "ms"),
        Row(f"{name}, slowest", ordered[-1] * 1000, "ms"),
    ]


def measure_ldap(topics: int, edits: int) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="slapd-") as home:
        server = support.create(provision(lambda line: None), Path(home) / "s")
        server.start()
        try:
            server.seed()
            records = make_topics(topics)
            directory = LdapDirectory(server.settings())
            empty = directory.load()
            changes = [Put(record) for record in records]
            took = timed(lambda: directory.write(changes, empty))
            rows.append(Row(f"write {topics} topics into an empty server", took, "s"))
            loads = [timed(directory.load) for _ in range(3)]
            rows.append(Row(f"load {topics} topics, median of 3", statistics.median(loads), "s"))
            rows += delays("ldapmodify to callback", _edit_delays(server, directory, edits, topics))
            directory.close()
            rows += delays("ldapmodify to control log", _sync_delays(server, records, edits))
        finally:
            server.kill()
    return rows


def _edit_delays(server: support.Slapd, directory: LdapDirectory, edits: int, topics: int) -> list[float]:
    watch = Watch()
    directory.watch(watch)
    watch.wait(lambda listing: len(listing.entries) == topics, timeout=60)
    path = TopicPath("t0/t1")
    found = []
    with server.admin() as person:
        for number in range(-1, edits):
            code = f"edit{number}"
            started = time.monotonic()
            person.modify(f"topicName=t1,topicName=t0,{support.BASE_DN}", {"topicCode": [("MODIFY_REPLACE", [code])]})
            when, _ = watch.wait(lambda listing, code=code: listing.entries[path].record.code == code)  # type: ignore[misc]
            if number >= 0:  # the first one waits for the stream to be there
                found.append(when - started)
    return found


def _sync_delays(server: support.Slapd, records: Sequence[TopicRecord], edits: int) -> list[float]:
    log = Log()
    sync = DirectorySync(LdapDirectory(server.settings()), log.append)
    log.sync = sync
    sync.start()
    path = TopicPath("t0/t1")
    found = []
    try:
        eventually(lambda: len(log.tree) == len(records), timeout=60)
        with server.admin() as person:
            for number in range(-1, edits):
                code = f"sync{number}"
                started = time.monotonic()
                attribute = {"topicCode": [("MODIFY_REPLACE", [code])]}
                person.modify(f"topicName=t1,topicName=t0,{support.BASE_DN}", attribute)
                eventually(lambda code=code: bool(log.tree.paths_with_code(code)))  # type: ignore[misc]
                if number >= 0:
                    found.append(time.monotonic() - started)
                assert log.tree.get(path) is not None
    finally:
        sync.close()
    return found


def measure_file(topics: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "topics.ldif"
        records = make_topics(topics)
        settings = DirectorySettings(poll_interval_s=0.05)

        def opened() -> Directory:
            return FileDirectory(path, settings)

        directory = opened()
        empty = directory.load()
        write_all = timed(lambda: directory.write([Put(record) for record in records], empty))
        load = statistics.median(timed(lambda: opened().load()) for _ in range(3))
        seen = directory.load()
        write_one = timed(lambda: directory.write([Put(TopicRecord(TopicPath("one"), code="one"))], seen))
        return [
            Row(f"file: write {topics} topics", write_all, "s"),
            Row(f"file: load {topics} topics, median of 3", load, "s"),
            Row(f"file: write one more topic beside {topics}", write_one * 1000, "ms"),
            Row("file: size", path.stat().st_size / 1e6, "MB"),
        ]


def measure(report: Report) -> None:
    topics, edits = (500, 10) if report.quick else (10_000, 100)
    with report.table("OpenLDAP on loopback", "what", "figure", "unit") as table:
        for row in measure_ldap(topics, edits):
            table.add(*dataclasses.astuple(row))
    with report.table("LDIF file", "what", "figure", "unit") as table:
        for row in measure_file(topics):
            table.add(*dataclasses.astuple(row))


if __name__ == "__main__":
    # The same filter as in the tests: ldap3 reads two names that pyasn1 has renamed.
    warnings.filterwarnings("ignore", "(tagMap|typeMap) is deprecated", DeprecationWarning)
    run(measure)
