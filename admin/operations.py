"""Operations of operators: each change is recorded before it is made, and its result afterwards."""

from __future__ import annotations

import getpass
import os
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec

from arborcast.admin import connection
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import OPERATIONS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.engine.embedded.home import make_home
from arborcast.engine.embedded.pending_operations import store_pending
from arborcast.engine.settings.loading import Settings
from arborcast.topic_model.control_log import OperationsLog
from arborcast.topic_model.records import operations
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.records.operations import OperationEnded, Operator, RecordedChange, change, control_changes


class Recorded(msgspec.Struct, frozen=True):
    """A listed change."""

    at_ms: int
    door: str
    who: str
    what: str
    subject: str
    before: str
    after: str
    more: int
    result: str


def this_user() -> Operator:
    """The user of this process, at this machine."""
    name = getpass.getuser()
    behind = os.environ.get("SUDO_USER", "")
    return Operator("command", f"{name}@{platform.node()}" + (f" (sudo of {behind})" if behind else ""))


@contextmanager
def recorded(
    kafka: KafkaSettings, what: str, changes: Sequence[RecordedChange], by: Operator | None = None, more: int = 0
) -> Iterator[list[str]]:
    """A context that records the operation made in it; see `OperationsLog.recorded`. `by` is by default the user of
    this process."""
    operation = operations.begun(by or this_user(), what, changes, more)
    with closing(OperationsLog(kafka)) as log, log.recorded(operation) as results:
        yield results


@contextmanager
def recorded_file(settings: Settings, what: str, *changes: RecordedChange) -> Iterator[None]:
    """The same for a change of a file, which needs no Kafka: without a broker the record is stored in the data
    directory, and the next gateway that starts there appends it. Raises OSError."""
    try:
        kafka = connection.kafka_of(settings)
    except InfrastructureError:
        operation = operations.begun(this_user(), what, changes)
        yield
        make_home(settings.home, settings.stack.home_access)
        store_pending(settings.home, (operation, operations.ended(operation, "done")))
        return
    with recorded(kafka, what, changes):
        yield


@contextmanager
def recorded_control(
    kafka: KafkaSettings,
    what: str,
    records: Iterable[ControlRecord],
    before: Callable[[str], object],
    by: Operator | None = None,
) -> Iterator[list[str]]:
    """The same for control records, with the former values of their topics and subscriptions."""
    changes, more = control_changes(records, before)
    with recorded(kafka, what, changes, by, more) as results:
        yield results


class OperationFilter(NamedTuple):
    """A selection of changes; an empty field selects all. `who`, `what` and `subject` are parts of the text."""

    since_ms: int = 0
    who: str = ""
    what: str = ""
    subject: str = ""

    def includes(self, one: Recorded) -> bool:
        return (
            one.at_ms >= self.since_ms and self.who in one.who and self.what in one.what and self.subject in one.subject
        )


def listed(
    kafka: KafkaSettings, selection: OperationFilter, limit: int, before: int | None = None
) -> tuple[list[Recorded], int]:
    """The newest changes in the log, the newest first, and the number of the others. With `before` only the oldest so
    many are listed: the number of the others lists the next part. Raises InfrastructureError, RecordVersionError."""
    found: deque[tuple[str, Recorded]] = deque(maxlen=limit)
    results: dict[str, str] = {}
    count = 0
    with LogScan(kafka, OPERATIONS_LOG) as log:
        for record in log.read_from(log.at(max(0, selection.since_ms - CLOCKS_APART_MS))):
            read = operations.decode(record.value)
            if isinstance(read, OperationEnded):
                results[read.id] = read.result
                continue
            for each in read.changes or (change(""),):
                more = read.more if each is read.changes[0] else 0
                one = Recorded(
                    read.at_ms, read.door, read.who, read.what, each.subject, each.before, each.after, more, ""
                )
                if selection.includes(one) and (before is None or count < before):
                    found.append((read.id, one))
                    count += 1
    newest = [msgspec.structs.replace(one, result=results.get(name, "")) for name, one in reversed(found)]
    return newest, count - len(newest)
