"""Commands that list and report, as text and as JSON, with given results of the functions behind them."""

from __future__ import annotations

import errno
import json
import stat
import time
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from arborcast.admin import federation, operations, queues, subscriptions
from arborcast.admin.federation import Groups, GroupStatus, MemberList
from arborcast.admin.operations import Recorded
from arborcast.admin.queues import JobFigures, QueueRequests, RequestStatus
from arborcast.admin.times import iso
from arborcast.core.errors import ConfigError, InfrastructureError, RecordVersionError
from arborcast.dispatch.operations.audit import Problem, Report, Tally
from arborcast.ingest.federation.keys import parse_secrets
from arborcast.ingest.federation.settings import FederationSettings
from arborcast.ingest.federation.topology import Member, Topology
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.command import Shell
from tests.support.console_answers import INSPECTIONS, JOB, LINKS, MEMBERS, QUEUE_RECORDS
from tests.support.receiver import refusing_url
from tests.support.routing import make_subscription

SHELL = Shell()


@pytest.fixture(autouse=True)
def no_kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("audit", "federation", "operations", "queues", "subscriptions"):
        monkeypatch.setattr(f"arborcast.cli.{module}.kafka_of", lambda *_: None)


def control_log(monkeypatch: pytest.MonkeyPatch, *records: ControlRecord) -> None:
    """A control log with these records."""
    control = ControlView()
    for each in records:
        control.apply(each)
    monkeypatch.setattr("arborcast.admin.control_log.read_control", lambda *_: control)


@pytest.fixture
def with_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    control_log(monkeypatch, *QUEUE_RECORDS)
    pending = QueueRequests((RequestStatus("r1", 5, 1_000, 2, 5_000), RequestStatus("r2", 0, 2_000, 0, 0)), 3)
    monkeypatch.setattr(queues, "requests", lambda *_: pending)
    monkeypatch.setattr(queues, "job_figures", lambda *_: JOB)
    monkeypatch.setattr("arborcast.cli.queues.one_topic", lambda topic, *_: TopicPath(topic))


@pytest.mark.usefixtures("with_queues")
def test_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SHELL("queues", "list").splitlines() == [
        "labels  0 pending, 0 in progress  3 workers",
        "reports  1 pending, the oldest 5 s, 0 in progress  0 workers",
        "{urn:plant}plant/inspections  3 pending, the oldest 74 s, 2 in progress  3 workers",
    ]
    lines = SHELL("queues", "show", INSPECTIONS).splitlines()
    assert lines[0] == "worker s7 at https://camera1.example:8443/inspect, concurrency 1, active, busy for 12.3 s"
    assert lines[2] == "worker s9 at https://camera3.example:8443/inspect, concurrency 1, paused"
    assert lines[3].endswith("r1  priority 5, sent 2 times")
    assert lines[4].endswith("r2  priority 0")
    with pytest.raises(ConfigError, match="nope is no work queue"):
        SHELL("queues", "show", "nope")
    monkeypatch.setattr(queues, "job_figures", lambda *_: JobFigures(problem="connection refused"))
    listed = SHELL.run("queues", "list")
    assert listed.stdout.splitlines()[1] == "reports  unknown  0 workers"
    assert "live counts unavailable: connection refused" in listed.stderr


INSPECTIONS_AS_JSON = """
{"queue": "{urn:plant}plant/inspections", "merge": true, "waiting": 3, "executing": 2, "oldest_s": 74.2, "servers": [
  {"subscription": "s7", "endpoint": "https://camera1.example:8443/inspect", "capacity": 1, "state": "active",
   "busy_s": 12.3},
  {"subscription": "s8", "endpoint": "https://camera2.example:8443/inspect", "capacity": 2, "state": "active",
   "busy_s": 3.1},
  {"subscription": "s9", "endpoint": "https://camera3.example:8443/inspect", "capacity": 1, "state": "paused",
   "busy_s": null}
]}
"""


