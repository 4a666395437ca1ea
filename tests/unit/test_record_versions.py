"""Upgrade and rollback: every log can be read in both orders, by the newer and by the older.

The older forms are written out field by field, as the first release of each wrote them: nothing here is encoded by the
code that is tested, so a field that loses its default, or a value that is no longer known, fails.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.dispatch.job import lease as job_lease
from arborcast.dispatch.logs import attempts, dead_letters, parked
from arborcast.dispatch.operations.audit import ledger
from arborcast.dispatch.realtime import messages
from arborcast.dispatch.recording.archive import notification_rows
from arborcast.dispatch.recording.folds import DeadLettersFold, RetriesFold, SubscriptionsFold
from arborcast.dispatch.recording.state_tables import RowChanges, TableFold, apply
from arborcast.engine.gateway import lease
from arborcast.topic_model.records import control, fragments, notifications, pull, results
from tests.support.table_rows import Logged


class Log(NamedTuple):
    """How one log is read, and what its records looked like. `key` is one that belongs to them."""

    encode: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    version: int
    version_field: str
    older: list[dict[str, Any]]


_json, _packed = msgspec.json.encode, msgspec.msgpack.encode

NOTIFICATION: dict[str, Any] = {"id": "n1", "topic": "a/b", "payload": b"<x/>", "accepted_ms": 1}
ATTEMPT: dict[str, Any] = {
    "notification": "n1",
    "subscription": "s1",
    "topic": "a/b",
    "endpoint": "http://h/",
    "number": 1,
    "push": "p1",
    "accepted_ms": 1,
    "started_ms": 2,
    "duration_ms": 0.5,
}
LETTER: dict[str, Any] = {
    "subscription": "s1",
    "endpoint": "http://h/",
    "notification": NOTIFICATION,
    "at_ms": 5,
    "number": 6,
}
SUBSCRIPTION: dict[str, Any] = {"id": "s1", "consumer": {"address": "http://h/"}}
CONTROL: list[dict[str, Any]] = [
    {"v": 1, "record": {"type": "topic", "path": "a/b", "code": "C"}},
    {"v": 1, "record": {"type": "topic", "path": "{urn:t}a", "prefixes": "t"}},
    {"v": 1, "record": {"type": "topic", "path": "a/b", "code": "1.1", "placed": True}},
    {"v": 1, "record": {"type": "topic-removed", "path": "a/b"}},
    {"v": 1, "record": {"type": "subscription", "subscription": SUBSCRIPTION}},
    {"v": 1, "record": {"type": "subscription-ended", "id": "s1", "reason": "expired", "at_ms": 1}},
    {"v": 1, "record": {"type": "pull-point", "id": "p1", "address": "http://g/p1"}},
    {"v": 1, "record": {"type": "pull-point-ended", "id": "p1", "reason": "destroyed", "at_ms": 1}},
    {"v": 1, "record": {"type": "registration", "registration": {"id": "r1", "address": "http://g/r1"}}},
    {"v": 1, "record": {"type": "registration-ended", "id": "r1", "reason": "destroyed", "at_ms": 1}},
    {
        "v": 2,
        "record": {
            "type": "subscription",
            "subscription": SUBSCRIPTION | {"protection": {"secrets": [{"sealed": "k:x"}]}},
        },
    },
    {"v": 2, "record": {"type": "subscription-suspended", "id": "s1", "reason": "away", "since_ms": 1, "at_ms": 2}},
    {
        "v": 2,
        "record": {
            "type": "subscription-suspended",
            "id": "s1",
            "reason": "costly",
            "since_ms": 1,
            "at_ms": 2,
            "cause": "conditions",
        },
    },
    {"v": 3, "record": {"type": "secrets-resealed", "id": "s1", "sealed": {"k1:x": "k2:y"}}},
    {"v": 4, "record": {"type": "pull-point", "id": "p1", "address": "http://g/p1", "until_ms": 9}},
    {
        "v": 4,
        "record": {"type": "subscription", "subscription": SUBSCRIPTION | {"endpoint": {"id": "p1", "name": "n"}}},
    },
    {"v": 5, "record": {"type": "topic-places", "path": "a", "place": "1", "last": 2, "used": True}},
    {"v": 6, "record": {"type": "subscription", "subscription": SUBSCRIPTION | {"types": ["{urn:t}a"]}}},
    {"v": 7, "record": {"type": "subscription", "subscription": SUBSCRIPTION | {"policy": {"interval_ms": 1000}}}},
    {
        "v": 8,
        "record": {
            "type": "trigger",
            "subscription": SUBSCRIPTION | {"trigger": {"name": "n", "topic": "a/b", "payload": "<x/>", "type": "x"}},
        },
    },
    {"v": 8, "record": {"type": "trigger-ended", "id": "s1", "reason": "removed", "at_ms": 1}},
    {"v": 8, "record": {"type": "subscription", "subscription": SUBSCRIPTION | {"policy": {"fragment_bytes": 3000}}}},
    {"v": 9, "record": {"type": "subscription", "subscription": SUBSCRIPTION | {"queue": 2}}},
    {"v": 9, "record": {"type": "topic", "path": "a/b", "policy": {"queue": True, "merge": False}}},
    {
        "v": 10,
        "record": {
            "type": "subscription",
            "subscription": SUBSCRIPTION | {"form": "peer", "peer": {"own": "G/a", "to": "G/b"}},
        },
    },
    {
        "v": 11,
        "record": {
            "type": "subscription",
            "subscription": SUBSCRIPTION
            | {"form": "peer", "peer": {"own": "G/a", "to": "G/b", "datagrams": "without"}},
        },
    },
    {"v": 10, "record": {"type": "peer-interest", "peer": "G/b", "sender": "G/b", "version": 1, "topics": ["a//."]}},
]
NOTIFICATIONS: list[dict[str, Any]] = [
    {"v": 1, "notification": NOTIFICATION},
    {"v": 1, "notification": NOTIFICATION | {"producer": b"<p/>", "message_id": "m", "publisher": "somebody"}},
    {"v": 1, "notification": NOTIFICATION | {"topic": "{urn:t}a", "control": 7, "prefixes": "t"}},
    {"v": 2, "notification": NOTIFICATION | {"only": "s1"}},
    {"v": 3, "notification": NOTIFICATION | {"id": "n1~r1", "only": "s1", "replay": "r1"}},
    {"v": 4, "notification": NOTIFICATION | {"unjudged": True}},
    {"v": 5, "notification": NOTIFICATION | {"subject": b"<e/>"}},
    {"v": 6, "notification": NOTIFICATION | {"only": "s1", "selector": "a//."}},
    {"v": 7, "notification": NOTIFICATION | {"valid_until_ms": 9, "type": "{urn:t}e"}},
    {"v": 8, "notification": NOTIFICATION | {"priority": 5, "reliable": True}},
    {"v": 9, "notification": NOTIFICATION | {"cause": "n0", "hops": 1}},
    {"v": 1, "notification": NOTIFICATION | {"package": "1-1-1-0 me:1", "split_bytes": 3000}},
    {"v": 10, "notification": NOTIFICATION | {"queue": True, "merge": b"0123456789abcdef"}},
    {"v": 10, "notification": NOTIFICATION | {"reply_to": {"address": "http://u/"}, "message_id": "m"}},
    {"v": 1, "notification": NOTIFICATION | {"fast": True}},
    {"v": 11, "notification": NOTIFICATION | {"path": ["G/a", "H/b"], "distribution": "to:G"}},
]
ATTEMPTS: list[dict[str, Any]] = [
    {"v": 1, "attempts": [ATTEMPT | {"state": "delivered", "status": 200, "batch": 7}]},
    {"v": 1, "attempts": [ATTEMPT | {"state": "failed", "error": "server-error", "status": 500}]},
    {"v": 1, "attempts": [ATTEMPT | {"state": "failed", "error": "skipped"}]},
    {"v": 1, "attempts": [ATTEMPT | {"state": "parked", "error": "timeout", "next_ms": 9}]},
    {"v": 2, "attempts": [ATTEMPT | {"state": "dropped", "error": "timely"}]},
    {"v": 3, "attempts": [ATTEMPT | {"state": "cancelled", "error": "hops"}]},
    {"v": 4, "attempts": [ATTEMPT | {"subscription": "queue:a/b", "state": "dead", "error": "invalid"}]},
    {"v": 4, "attempts": [ATTEMPT | {"subscription": "queue:a/b", "state": "delivered", "error": "merged"}]},
    {
        "v": 1,
        "attempts": [],
        "evaluation": {"partition": 0, "batch": 3, "control": 4, "matched": [["n1", "a", 1, 2, 1]]},
    },
    {
        "v": 1,
        "attempts": [],
        "evaluation": {"partition": 0, "batch": 3, "control": 4, "matched": [["n1", "a", 1, 2, 1, ["s1"], 3]]},
    },
]

OF: dict[str, Any] = {"owner": "", "topic": "a/b", "identification": "me:1"}

LOGS = {
    "control": Log(_json, lambda value: control.decode(b"sub:s1", value), control.VERSION, "v", CONTROL),
    "notifications": Log(_packed, notifications.decode, notifications.VERSION, "v", NOTIFICATIONS),
    # What GetCurrentMessage answers is in the log `retained`, as the notification that it was.
    "retained": Log(_packed, notifications.decode, notifications.VERSION, "v", NOTIFICATIONS),
    "attempts": Log(_packed, attempts.decode_all, attempts.VERSION, "v", ATTEMPTS),
    "attempts, as the audit reads them": Log(_packed, ledger.decode, attempts.VERSION, "v", ATTEMPTS),
    "parked": Log(
        _packed,
        parked.decode,
        parked.VERSION,
        "v",
        [
            {"v": 1, "record": {"type": "parked", "notification": NOTIFICATION, "tries": [1, 1, 9]}},
            {"v": 1, "record": {"type": "tried", "tries": [2, 1, 9]}},
            {
                "v": 2,
                "record": {"type": "parked", "notification": NOTIFICATION | {"unjudged": True}, "tries": [0, 0, 0]},
            },
            {"v": 3, "record": {"type": "parked", "notification": NOTIFICATION, "tries": [1, 0, 9, 5, "p-1"]}},
            {"v": 3, "record": {"type": "tried", "tries": [2, 1, 9, 5, "p-2"]}},
            {"v": 4, "record": {"type": "parked", "notification": NOTIFICATION | {"queue": True}, "tries": [0, 0, 0]}},
        ],
    ),
    "dead": Log(
        _packed,
        dead_letters.decode,
        dead_letters.VERSION,
        "v",
        [
            {"v": 1, "letter": LETTER | {"state": "dead", "error": "client-error", "status": 404}},
            {"v": 1, "letter": LETTER | {"state": "expired", "error": "lifespan"}},
            {"v": 2, "letter": LETTER | {"state": "dead", "error": "invalid", "notification": NOTIFICATION}},
        ],
    ),
    "pullpoints": Log(
        _packed,
        lambda value: pull.decode(b"p1", value),
        pull.VERSION,
        "v",
        [
            {"v": 1, "record": {"type": "message", "element": b"<m/>"}},
            {"v": 2, "record": {"type": "message", "element": b"<m/>", "valid_until_ms": 9}},
            {"v": 1, "record": {"type": "claimed", "claim": "c", "first": 1, "last": 2, "until_ms": 3}},
            {"v": 1, "record": {"type": "settled", "claim": "c"}},
            {"v": 1, "record": {"type": "returned", "claim": "c"}},
            {"v": 3, "record": {"type": "returned", "claim": "c", "settled": [7]}},
        ],
    ),
    "fragments": Log(
        _packed,
        lambda value: fragments.decode(b"", value),
        fragments.VERSION,
        "v",
        [
            {"v": 1, "record": {"type": "part", "last": True, "content": b"x", "accepted_ms": 1, "number": 0} | OF},
            {"v": 1, "record": {"type": "assembled", "first": 1, "at": 2} | OF},
            {
                "v": 1,
                "record": {"type": "given-up", "first": 1, "at": 2, "reason": "time", "since_ms": 1, "at_ms": 2} | OF,
            },
        ],
    ),
    "results": Log(
        _packed,
        results.decode,
        results.VERSION,
        "v",
        [{"v": 1, "result": {"promise": ["s1", "p-1", 1, 9, 2], "state": "failed", "at_ms": 5, "text": "no paper"}}],
    ),
    "lease": Log(
        _json,
        lambda value: lease.decode(lease.KEY, value),
        lease.VERSION,
        "version",
        [{"version": 1, "kind": kind, "holder": "here#1", "term": 3} for kind in ("claim", "renewal", "release")],
    ),
    "dispatch-lease": Log(
        _json,
        lambda value: job_lease.decode(job_lease.KEY, value),
        job_lease.VERSION,
        "version",
        [
            {
                "version": 1,
                "kind": kind,
                "at": 3,
                "holder": {
                    "name": "0f",
                    "host": "here",
                    "pid": 7,
                    "started": 8,
                    "machine": "m",
                    "since_ms": 9,
                    "home": "/h",
                },
            }
            for kind in ("claim", "renewal", "release")
        ],
    ),
    "feed": Log(
        _packed,
        lambda value: messages.decode_feed(b"3", value),
        messages.VERSION,
        "v",
        [
            {"v": 1, "feed": [3, -1, 2, 17, b"", None, [["lane"], [], {0: 9}, ["http://h/"], [], []], True, False]},
            {"v": 1, "feed": [3, 5, 0, 18, b"", None, None, False, True]},
            {"v": 2, "feed": [3, 5, 0, 18, b"", None, [["a"], [], {}, [], [], [], [], ["http://h/"]], True, False]},
            {"v": 2, "feed": [3, 5, 0, 18, b"", None, None, False, False, b"\x81", 1]},
        ],
    ),
    "progress": Log(
        _packed,
        lambda value: messages.decode_progress(b"1", value),
        messages.PROGRESS_VERSION,
        "v",
        [
            {"v": 1, "progress": [3, 1, 99, 2]},
            {
                "v": 1,
                "progress": [3, 1, 99, 2, True, 2, 4, [["http://h/", {"kind": "slow"}]], ["s"], ["c"], 0, True, 7, 8],
            },
            {"v": 2, "progress": [3, 1, 99, 2, 5]},
            {
                "v": 2,
                "progress": [3, 1, 99, 2, 5, True, 2, 4, [["http://h/", {"kind": "slow"}]], ["s"], ["c"], 0, True, 8],
            },
            {"v": 3, "progress": [3, 1, 99, 2]},
            {
                "v": 3,
                "progress": [3, 1, 99, 2, True, 2, 4, [["http://h/", {"kind": "slow"}]], ["s"], ["c"], 0, True, 8],
            },
        ],
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_what_an_older_release_wrote_is_read(name: str) -> None:
    log = LOGS[name]
    for form in log.older:
        assert form[log.version_field] <= log.version
        assert log.read(log.encode(form))


@pytest.mark.parametrize("name", LOGS)
def test_a_newer_field_is_passed_over_so_that_both_releases_can_run(name: str) -> None:
    log = LOGS[name]
    for form in log.older:
        assert log.read(log.encode(form | {"of a newer release": 1})) == log.read(log.encode(form))


@pytest.mark.parametrize("name", LOGS)
def test_a_newer_version_stops_an_older_reader_and_says_what_to_do(name: str) -> None:
    log = LOGS[name]
    newer: list[dict[str, Any]] = [form | {log.version_field: log.version + 1} for form in log.older]
    # It need not look like anything that we know.
    newer.append({log.version_field: log.version + 1, "something": ["else"]})
    for form in newer:
        with pytest.raises(RecordVersionError, match="upgrade") as caught:
            log.read(log.encode(form))
        assert str(log.version + 1) in str(caught.value)
        assert str(log.version) in str(caught.value)


@pytest.mark.parametrize("name", LOGS)
def test_damage_is_not_taken_for_a_newer_version(name: str) -> None:
    log = LOGS[name]
    for value in (b"", b"\xff\xff", log.encode({log.version_field: log.version}), log.encode([1])):
        with pytest.raises(InfrastructureError) as caught:
            log.read(value)
        assert not isinstance(caught.value, RecordVersionError)


@pytest.mark.parametrize("name", LOGS)
def test_forms_of_every_version_are_here(name: str) -> None:
    log = LOGS[name]
    assert {form[log.version_field] for form in log.older} == set(range(1, log.version + 1)), (
        "a new version? add what the one before it wrote"
    )


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("which", ["archive", "parked", "dead", "control"])
def test_tables_leave_out_what_is_damaged_and_stop_at_what_is_newer(which: str, damaged: bool) -> None:
    """Going on behind a newer record would lose it for the table, upgrade or not."""
    log = LOGS["notifications" if which == "archive" else which]
    value = b"\xff\xff" if damaged else log.encode(log.older[0] | {log.version_field: log.version + 1})
    readers: dict[str, Callable[[], int]] = {
        "archive": lambda: notification_rows([Logged(value, 0, 0)], 0).num_rows,
        "parked": lambda: applied(RetriesFold(), value),
        "dead": lambda: applied(DeadLettersFold(), value),
        "control": lambda: applied(SubscriptionsFold(), value),
    }
    read = readers[which]
    if damaged:
        assert read() == 0
    else:
        with pytest.raises(RecordVersionError):
            read()


def applied(fold: TableFold, value: bytes) -> int:
    """How many rows a record has changed."""
    changes = RowChanges(fold.spec)
    key = parked.Delivery("s1", parked.Place(0, 0, 0)).key()
    record = SimpleNamespace(key=key, value=value, timestamp=1, offset=0, partition=0, topic="t")
    apply(fold, record, changes, "t")
    return len(changes)
