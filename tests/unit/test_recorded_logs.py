"""Logs as an earlier version wrote them, read and folded by this one.

An archive has every record kind of every log, with the folded state. It is never changed: a new kind of record, or a
new version of a format, gets an archive beside the earlier ones:

    python -m tests.unit.test_recorded_logs NAME    # writes recorded_logs/NAME.json, from the forms of the tests
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from arborcast.core.eventlog.topics import specifications
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts, parked
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.operations.audit.ledger import Ledger
from arborcast.dispatch.recording.archive import notification_rows
from arborcast.dispatch.recording.folds import (
    DeadLettersFold,
    ErasuresFold,
    IncompleteFold,
    OperationsFold,
    RetriesFold,
    SubscriptionsFold,
    SuspensionsFold,
    TopicsFold,
)
from arborcast.dispatch.recording.state_tables import RowChanges, TableFold, apply
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.pull_points import PullPoints
from arborcast.topic_model.projections.pull_store import PullLimits, PullStore
from arborcast.topic_model.projections.registrations import Registrations
from arborcast.topic_model.records import control, fragments, notifications, operations, pull, results
from arborcast.topic_model.topics import TopicPath
from tests.support.listed_logs import Listed
from tests.unit.test_record_versions import KINDS, LOGS

FOLDER = Path(__file__).with_name("recorded_logs")


class Kept(NamedTuple):
    """A record of a log."""

    key: bytes
    value: bytes | None


class Archive(msgspec.Struct):
    """Records by log, and their folded state."""

    logs: dict[str, list[Kept]]
    folds: dict[str, Any]


DELIVERY = Delivery("s1", Place(7, 0, 3))

# The keys of records that a record does not determine.
KEYS: Mapping[str, Callable[[Any], bytes]] = {
    "control": lambda read: control.encode(read)[0],
    "notifications": lambda read: notifications.encode(read)[0],
    "retained": lambda read: notifications.encode(read)[0],
    "attempts": lambda read: attempts.key_of(read[0][0].batch if read[0] else read[1].batch),
    "parked": lambda read: DELIVERY.tried_key() if isinstance(read, parked.Tried) else DELIVERY.key(),
    "dead": lambda read: DELIVERY.key(),
    "pullpoints": lambda read: pull.encode(*read)[0],
    "fragments": lambda read: fragments.encode(read)[0],
    "results": lambda read: results.encode(read)[0],
    "operations": lambda read: operations.encode(read)[0],
}

# A number of one digit is the key of `feed` and `progress`; those of the leases are constants.
OTHER_KEY = b"1"


def log_of(name: str) -> str:
    """The log in `LOGS` with the format of this one."""
    return {"retained": "notifications"}.get(name, name)


def written(name: str) -> Iterator[Kept]:
    """Records of each kind, from the forms of `test_record_versions`."""
    log = LOGS[log_of(name)]
    for form in log.forms:
        value = log.pack(form)
        yield Kept(KEYS.get(name, lambda _: OTHER_KEY)(log.read(value)), value)
    if name == "control":
        # Entities that still exist when those above have ended.
        for form in log.forms:
            text = log.pack(form).decode().replace('"s1"', '"s2"').replace('"p1"', '"p2"').replace('"r1"', '"r2"')
            record = control.decode(b"topic:x", text.encode())
            if type(record).__name__ in ("SubscriptionRecord", "PullPointRecord", "RegistrationRecord", "TopicRecord"):
                yield Kept(*control.encode(record))
        yield Kept(*control.encode(control.Tombstone.of("sub", "s1")))
    if name == "parked":
        yield Kept(b"s2\t7.0.4", next(written("parked")).value)
        yield Kept(b"s2\t7.0.4", None)


def rows(fold: TableFold, records: Iterable[Listed]) -> list[Any]:
    """The rows of a table after these records."""
    changes, key, columns = RowChanges(fold), fold.spec.key, dict.fromkeys(each.name for each in fold.spec.columns)
    for record in records:
        apply(fold, record, changes, "recorded")
    return [columns | row | {key: name, "_operation": operation} for name, operation, row in changes]


def control_state(records: list[Listed]) -> Any:
    pull_points, registrations = PullPoints(), Registrations()
    view = ControlView(pull_points, registrations)
    for each in records:
        view.apply(control.decode(each.key, each.value), each.offset)
    table = view.table
    return {
        "topics": sorted(table.topics.records(), key=lambda each: each.path),
        "subscriptions": sorted(table.subscriptions(), key=lambda each: each.id),
        "matches": {path: sorted(each.id for each in table.match(TopicPath(path))) for path in ("a/b", "{urn:t}a")},
        "suspended": sorted(view.suspensions.ids()),
        "registration": registrations.get("r2"),
        "erasures": view.erasures.all(),
        "cameras": [[each, view.cameras.state(each.name)] for each in view.cameras],
        "tables": [
            rows(fold, records) for fold in (TopicsFold(), SubscriptionsFold(), SuspensionsFold(), ErasuresFold())
        ],
    }


def pulled(records: list[Listed]) -> Any:
    store = PullStore(PullLimits(1_000, 1_000_000, 1_000_000))
    for each in records:
        store.apply(*pull.decode(each.key, each.value), each.offset)
    return {name: [each.offset for each in store.head(name, 100, 1_000_000)] for name in sorted(store.ids())}


def audited(records: list[Listed]) -> Any:
    ledger = Ledger()
    for each in records:
        ledger.add(each.value, each.timestamp)
    evaluations = ledger.evaluations()
    return {
        "rows": rows_of(each.value or b"" for each in records).to_pylist(),
        "states": sorted(ledger.deliveries().state.tolist()),
        "evaluated": list(zip(evaluations.offset.tolist(), evaluations.least.tolist(), strict=True)),
    }


FOLDS: Mapping[str, Callable[[list[Listed]], Any]] = {
    "control": control_state,
    "notifications": lambda records: notification_rows(records, 0).to_pylist(),
    "attempts": audited,
    "parked": lambda records: rows(RetriesFold(), records),
    "dead": lambda records: rows(DeadLettersFold(), records),
    "fragments": lambda records: rows(IncompleteFold(), records),
    "pullpoints": pulled,
    "operations": lambda records: rows(OperationsFold(), records),
}


def folded(name: str, kept: Iterable[Kept]) -> Any:
    """The records as read, and their folded state; as JSON."""
    records = [Listed(each.key, each.value, offset, 1_000) for offset, each in enumerate(kept)]
    read = LOGS[log_of(name)].read
    made = {"read": [read(each.value) for each in records if each.value is not None]}
    if name in FOLDS:
        made["folded"] = FOLDS[name](records)
    return msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(made, enc_hook=vars, str_keys=True)))


def names() -> list[str]:
    prefix = KafkaSettings().prefix
    return [each.name.removeprefix(prefix) for each in specifications(KafkaSettings())]


def archives() -> dict[str, Archive]:
    files = sorted(FOLDER.glob("*.json"))
    return {file.stem: msgspec.json.decode(file.read_bytes(), type=Archive) for file in files}


ARCHIVES = archives()


def covers(found: Any, expected: Any) -> bool:
    """Whether a value is as expected, perhaps with further fields of a later version."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and covers(found[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) >= len(expected) and all(map(covers, found, expected))
    return bool(found == expected)


