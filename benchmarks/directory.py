"""The time to read a topic tree from a directory, and to apply an edit: slapd on loopback, and an LDIF file.

    python -m benchmarks.directory [--quick] [--json FILE]

The tree has branches of ten, five levels deep.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from arborcast.directory.entries.changes import Put
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.file import FileDirectory
from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.sync.sync import DirectorySync
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, Table, run, seconds, wait_for
from tests.support import slapd as support
from tests.support.directory import Log, Watch
from tests.support.slapd import provision


def topics(count: int) -> list[TopicRecord]:
    """`count` topics in branches of ten, each with a code."""
    paths: list[str] = []
    level = [""]
    while len(paths) < count:
        level = [f"{above}/t{n}" if above else f"t{n}" for above in level for n in range(10)]
        paths += level
    return [TopicRecord(TopicPath(path), code=f"c{number}") for number, path in enumerate(paths[:count])]


def measure(report: Report) -> None:
    # The same filter as in the tests: ldap3 reads two names that pyasn1 has renamed.
    warnings.filterwarnings("ignore", "(tagMap|typeMap) is deprecated", DeprecationWarning)
    count, edits = (500, 10) if report.quick else (10_000, 100)
    with report.table(f"OpenLDAP on loopback, {count:,} topics", "what", "figure") as table:
        _ldap(table, topics(count), edits)
    with report.table(f"LDIF file, {count:,} topics", "what", "figure") as table:
        _file(table, topics(count))


def _ldap(table: Table, records: list[TopicRecord], edits: int) -> None:
    with tempfile.TemporaryDirectory(prefix="slapd-") as home:
        server = support.create(provision(lambda line: None), Path(home) / "s")
        server.start()
        try:
            server.seed()
            directory = LdapDirectory(server.settings())
            empty = directory.load()
            table.add("write all, s", seconds(lambda: directory.write([Put(each) for each in records], empty)))
            table.add("load, best of 3, s", seconds(directory.load, 3))
            watch, path = Watch(), TopicPath("t0/t1")
            directory.watch(watch)
            watch.wait(lambda listing: len(listing.entries) == len(records), timeout=60)

            def seen(code: str) -> bool:
                watch.wait(lambda listing: listing.entries[path].record.code == code)
                return True

            _edits(table, "from an edit to the callback", server, edits, seen)
            directory.close()
            log = Log()
            log.sync = DirectorySync(LdapDirectory(server.settings()), log.append)
            log.sync.start()
            try:
                wait_for(lambda: len(log.tree) == len(records), "all topics are synchronized")

                def known(code: str) -> bool:
                    return bool(log.tree.paths_with_code(code))

                _edits(table, "from an edit to the control log", server, edits, known)
            finally:
                log.sync.close()
        finally:
            server.kill()


def _edits(table: Table, what: str, server: support.Slapd, count: int, seen: Callable[[str], bool]) -> None:
    found = []
    with server.admin() as person:
        for number in range(-1, count):
            code, started = f"{what[-3:]}{number}", time.monotonic()
            person.modify(f"topicName=t1,topicName=t0,{support.BASE_DN}", {"topicCode": [("MODIFY_REPLACE", [code])]})
            wait_for(partial(seen, code), what, every_s=0.002)
            if number >= 0:  # the first one waits for the stream
                found.append((time.monotonic() - started) * 1e3)
    table.add(f"{what}, median of {count}, ms", statistics.median(found))
    table.add(f"{what}, slowest, ms", max(found))


def _file(table: Table, records: list[TopicRecord]) -> None:
    with tempfile.TemporaryDirectory() as home:
        path, settings = Path(home) / "topics.ldif", DirectorySettings(poll_interval_s=0.05)
        directory = FileDirectory(path, settings)
        empty = directory.load()
        table.add("write all, s", seconds(lambda: directory.write([Put(each) for each in records], empty)))
        table.add("load, best of 3, s", seconds(lambda: FileDirectory(path, settings).load(), 3))
        known = directory.load()
        one = [Put(TopicRecord(TopicPath("one"), code="one"))]
        table.add("write one more topic, ms", seconds(lambda: directory.write(one, known)) * 1e3)
        table.add("size, MB", path.stat().st_size / 1e6)


if __name__ == "__main__":
    run(measure)
