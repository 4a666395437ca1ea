"""The format of each log's records: version 1, written out here field by field, each with a different value.

No product code encodes these records: a field that is renamed, moved or dropped, or a value that is no
longer defined, fails.
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
from arborcast.topic_model.records import control, fragments, notifications, operations, pull, results
from tests.support.listed_logs import Listed


class Log(NamedTuple):
    """Functions that read and write a log's records, and their forms: with all fields, and with the required ones."""

    wire: Any
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes | None] | None
    forms: list[dict[str, Any]]
    version: str = "v"

    def pack(self, form: Any) -> bytes:
        return bytes(self.wire.encode(form))


def named(name: str, *records: Any) -> list[dict[str, Any]]:
    return [{"v": 1, name: record} for record in records]


# JSON values of the log `control`.
REFERENCE = '{"address":"http://h/","reference_parameters":["<p/>"],"metadata":["<m/>"]}'
FILTER = '{"dialect":"urn:d","text":"t:a","normal":"{urn:t}a","namespaces":{"t":"urn:t"}}'
CONDITION = '{"dialect":"urn:x","text":"/t:a","namespaces":{"t":"urn:t"}}'
SUBSCRIPTION = f"""{{"id":"s1","consumer":{REFERENCE},"address":"http://g/s1","topics":[{FILTER}],
"content":[{CONDITION}],"producer":[{CONDITION}],"form":"peer","soap":"1.2","addressing":true,
"policy":{{"reliability":"timely","order":"none","priority":3,"lifespan_ms":4,"maximum_attempts":5,
"deadline_ms":6,"deadline_per":"topic","interval_ms":7,"interval_per":"subscription","fragment_bytes":8}},
"created_ms":9,"terminates_ms":10,"paused":true,"owner":"me","pull_point":"p1",
"protection":{{"secrets":[{{"sealed":"k:x","until_ms":11}}],"authorization":"k:y","certificate":"c"}},
"endpoint":{{"id":"p1","name":"n"}},"types":["{{urn:t}}a"],
"trigger":{{"name":"n","topic":"a/b","payload":"<x/>","type":"x","prefixes":"t",
"target":{{"retain":true,"priority":1,"reliable":true,"types":["x"],"distribution":"group"}}}},
"queue":2,"peer":{{"own":"G/a","to":"G/b","datagrams":"without"}}}}"""
UPSTREAM = f'{{"topic":"a","reference":{REFERENCE},"terminates_ms":3,"renew_ms":4,"paused":true}}'
REGISTRATION = f"""{{"id":"r1","address":"http://g/r1","publisher":{REFERENCE},"topics":[{FILTER}],"demand":true,
"soap":"1.2","addressing":true,"created_ms":1,"terminates_ms":2,"upstream":[{UPSTREAM}],"pausable":false,
"owner":"me"}}"""
POLICY = '{"retain":false,"priority":1,"routing":"local","publishers":["me"],"queue":true,"merge":false}'
CONTROL = [
    '"type":"topic","path":"a/b"',
    f""""type":"topic","path":"{{urn:t}}a","code":"1.1","message_types":["{{urn:t}}m"],"final":true,"policy":{POLICY},
    "prefixes":"t","placed":true""",
    '"type":"topic-removed","path":"a/b"',
    '"type":"topic-places","path":"a"',
    '"type":"topic-places","path":"a","place":"1","last":2,"used":true',
    '"type":"subscription","subscription":{"id":"s1","consumer":{"address":"http://h/"}}',
    f'"type":"subscription","subscription":{SUBSCRIPTION}',
    '"type":"subscription-ended","id":"s1","reason":"expired","at_ms":1',
    '"type":"subscription-suspended","id":"s1","reason":"costly","since_ms":1,"at_ms":2,"cause":"conditions"',
    '"type":"secrets-resealed","id":"s1","sealed":{"k1:x":"k2:y"}',
    '"type":"pull-point","id":"p1","address":"http://g/p1"',
    '"type":"pull-point","id":"p1","address":"http://g/p1","name":"n","created_ms":1,"owner":"me","until_ms":9',
    '"type":"pull-point-ended","id":"p1","reason":"destroyed","at_ms":1',
    '"type":"registration","registration":{"id":"r1","address":"http://g/r1"}',
    f'"type":"registration","registration":{REGISTRATION}',
    '"type":"registration-ended","id":"r1","reason":"gone","at_ms":1',
    f'"type":"trigger","subscription":{SUBSCRIPTION}',
    '"type":"trigger-ended","id":"s1","reason":"removed","at_ms":1',
    '"type":"peer-interest","peer":"G/b","sender":"G/b","version":1,"topics":["a//."],"others":["b"]',
    '"type":"erasure","scope":{"id":"e1","before_ms":1},"by":"ann","at_ms":2',
    '"type":"camera","name":"gate","url":"http://h/","key":"k"',
    """"type":"camera","name":"gate","url":"http://h/","key":"k","user":"u","sealed":"k:x","insecure":true,"paused":true""",
    '"type":"camera-state","name":"gate","state":"away","since_ms":1',
    f""""type":"camera-state","name":"gate","state":"refused","since_ms":1,"error":"e","subscription":{REFERENCE},
    "push":true""",
    """"type":"erasure","scope":{"id":"e1","before_ms":1,"topic":"a//.","notification":"n1","subject":"4711"},"by":"ann",
    "at_ms":2,"erased":{"waiting":3},"done_ms":4,"kept_until_ms":{"parked":5}""",
]
PLAIN: dict[str, Any] = {"id": "n1", "topic": "a/b", "payload": b"<x/>", "accepted_ms": 1}
NOTIFICATION: dict[str, Any] = (
    PLAIN
    | {"producer": b"<p/>", "message_id": "m", "publisher": "me", "only": "s1", "request": b"0123", "request_size": 2}
    | {"replay": "r1", "traceparent": "00-1-2-01", "unjudged": True, "control": 7, "prefixes": "t", "subject": b"<e/>"}
    | {"selector": "a//.", "valid_until_ms": 9, "type": "{urn:t}e", "priority": -5, "reliable": True, "cause": "n0"}
    | {"hops": 1, "package": "1-1-1-0 me:1", "split_bytes": 3000, "queue": True, "reply_to": {"address": "http://u/"}}
    | {"reply_point": "p1", "merge": b"4567", "path": ["G/a", "H/b"], "distribution": "to:G", "fast": True}
    | {"unchanged": 6, "triggers_left": 999}
)
NOTIFICATIONS = named("notification", PLAIN, NOTIFICATION)
TRIED: dict[str, Any] = {
    "notification": "n1",
    "subscription": "s1",
    "topic": "a/b",
    "endpoint": "http://h/",
    "number": 1,
    "push": "p1",
} | {"state": "parked", "accepted_ms": 1, "started_ms": 2, "duration_ms": 0.5}
ATTEMPT: dict[str, Any] = (
    TRIED
    | {"error": "server-error", "detail": "d", "status": 500, "messages": 2, "request_bytes": 3, "response_bytes": 4}
    | {"response": b"no", "reused": True, "batch": 7, "next_ms": 8, "lapsed": True}
)
STATES = ("delivered", "dead", "expired", "cancelled", "dropped")
EVALUATION = {"partition": 0, "batch": 3, "control": 4, "matched": [["n1", "a", 1, 2, 1, ["s1"], 3, True, 5]]}
ATTEMPTS: list[dict[str, Any]] = [
    {"v": 1, "attempts": [ATTEMPT]},
    {"v": 1, "attempts": [TRIED | {"state": state} for state in STATES]},
    {"v": 1, "attempts": [], "evaluation": EVALUATION},
]
LETTER: dict[str, Any] = {"subscription": "s1", "endpoint": "http://h/", "notification": NOTIFICATION} | {
    "state": "dead",
    "at_ms": 5,
    "number": 6,
}
DETAILS = {"error": "client-error", "detail": "d", "status": 404, "push": "p1", "response": b"no"}
OF: dict[str, Any] = {"owner": "me", "topic": "a/b", "identification": "me:1"}
PART: dict[str, Any] = {"number": 0, "last": True, "content": b"x", "accepted_ms": 1}
GIVEN_UP: dict[str, Any] = {"first": 1, "at": 2, "reason": "time", "since_ms": 1, "at_ms": 2}
HOLDER = {"name": "0f", "host": "here", "pid": 7, "started": 8, "machine": "m", "since_ms": 9, "home": "/h"}
RESULT: dict[str, Any] = {"promise": ["s1", "p-1", 1, 9, 2], "state": "failed", "at_ms": 5}
KINDS = ("claim", "renewal", "release")
DIVERTED = [["a"], ["b"], {0: 9}, ["c"], ["d"], ["e"], ["f"], ["g"], ["h"], ["i"], ["j"], ["k"], ["l"]]
MATCHED = [["s", "a", 1]]
DIED = [4, "s", "http://h/", "HTTP 400"]
SIGNS = [["http://h/", {"kind": "slow", "message": "n1", "wait_ms": 3, "late": True}]]


