"""Triggers with the real job over real Kafka and real HTTP, in both modes: loops, and the shell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.errors import ArborcastError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.triggers import derived_id
from arborcast.dispatch.operations.audit import audit
from arborcast.topic_model.records.control import TopicRecord, TriggerEnded, TriggerRecord
from arborcast.topic_model.records.notifications import MAX_HOPS, Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import notifications_in
from tests.support.command import Shell
from tests.support.dispatch_job import IN_BOTH_MODES, Logs, Own, RunningJob, attempt_rows, trigger
from tests.support.gateway_process import GatewayRun
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_MODES]


@pytest.fixture
def since_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def add(own: Own, job_logs: Logs) -> Iterator[Callable[[str, str, str], None]]:
    """Add a trigger for this test, and the topic that it publishes to."""
    made: list[str] = []

    def write(name: str, on: str, to: str) -> None:
        topic = TopicPath(own.topic(to))
        job_logs.control(TopicRecord(topic), TriggerRecord(trigger(own.name(name), own.topic(on), topic, "")))
        made.append(own.name(name))

    yield write
    job_logs.control(*(TriggerEnded(name, "removed", int(time.time() * 1000)) for name in made))


def of_trigger(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if str(row["endpoint"]).startswith("trigger:")]


def test_a_loop_of_two_ends_after_eight(
    job: RunningJob, own: Own, receiver: Receiver, add: Callable[[str, str, str], None], since_ms: int
) -> None:
    add("there", "p", "q")
    add("back", "q", "p")
    own.subscribe("p", receiver.url("/p"), "p", form="raw")
    own.subscribe("q", receiver.url("/q"), "q", form="raw")
    cause = own.notify("p")

    rows = own.attempts(2 * (MAX_HOPS + 1))
    ends = [row for row in of_trigger(rows) if row["state"] != "delivered"]
    assert [(row["state"], row["error"], row["subscription"]) for row in ends] == [("cancelled", "hops", "there")]
    assert len(of_trigger(rows)) == MAX_HOPS + 1
    there, back = (len(receiver.wait_for(count, path)) for count, path in ((4, "/q"), (5, "/p")))
    assert (there, back) == (MAX_HOPS // 2, MAX_HOPS // 2 + 1)
    chain = {each.id: each for each in notifications_in(job.settings.kafka)}
    name, hops = str(ends[0]["notification"]), []
    while name != cause:
        hops.append(chain[name].hops)
        name = chain[name].cause
    assert hops == list(range(MAX_HOPS, 0, -1))
    report = audit(job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report.problems
    assert report.totals.cancelled == 1


def notification(kafka: KafkaSettings, name: str) -> Notification:
    return next(each for each in notifications_in(kafka) if each.id == name)


def test_a_trigger_from_the_shell_to_a_receiver_and_back(
    job: RunningJob, gateway: GatewayRun, own: Own, receiver: Receiver, tmp_path: Path
) -> None:
    alone = Shell(tmp_path / "arborcast.toml", job.settings.kafka)

    def shell(*arguments: str) -> str:
        return alone(*arguments, "--url", gateway.base)

    on, to, name = own.topic("readings"), own.topic("alarms"), own.name("hot")
    alone("topics", "add", to)
    shell("subscribe", to, "--to", receiver.url("/alarms"), "--raw")
    file = tmp_path / "alarm.xml"
    file.write_text("<?xml version='1.0'?>\n<alarm>&lt;</alarm>\n")
    options = ("--on", f"{on}//.", "--filter", "//n > 5", "--type", "reading", "--publish", to)
    for refused, said in (
        ((name, *options), "name the payload"),
        ((name, *options, "--payload", "<alarm"), "is not well-formed XML"),
        ((name, "--on", on, "--publish", own.topic("nowhere"), "--same"), "there is no topic"),
        ((name, "--on", to, "--publish", to, "--same"), "in a loop"),
    ):
        with pytest.raises(ArborcastError, match=said):
            shell("triggers", "add", *refused)
    made = json.loads(shell("triggers", "add", name, *options, "--payload", str(file), "--interval", "3600", "--json"))
    with pytest.raises(ArborcastError, match="already"):
        shell("triggers", "add", name, *options, "--same")

    (listed,) = (each for each in alone.json("triggers", "list")["triggers"] if each["trigger"] == name)
    assert (listed["id"], listed["state"], listed["publishes"]) == (made["id"], "active", to)
    assert f"{name}  active  {on}//., if payload: //n > 5" in alone("triggers", "list")
    for payload in ("<reading><n>1</n></reading>", "<other><n>9</n></other>"):
        shell("publish", on, str(written(tmp_path, payload)))
    cause = shell("publish", on, str(written(tmp_path, "<reading><n>7</n></reading>"))).strip()
    shell("publish", on, str(written(tmp_path, "<reading><n>8</n></reading>")))
    (push,) = receiver.wait_for(1, "/alarms")
    assert b"<alarm>&lt;</alarm>" in push.body
    assert push.headers["arborcast-notification-id"] == derived_id(made["id"], notification(job.settings.kafka, cause))
    assert made["id"] not in alone("subscriptions", "list")
    assert f"trigger:{name}" in alone("topics", "subscriptions", on)

    gateway.kill()
    gateway.start()
    with pytest.raises(ArborcastError, match="already"):
        shell("triggers", "add", name, *options, "--same")
    shell("triggers", "remove", name)
    with pytest.raises(ArborcastError, match="there is no trigger"):
        shell("triggers", "remove", name)
    assert name not in alone("triggers", "list")
    shell("publish", on, str(written(tmp_path, "<reading><n>9</n></reading>")))
    rows = [row for row in attempt_rows(job.settings, 1) if row["subscription"] == made["id"]]
    assert {row["notification"] for row in rows} <= {cause}
    assert len(receiver.received("/alarms")) == 1


def written(folder: Path, payload: str) -> Path:
    file = folder / "payload.xml"
    file.write_text(payload)
    return file
