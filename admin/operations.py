"""Operations of operators: each change is recorded before it is made, and its result afterwards."""

from __future__ import annotations

import getpass
import os
import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec

from arborcast.admin import connection, control_log
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.eventlog.topics import OPERATIONS_LOG
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.engine.embedded.home import make_home
from arborcast.engine.embedded.pending_operations import store_pending
from arborcast.engine.settings.loading import Settings
from arborcast.topic_model.control_log import OperationsLog
from arborcast.topic_model.records import operations
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.records.operations import (
    OperationBegun,
    OperationEnded,
    Operator,
    RecordedChange,
    change,
    control_changes,
)


class Recorded(msgspec.Struct, frozen=True):
    at_ms: int
    interface: str
    actor: str
    action: str
    subject: str
    before: str
    after: str
    more: int
    result: str


def this_user() -> Operator:
    """The user of this process, at this machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"  # it has no name here, as in a container
    behind = os.environ.get("SUDO_USER", "")
    return Operator("command", f"{name}@{platform.node()}" + (f" (sudo of {behind})" if behind else ""))


@contextmanager
def recorded(
    kafka: KafkaSettings, action: str, changes: Sequence[RecordedChange], by: Operator | None = None, more: int = 0
) -> Iterator[list[str]]:
    """A context that records the operation made in it; see `OperationsLog.recorded`. `by` is by default the user of
    this process."""
    operation = operations.begun(by or this_user(), action, changes, more)
    with closing(OperationsLog(kafka)) as log, log.recorded(operation) as results:
        yield results


@contextmanager
def recorded_file(settings: Settings, action: str, *changes: RecordedChange) -> Iterator[None]:
    """The same for a change of a file, which needs no Kafka: without a broker the record is stored in the data
    directory, and the next gateway that starts there appends it. Raises OSError."""
    try:
        kafka = connection.kafka_of(settings)
    except InfrastructureError:
        operation = operations.begun(this_user(), action, changes)
        yield
        make_home(settings.home, settings.stack.home_access)
        store_pending(settings.home, (operation, operations.ended(operation, "done")))
        return
    with recorded(kafka, action, changes):
        yield


def commit(
    kafka: KafkaSettings,
    action: str,
    records: Sequence[ControlRecord],
    before: Callable[[str], object],
    progress: Progress = no_progress,
) -> None:
    """Append the control records of an operation, which is recorded with the former values of their topics and
    subscriptions; without records there is none. Raises InfrastructureError: the same operation again completes it."""
    if records:
        changes, more = control_changes(records, before)
        with recorded(kafka, action, changes, more=more):
            control_log.append(kafka, records, progress)


class OperationFilter(NamedTuple):
    """A selection of changes; an empty field selects all. `actor`, `action` and `subject` are parts of the text."""

    since_ms: int = 0
    actor: str = ""
    action: str = ""
    subject: str = ""

    def includes(self, one: Recorded) -> bool:
        return (
            one.at_ms >= self.since_ms
            and self.actor in one.actor
            and self.action in one.action
            and self.subject in one.subject
        )


def _decoded(record: ConsumerRecord) -> OperationBegun | OperationEnded | None:
    return unless_damaged(OPERATIONS_LOG, record.offset, operations.decode, record.value)


def _changes_in(read: OperationBegun) -> Iterator[Recorded]:
    for number, each in enumerate(read.changes or (change(""),)):
        more = 0 if number else read.more
        yield Recorded(
            read.at_ms, read.interface, read.actor, read.action, each.subject, each.before, each.after, more, ""
        )


def listed(kafka: KafkaSettings, selection: OperationFilter, limit: int) -> tuple[list[Recorded], int]:
    """The newest changes in the log, the newest first, and the number of the others. Raises InfrastructureError,
    RecordVersionError."""
    found: deque[tuple[str, Recorded]] = deque(maxlen=limit)
    results: dict[str, str] = {}
    count = 0
    with LogScan(kafka, OPERATIONS_LOG) as log:
        for record in log.read_from(log.at(max(0, selection.since_ms - CLOCKS_APART_MS))):
            read = _decoded(record)
            if isinstance(read, OperationEnded):
                results[read.id] = read.result
            elif read is not None:
                included = [(read.id, one) for one in _changes_in(read) if selection.includes(one)]
                found.extend(included)
                count += len(included)
    newest = [msgspec.structs.replace(one, result=results.get(name, "")) for name, one in reversed(found)]
    return newest, count - len(newest)


def unfinished(kafka: KafkaSettings, action: str) -> set[RecordedChange]:
    """The changes of operations of this kind in the log that have no result, or failed. Raises as `listed`."""
    found: dict[str, set[RecordedChange]] = {}
    with LogScan(kafka, OPERATIONS_LOG) as log:
        for read in map(_decoded, log.read_all()):
            if isinstance(read, OperationBegun) and read.action == action:
                found.setdefault(read.id, set()).update(read.changes)
            elif isinstance(read, OperationEnded) and read.succeeded:
                found.pop(read.id, None)
    return set().union(*found.values())


class ChangesPlace(NamedTuple):
    """A place in the log: the offset behind the earlier records, and results of operations among these."""

    end: int
    results: Mapping[str, str]


def earlier(
    kafka: KafkaSettings, selection: OperationFilter, records: int, place: ChangesPlace | None = None
) -> tuple[list[Recorded], ChangesPlace | None]:
    """The changes in this number of records before a place, by default the end of the log, the newest first; and the
    place of the others, None without any. Raises as `listed`."""
    with LogScan(kafka, OPERATIONS_LOG) as log:
        ((partition, first),) = log.at(max(0, selection.since_ms - CLOCKS_APART_MS)).items()
        end = log.ends()[partition] if place is None else place.end
        begin = max(first, end - records)
        decoded = [_decoded(each) for each in log.read({partition: OffsetRange(begin, end)})] if begin < end else []
    found: list[Recorded] = []
    results = {} if place is None else dict(place.results)
    for read in reversed(decoded):
        if isinstance(read, OperationEnded):
            results[read.id] = read.result
        if not isinstance(read, OperationBegun):
            continue
        # A result is behind the records of its operation.
        result = results.get(read.id, "") if read.first else results.pop(read.id, "")
        changes = [msgspec.structs.replace(each, result=result) for each in _changes_in(read)]
        found += filter(selection.includes, reversed(changes))
    return found, ChangesPlace(begin, results) if begin > first else None