AttemptsRead = tuple[list[attempts.Attempt], attempts.Evaluation | None]


def attempts_read(value: bytes) -> AttemptsRead:
    read = attempts.decode(value)
    return read.attempts, read.evaluation


def attempts_written(read: AttemptsRead) -> bytes:
    rows, evaluation = read
    return attempts.encode(*rows) if evaluation is None else next(attempts.encode_evaluation(evaluation))


LOGS = {
    "control": Log(
        msgspec.json,
        lambda value: control.decode(b"sub:s1", value),
        lambda record: control.encode(record)[1],
        named("record", *(msgspec.json.decode(f"{{{each}}}") for each in CONTROL)),
    ),
    # The answers of GetCurrentMessage are in the log `retained`, as the accepted notifications.
    "notifications": Log(
        msgspec.msgpack, notifications.decode, lambda record: notifications.encode(record)[1], NOTIFICATIONS
    ),
    "attempts": Log(msgspec.msgpack, attempts_read, attempts_written, ATTEMPTS),
    "attempts, as the audit reads them": Log(msgspec.msgpack, ledger.decode, None, ATTEMPTS),
    "parked": Log(
        msgspec.msgpack,
        parked.decode,
        parked.encode,
        named(
            "record",
            {"type": "parked", "notification": NOTIFICATION, "tries": [1, 0, 9, 5, "p-1"]},
            {"type": "tried", "tries": [2, 1, 9, 5, "p-2"]},
        ),
    ),
    "dead": Log(msgspec.msgpack, dead_letters.decode, dead_letters.encode, named("letter", LETTER, LETTER | DETAILS)),
    "pullpoints": Log(
        msgspec.msgpack,
        lambda value: pull.decode(b"p1", value),
        lambda read: pull.encode(*read)[1],
        named(
            "record",
            {"type": "message", "element": b"<m/>"}
            | {"notification": "n1", "subscription": "s1", "accepted_ms": 1, "valid_until_ms": 9},
            {"type": "message", "element": b"<m/>"},
            {"type": "claimed", "claim": "c", "first": 1, "last": 2, "until_ms": 3},
            {"type": "settled", "claim": "c"},
            {"type": "returned", "claim": "c"},
            {"type": "returned", "claim": "c", "settled": [7]},
        ),
    ),
    "fragments": Log(
        msgspec.msgpack,
        lambda value: fragments.decode(b"", value),
        lambda record: fragments.encode(record)[1],
        named(
            "record",
            {"type": "part"} | OF | PART,
            {"type": "part"} | OF | PART | {"namespaces": {"t": "urn:t"}, "traceparent": "00-1-2-01", "as_text": True},
            {"type": "assembled"} | OF | {"first": 1, "at": 2},
            {"type": "given-up"} | OF | GIVEN_UP,
            {"type": "given-up"} | OF | GIVEN_UP | {"had": "0-3", "missing": "4-", "bytes": 5, "detail": "d"},
        ),
    ),
    "results": Log(
        msgspec.msgpack,
        results.decode,
        lambda result: results.encode(result)[1],
        named("result", RESULT, RESULT | {"text": "no paper", "error": "timeout", "status": 500, "retry_after_s": 2.5}),
    ),
    "operations": Log(
        msgspec.json,
        operations.decode,
        lambda record: operations.encode(record)[1],
        named(
            "record",
            {"type": "begun", "id": "o1", "at_ms": 1, "door": "command", "who": "me@here", "what": "topics add"}
            | {"changes": [{"subject": "a", "before": "{}", "after": "[]"}], "first": 32, "more": 5},
            {"type": "begun", "id": "o1", "at_ms": 1, "door": "directory", "who": "f", "what": "edit", "changes": []},
            {"type": "ended", "id": "o1", "result": "done", "changes": 1},
        ),
    ),
    "lease": Log(
        msgspec.json,
        lambda value: lease.decode(lease.KEY, value),
        lambda record: lease.encode(record)[1],
        [{"version": 1, "kind": kind, "holder": "here#1", "term": 3, "sole": True} for kind in KINDS],
        "version",
    ),
    "dispatch-lease": Log(
        msgspec.json,
        lambda value: job_lease.decode(job_lease.KEY, value),
        lambda record: job_lease.encode(record)[1],
        [{"version": 1, "kind": kind, "holder": HOLDER, "at": 3} for kind in KINDS],
        "version",
    ),
    "feed": Log(
        msgspec.msgpack,
        lambda value: messages.decode_feed(b"3", value),
        lambda feed: messages.encode_feed(feed)[1],
        named("feed", [3, -1, 2, 17, b"x", None, DIVERTED, True, True, b"\x81", 1]),
    ),
    "progress": Log(
        msgspec.msgpack,
        lambda value: messages.decode_progress(b"1", value),
        lambda progress: messages.encode_progress(progress)[1],
        named("progress", [3, 1, 99, 2, True, 5, 6, SIGNS, ["s"], ["c"], 4, True, 7, 8, MATCHED, 9, True, DIED, "id"]),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_records_of_version_1_are_read_and_written_unchanged(name: str) -> None:
    log = LOGS[name]
    for form in log.forms:
        assert form[log.version] == 1
        read = log.read(log.pack(form))
        if log.write is not None:
            assert log.wire.decode(log.write(read) or b"") == form
        assert log.read(log.pack(form | {"of a newer release": 1})) == read, "both releases can run"


@pytest.mark.parametrize("name", LOGS)
def test_a_newer_version_stops_the_reader_and_damage_does_not(name: str) -> None:
    log = LOGS[name]
    newer: list[dict[str, Any]] = [form | {log.version: 2} for form in log.forms]
    # Its other fields may be unknown.
    newer.append({log.version: 2, "something": ["else"]})
    for form in newer:
        with pytest.raises(RecordVersionError, match="has version 2, this Arborcast supports up to 1: upgrade"):
            log.read(log.pack(form))
    for value in (b"", b"\xff\xff", log.pack({log.version: 1}), log.pack([1])):
        with pytest.raises(InfrastructureError) as caught:
            log.read(value)
        assert not isinstance(caught.value, RecordVersionError)


@pytest.mark.parametrize("which", ["archive", "parked", "dead", "control"])
def test_tables_skip_damaged_records_and_stop_at_newer_ones(which: str) -> None:
    """Behind a skipped newer record the table would lose it, even after an upgrade."""
    log = LOGS["notifications" if which == "archive" else which]
    folds: dict[str, TableFold] = {"parked": RetriesFold(), "dead": DeadLettersFold(), "control": SubscriptionsFold()}

    def read(value: bytes) -> int:
        if which == "archive":
            return int(notification_rows([Listed(b"", value, 0)], 0).num_rows)
        return applied(folds[which], value)

    assert read(b"\xff\xff") == 0
    with pytest.raises(RecordVersionError):
        read(log.pack(log.forms[0] | {log.version: 2}))


def applied(fold: TableFold, value: bytes) -> int:
    """How many rows a record has changed."""
    changes = RowChanges(fold)
    key = parked.Delivery("s1", parked.Place(0, 0, 0)).key()
    record = SimpleNamespace(key=key, value=value, timestamp=1, offset=0, partition=0, topic="t")
    apply(fold, record, changes, "t")
    return len(changes)