@pytest.mark.parametrize("archive", ARCHIVES)
@pytest.mark.parametrize("name", names())
def test_logs_of_each_version_fold_to_the_same(archive: str, name: str) -> None:
    kept = ARCHIVES[archive]
    if name not in kept.logs:
        pytest.skip("a log of a later version")
    found = folded(name, kept.logs[name])
    assert len(found["read"]) == sum(each.value is not None for each in kept.logs[name])
    expected = kept.folds[name]
    if name in ("parked", "dead"):
        # Rows of the first version had their messages.
        messages = {"payload", "producer"}
        without = [{key: value for key, value in row.items() if key not in messages} for row in expected["folded"]]
        expected = {**expected, "folded": without}
    assert covers(found, expected)


def kinds_in(name: str, kept: Iterable[Kept]) -> set[str]:
    """The kinds of these records: types, and the variants within a type."""
    found: set[str] = set()
    for each in kept:
        if each.value is None:
            found.add("Tombstone" if name == "control" else "null")
            continue
        read = LOGS[log_of(name)].read(each.value)
        for one in read if isinstance(read, tuple) and not hasattr(read, "_fields") else (read,):
            found |= {type(part).__name__ for part in (one if isinstance(one, list) else (one,))}
            for part in one if isinstance(one, list) else (one,):
                found |= {word for word in (getattr(part, "kind", ""), getattr(part, "state", "")) if word}
    return found


WANTED: Mapping[str, set[str]] = {
    "control": {each.__name__ for each in get_args(control.ControlRecord)},
    "attempts": {*get_args(attempts.State), "Attempt", "Evaluation"},
    "parked": {"Parked", "Tried", "null"},
    "pullpoints": {each.__name__ for each in get_args(pull.PullRecord)},
    "fragments": {each.__name__ for each in get_args(fragments.FragmentRecord)},
    "operations": {"OperationBegun", "OperationEnded"},
    "lease": set(KINDS),
    "dispatch-lease": set(KINDS),
}


@pytest.mark.parametrize("name", names())
def test_each_kind_of_record_of_each_log_has_a_sample(name: str) -> None:
    there = [kept.logs[name] for kept in ARCHIVES.values() if name in kept.logs]
    found = set().union(*(kinds_in(name, each) for each in there)) if there else set()
    assert found, f"no archive has the log {name}: python -m tests.unit.test_recorded_logs NAME writes one"
    assert WANTED.get(name, set()) <= found, "python -m tests.unit.test_recorded_logs NAME writes an archive with it"


def test_a_different_state_is_found() -> None:
    assert covers({"a": [1, {"b": 2, "c": 3}], "d": 4}, {"a": [1, {"b": 2}]})
    assert not covers({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
    assert not covers({"a": [1]}, {"a": [1, 2]})
    assert not covers({}, {"a": None})


def main(name: str) -> None:
    """Write an archive of all logs in the formats of this version."""
    file = FOLDER / f"{name}.json"
    if file.exists():
        sys.exit(f"{file} is there: an archive is never changed; choose another name")
    FOLDER.mkdir(exist_ok=True)
    logs = {each: list(written(each)) for each in names()}
    made = Archive(logs, {each: folded(each, kept) for each, kept in logs.items()})
    file.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