@pytest.mark.usefixtures("with_queues")
def test_queues_as_json() -> None:
    labels, reports, inspections = SHELL.json("queues", "list")
    assert (labels["queue"], reports["queue"]) == ("labels", "reports")
    assert inspections == json.loads(INSPECTIONS_AS_JSON)
    shown = SHELL.json("queues", "show", INSPECTIONS)
    assert shown.pop("requests") == [
        {"notification": "r1", "priority": 5, "accepted": iso(1_000), "attempts": 2, "next": iso(5_000)},
        {"notification": "r2", "priority": 0, "accepted": iso(2_000), "attempts": 0, "next": ""},
    ]
    assert shown == inspections | {"more": 3}


def subscribed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A control log with these subscriptions; `away` is suspended, `other` has a long endpoint."""
    long = {"other": "long/" * 20}
    made = [make_subscription(each, "a//.", consumer=f"http://{each}/{long.get(each, '')}") for each in names]
    records = [SubscriptionRecord(msgspec.structs.replace(each, created_ms=5_000)) for each in made]
    suspended = [SubscriptionSuspended("away", "refused", 1_000, 2_000)] * ("away" in names)
    control_log(monkeypatch, *records, *suspended)


AWAY_AS_JSON = """
{"subscription": "away", "state": "suspended", "paused": false, "reliability": "adaptive", "endpoint": "http://away/",
 "expression": "a//.", "owner": "", "address": "", "created": "1970-01-01T00:00:05.000+00:00", "terminates": null,
 "suspended": {"at": "1970-01-01T00:00:02.000+00:00", "failing_since": "1970-01-01T00:00:01.000+00:00",
               "reason": "refused"}}
"""


def test_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribed(monkeypatch, "well", "other", "away")
    _, away, why, other, well = SHELL.run("subscriptions", "list", COLUMNS="60").stdout.splitlines()
    assert away.split() == ["away", "suspended", "adaptive", "http://away/", "a//."]
    assert why.strip().startswith("suspended since")
    assert "refused, failing since" in why
    assert other.endswith("long/" * 20 + "  a//."), "nothing is cut off"
    assert well.index("active") == away.index("suspended")
    found = SHELL.json("subscriptions", "list", "--limit", "1")
    assert found["more"] == 2
    assert found["subscriptions"] == [json.loads(AWAY_AS_JSON)]
    found = SHELL.json("subscriptions", "list", "--endpoint", "http://away/", "--topic", "a")
    assert [each["subscription"] for each in found["subscriptions"]] == ["away"]
    for names, message in ((["well"], "no matching subscriptions"), ([], "no subscriptions yet")):
        subscribed(monkeypatch, *names)
        listed = SHELL.run("subscriptions", "list", "--state", "paused")
        assert (listed.stdout, message in listed.stderr) == ("", True)


def test_all_named_subscriptions_are_resumed_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribed(monkeypatch, "well", "away")
    resumed: list[list[str]] = []
    monkeypatch.setattr(subscriptions, "end_suspensions", lambda _kafka, _control, names: resumed.append(names))
    for arguments, message in (
        ((), "name subscriptions"),
        (("away", "--all"), "name subscriptions"),
        (("away", "well"), "well is not suspended"),
    ):
        with pytest.raises(ConfigError, match=message):
            SHELL("subscriptions", "resume", *arguments)
    assert resumed == []
    assert SHELL.json("subscriptions", "resume", "away") == {"resumed": ["away"]}
    for options in (("--all",), ("--endpoint", "http://away/")):
        assert SHELL("subscriptions", "resume", *options).split() == ["resumed", "away"]
    assert "none is suspended of http://well/" in SHELL("subscriptions", "resume", "--endpoint", "http://well/")
    assert resumed == [["away"]] * 3 + [[]]


def test_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        Recorded(1_000, "console", "anna", "topics save", "a/b", '{"code":"1"}', "", 2, "done"),
        Recorded(0, "command", "bert@host", "restore", "", "", "", 0, ""),
    ]
    listed = Mock(side_effect=lambda _kafka, _filter, limit: (made[:limit], len(made) - limit))
    monkeypatch.setattr(operations, "listed", listed)
    first, second = SHELL("operations", "--actor", "anna", "--action", "topics", "--subject", "a").splitlines()
    assert first.endswith('anna (console)  topics save  a/b: {"code":"1"} -> nothing; and 2 more  [done]')
    assert second.endswith("bert@host (command)  restore  [without a result]")
    assert listed.call_args.args[1][1:] == ("anna", "topics", "a")
    found = SHELL.json("operations", "--limit", "1")
    assert ([each["subject"] for each in found["operations"]], found["more"]) == (["a/b"], 1)
    assert "1 more" in SHELL.run("operations", "--limit", "1").stderr
    listed.reset_mock()
    with pytest.raises(ConfigError):
        SHELL("operations", "--since", "yesterday")
    assert not listed.called


def audited(monkeypatch: pytest.MonkeyPatch, answer: Report | Exception) -> Mock:
    """Replace the audit by one with this result."""
    audit = Mock(side_effect=repeat(answer))
    monkeypatch.setattr("arborcast.dispatch.operations.audit.audit", audit)
    return audit


def test_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally(delivered=2, pending=1)
    report = Report(0, 1_000, notifications=2, matches=3, totals=tally, subscriptions={"s1": tally, "s2": Tally()})
    audit = audited(monkeypatch, report)
    output = SHELL("audit", "--since", "2h", "--deep")
    assert "all accounted for" in output
    assert "not checked: whether each notification was matched" in output
    (_, since_ms, *_), options = audit.call_args
    assert options["deep"] is True
    assert abs(since_ms - (time.time() - 7_200) * 1000) < 60_000
    assert len(SHELL.json("audit")["not_looked_at"]) == 3
    for period in (("--since", "1h", "--until", "2h"), ("--since", "9000-01-01")):
        with pytest.raises(ConfigError, match="is later than until"):  # else it is balanced
            SHELL("audit", *period)
    report.deep = True
    assert SHELL("audit", "--deep").count("not checked") == 1
    report.order, report.first_attempts = True, 1_200
    output = SHELL("audit", "--deep", "--order")
    assert "not checked" not in output
    assert "order of 1,200 first attempts: none out of order" in output

    report.add_problems([Problem("missing", "n7", matched=3, found=2, topic="a/b", partition=1, offset=9)])
    unbalanced = SHELL.run("audit")
    assert (unbalanced.exit_code, "n7: 2 of 3 a/b (partition 1, offset 9)" in unbalanced.output) == (1, True)
    found = json.loads(SHELL.run("audit", "--json", "--subscription", "s1").output)
    assert (found["balanced"], found["unbalanced"], found["totals"]["matches"]) == (False, 1, 3)
    assert [each["kind"] for each in found["problems"]] == ["missing"]
    for failure, words in (
        (InfrastructureError("Kafka is away"), "Kafka is away"),
        (RecordVersionError("version 99"), "version 99"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
    ):
        audited(monkeypatch, failure)
        unknown = SHELL.run("audit")
        assert (unknown.exit_code, words in unknown.output) == (2, True)


def test_federation_key(tmp_path: Path) -> None:
    """A new secret comes first, is never printed, and its file is private."""
    file = tmp_path / "federation.key"
    for _ in range(2):
        output = SHELL("federation", "key", str(file))
        assert file.read_text().splitlines()[0] not in output
    first, second = parse_secrets(file.read_text(), "it")
    assert first != second
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    settings = tmp_path / "arborcast.toml"
    settings.write_text("[kafka]\n")
    with pytest.raises(ConfigError, match=r"arborcast\.toml, line 1: "):
        SHELL("federation", "key", str(settings))
    assert settings.read_text() == "[kafka]\n", "another file is unchanged"


def test_federation_members_while_the_administrator_is_away(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"federation\.name is not set"):
        SHELL("federation", "members")
    SHELL("federation", "key", "key")
    live = Member("a", "G", "http://a", "1", number=1)
    known = Topology(3, (live, Member("b", "H", "http://b", "1", number=2, state="gone", silent_ms=16_000)))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "federation.json").write_bytes(msgspec.json.encode(known))
    config = tmp_path / "a.toml"
    with refusing_url() as away:
        config.write_text(
            'home = "home"\n[federation]\nname = "a"\ngroup = "G"\nkey_file = "key"\n' + f'administrator = "{away}"\n'
        )
        members = Shell(config).run("federation", "members", "--json")
        assert "the last known state follows" in members.stderr
        found = json.loads(members.stdout)
        assert "no answer from" in found["problem"]
        facts = [(each["engine"], each["state"], each["represents"]) for each in found["members"]]
        assert facts == [("G/a", "live", True), ("H/b", "gone", False)]
        assert Shell(config)("federation", "topology").splitlines() == ["G: a of a", "H: no representative of b"]


def test_empty_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "groups", lambda _: Groups(0, {}, ""))
    monkeypatch.setattr("arborcast.cli.topics.showing.kafka_of", lambda *_: None)
    monkeypatch.setattr("arborcast.admin.control_log.read_tree", lambda _: TopicTree())
    for command, words in (("federation topology", "no engine has registered"), ("topics list", "no topics yet")):
        listed = SHELL.run(*command.split())
        assert (listed.stdout, listed.stderr) == ("", f"{words}\n")


FEDERATION_AS_JSON = {
    "members": """
{"members": [{"engine": "north/n1", "state": "live", "represents": true, "url": "https://n1.example:8080",
              "number": 0, "version": "2.0.0", "silent_s": 0.4}],
 "problem": "away"}""",
    "topology": '{"version": 3, "groups": {"G": {"representative": null, "members": ["a", "b"]}}, "problem": ""}',
    "links": """
{"links": [{"link": "peer-n2", "to": "north/n2", "url": "https://n2.example:8080/federation", "state": "active",
            "topics": ["plant//alarm", "building//."], "since": "2026-01-01T10:20:00.000+00:00", "waiting": 41,
            "waiting_since": "2026-01-01T10:21:00.000+00:00"},
           {"link": "peer-group.south", "to": "south/", "url": "https://s2.example:8080/federation", "state": "active",
            "topics": ["a0//."], "since": "2026-01-01T10:20:00.000+00:00", "waiting": 0, "waiting_since": ""}]}""",
}


@pytest.mark.parametrize("command", FEDERATION_AS_JSON)
def test_federation_as_json(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    control_log(monkeypatch)
    links = (LINKS[0], msgspec.structs.replace(LINKS[1], topics=LINKS[1].topics[:1]))
    monkeypatch.setattr(federation, "members", lambda _: MemberList(MEMBERS[:1], "away"))
    monkeypatch.setattr(federation, "groups", lambda _: Groups(3, {"G": GroupStatus(None, ("a", "b"))}, ""))
    monkeypatch.setattr(federation, "with_waiting", lambda *_: links)
    assert SHELL.json("federation", command) == json.loads(FEDERATION_AS_JSON[command])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("group", "", "federation.group"),
        ("name", "a b", "federation.name"),
        ("administrator", "", "federation.administrator"),
        ("key_file", "", "share a secret"),
        ("url", "a:80", "federation.url"),
    ],
)
def test_invalid_settings_of_a_federation(key: str, value: str, message: str) -> None:
    right: dict[str, Any] = {"name": "a", "group": "G", "administrator": "http://h:1", "key_file": "k"}
    assert FederationSettings(url="http://a", **right).engine == "G/a"
    with pytest.raises(ConfigError, match=message):
        FederationSettings(**{"url": "http://a"} | right | {key: value})
