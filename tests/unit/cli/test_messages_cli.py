"""`publish`, `listen`, `unsubscribe` against the gateway's application over real HTTP, as a shell runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.cli.messages import InputError
from arborcast.cli.shell_client import LEASE_S, LOOK_S, LeasedSubscription
from arborcast.client import BrokerUnreachable, FaultReceived, RemoteSubscription
from arborcast.client.client import Client
from arborcast.dispatch.job import lease
from arborcast.engine.embedded import state, status
from arborcast.engine.embedded.engine import write_settings
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus
from arborcast.engine.processes.processes import ProcessId
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.subscriptions import DeliveryPolicy
from arborcast.topic_model.topics import TopicPath
from tests.support.command import COMMAND
from tests.support.gateway_parts import START, GatewayParts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def test_publish_prints_the_id_that_trace_asks_for(parts: GatewayParts, url: str) -> None:
    plain = CliRunner().invoke(app, ["publish", "a/b", "-", "--url", url], input="<x/>")
    assert plain.exit_code == 0, plain.output
    document = json.loads(CliRunner().invoke(app, ["publish", "a/b", "-", "--url", url, "--json"], input="<x/>").output)
    ids = [each.id for each in parts.notifications.accepted]
    assert [plain.output.strip(), document["notification_id"]] == ids
    assert re.fullmatch("[0-9a-f]{32}", ids[0])


@pytest.mark.parametrize("name", ["id", "address"])
def test_unsubscribe_takes_the_id_that_the_list_shows(parts: GatewayParts, url: str, name: str) -> None:
    with Client(url) as client:
        client.subscribe("a", to="http://h/")
    (subscription,) = parts.table.subscriptions()
    given = getattr(subscription, name)
    done = CliRunner().invoke(app, ["unsubscribe", given, "--url", f"{url}/wsn/NotificationBroker"])
    assert done.exit_code == 0, done.output
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_listen_ends_its_subscription_however_it_is_ended(
    parts: GatewayParts, url: str, number: signal.Signals
) -> None:
    command = [COMMAND, "listen", "a//.", "--url", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stderr is not None
            assert listening.stderr.readline().startswith("listening to a//.")
            (subscription,) = parts.table.subscriptions()
            lasts_ms = (subscription.terminates_ms or 0) - START.timestamp() * 1000
            assert lasts_ms == LEASE_S * 1000, "when it is killed, it ends by itself"
            listening.send_signal(number)
            assert listening.wait() == 0, listening.stderr.read()
        finally:
            listening.kill()
    assert not list(parts.table.subscriptions())


@dataclass
class Broker:
    """Stands in for the client: does as the functions say."""

    renew_does: Callable[[], None] = lambda: None
    unsubscribe_does: Callable[[], None] = lambda: None
    renewed: list[timedelta] = field(default_factory=list)
    subscribed: list[timedelta] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def renew(self, address: str, lasts: timedelta) -> None:
        assert address == "http://b/1"
        self.renewed.append(lasts)
        self.renew_does()

    def unsubscribe(self, address: str) -> None:
        self.unsubscribe_does()

    def subscribe(self, lasts: timedelta) -> RemoteSubscription:
        self.subscribed.append(lasts)
        return RemoteSubscription("http://b/1")

    def leased(self, lease_s: float) -> LeasedSubscription:
        client: Client = self  # type: ignore[assignment]
        return LeasedSubscription(
            client, self.subscribe, self.told.append, self.ended.set, lease_s=lease_s, renewed_every_s=0.01
        )


def fails(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


UNKNOWN = fails(FaultReceived("there is none", "ResourceUnknownFault"))
AWAY = fails(BrokerUnreachable("nobody answers"))


def test_a_broker_that_is_away_for_a_while_is_asked_again() -> None:
    broker = Broker(renew_does=AWAY)
    with broker.leased(60):
        wait_until(lambda: len(broker.renewed) >= 3, "tried again")
        assert not broker.ended.is_set()
        assert len(broker.told) == 1, "it is said once"
        assert re.search(r"the broker does not respond; the subscription lasts until \d\d:\d\d:\d\d", broker.told[0])
        broker.renew_does = lambda: None
        wait_until(lambda: len(broker.told) == 2, "told that it is back")
        assert "the broker is back; the subscription goes on" in broker.told[1]


def test_a_broker_that_nothing_listens_for_is_away_before_it_is_time_to_renew() -> None:
    broker, there = Broker(), True
    client: Client = broker  # type: ignore[assignment]  # has the part that is called
    leased = LeasedSubscription(client, broker.subscribe, broker.told.append, broker.ended.set, reachable=lambda: there)
    with leased:
        assert leased._look() == LOOK_S
        there = False
        leased._look()
        there = True
        leased._look()
    assert [each.partition(" ")[2].partition(";")[0] for each in broker.told] == [
        "the broker does not respond",
        "the broker is back",
    ]
    assert broker.renewed == [timedelta(seconds=LEASE_S)], "one record, and not one for each look"


@pytest.mark.parametrize("data", ['{"celsius": 21.5, "of": "a<b"}', " [1, 2]\n", '"text"', "21.5"])
def test_json_is_published_as_by_post(parts: GatewayParts, url: str, data: str) -> None:
    result = CliRunner().invoke(app, ["publish", "a/b", "-", "--url", url], input=data)
    assert result.exit_code == 0, result.output
    posted = httpx.post(f"{url}/publish/a/b", content=data, headers={"Content-Type": "application/json"})
    assert posted.status_code == 202
    ours, theirs = parts.notifications.accepted
    assert ours.payload == theirs.payload


def test_what_is_neither_xml_nor_json_is_said(url: str) -> None:
    result = CliRunner().invoke(app, ["publish", "a/b", "-", "--url", url], input="hello")
    assert isinstance(result.exception, InputError)
    assert "neither an XML element nor JSON" in str(result.exception)


def test_after_a_time_longer_than_the_lease_it_is_subscribed_again() -> None:
    """A notebook that slept."""
    broker = Broker(renew_does=UNKNOWN)
    with broker.leased(0.001):
        wait_until(lambda: len(broker.told) >= 1, "told")
    assert "subscribed again" in broker.told[0]
    assert len(broker.subscribed) >= 2
    assert not broker.ended.is_set()


def test_one_that_somebody_else_has_ended_stays_so() -> None:
    broker = Broker(renew_does=UNKNOWN, unsubscribe_does=UNKNOWN)
    with broker.leased(60):
        assert broker.ended.wait(60)
    assert len(broker.subscribed) == 1
    assert not broker.told


def test_what_could_not_be_ended_is_said_with_when_it_ends() -> None:
    broker = Broker(unsubscribe_does=AWAY)
    with broker.leased(60):
        pass
    (told,) = broker.told
    assert re.search(r"it ends by itself at \d\d:\d\d:\d\d: nobody answers", told)


def test_publish_and_subscribe_say_types_validity_and_priority(parts: GatewayParts, url: str) -> None:
    def done(*arguments: str) -> None:
        result = CliRunner().invoke(app, [*arguments, "--url", url], input="<x/>")
        assert result.exit_code == 0, result.output

    done(
        "publish",
        "a/b",
        "-",
        "--lifespan",
        "0.5",
        "--valid-until",
        "2030-01-31T12:00:00",
        "--priority",
        "-5",
        "--type",
        "p:x",
        "-n",
        "p=urn:p",
    )
    done("publish", "a/b", "-", "--valid-until", "2026-01-01T00:00:01Z", "--reliable")
    done("subscribe", "a", "--to", "http://h/", "--type", "{urn:p}x", "--type", "{urn:p}y", "--priority", "9")
    start_ms = int(START.timestamp() * 1000)
    accepted = parts.notifications.accepted
    assert [(each.valid_until_ms, each.type, each.priority) for each in accepted] == [
        (start_ms + 500, "{urn:p}x", -5),
        (start_ms + 1_000, "x", 0),
    ]
    assert [each.reliable for each in accepted] == [False, True]
    (subscription,) = parts.table.subscriptions()
    assert (subscription.types, subscription.policy.priority) == (("{urn:p}x", "{urn:p}y"), 9)
    wrong = CliRunner().invoke(app, ["publish", "a/b", "-", "--valid-until", "soon", "--url", url], input="<x/>")
    assert wrong.exit_code != 0
    assert "--valid-until" in wrong.output + str(wrong.exception)


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        (["--reliability", "timely"], DeliveryPolicy(reliability="timely")),
        (["--kind", "signal"], DeliveryPolicy(reliability="timely", lifespan_ms=1_000)),
        (["--kind", "signal", "--lifespan", "3"], DeliveryPolicy(reliability="timely", lifespan_ms=3_000)),
        (["--kind", "request", "--per-topic"], DeliveryPolicy("strict", deadline_ms=5_000, deadline_per="topic")),
        (["--kind", "state", "--reliability", "strict"], DeliveryPolicy("strict", interval_ms=1_000)),
        (
            ["--kind", "state", "--interval", "3", "--together"],
            DeliveryPolicy(interval_ms=3_000, interval_per="subscription"),
        ),
    ],
)
def test_how_to_deliver_is_said_by_the_kind_of_information_or_in_detail(
    arguments: list[str], policy: DeliveryPolicy, parts: GatewayParts, url: str
) -> None:
    result = CliRunner().invoke(app, ["subscribe", "a", "--to", "http://h/", *arguments, "--url", url])
    assert result.exit_code == 0, result.output
    assert [each.policy for each in parts.table.subscriptions()] == [policy]


def test_a_state_is_shown_at_once(parts: GatewayParts, url: str) -> None:
    parts.table.apply(TopicRecord(TopicPath("a"), policy=TopicPolicy(retain=True)))
    runner = CliRunner()
    assert runner.invoke(app, ["publish", "a", "-", "--url", url], input="<x/>").exit_code == 0
    assert runner.invoke(app, ["subscribe", "a", "--to", "http://h/", "--kind", "state", "--url", url]).exit_code == 0
    (subscription,) = parts.table.subscriptions()
    assert [each.only for each in parts.notifications.accepted] == ["", subscription.id]


def test_a_server_of_a_queue_says_how_much_it_takes(parts: GatewayParts, url: str) -> None:
    parts.table.apply(TopicRecord(TopicPath("jobs"), policy=TopicPolicy(queue=True)))
    result = CliRunner().invoke(app, ["subscribe", "jobs", "--to", "http://h/", "--queue", "3", "--url", url])
    assert result.exit_code == 0, result.output
    assert [each.queue for each in parts.table.subscriptions()] == [3]


def test_triggers_of_the_documentation_can_be_made_as_they_are_printed(parts: GatewayParts, url: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
    block = page.partition("\n## Triggers\n")[2].partition("```sh\n")[2].partition("```")[0]
    names = []
    for line in block.replace("\\\n", "").splitlines():
        _, command, verb, *arguments = shlex.split(line)
        if (command, verb) == ("topics", "add"):
            for fold in parts.control.folds:
                fold.apply(TopicRecord(TopicPath(arguments[0])))
        elif verb != "list":
            done = CliRunner().invoke(app, [command, verb, *arguments, "--url", url])
            assert done.exit_code == 0, done.output
            names.append(arguments[0])
    assert names == ["overheated", "mirror", "mirror"]


@pytest.fixture
def without_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Path:
    """The data directory of an engine that seems to run, at this address, with the job left to others."""
    home = Home(tmp_path)
    home.settings_file.parent.mkdir(parents=True, exist_ok=True)
    write_settings(load_settings(None, tmp_path, {"stack.job": "external"}, environ={}), home)
    state.write(home.state_file, EngineStatus(ProcessId(os.getpid(), 0), 0, {"gateway": url}))
    monkeypatch.setattr(Home, "owner", lambda _: os.getpid())
    return tmp_path


@pytest.mark.parametrize("held", [True, False])
def test_a_publisher_sees_that_no_job_runs(without_job: Path, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    monkeypatch.setattr(lease, "is_held", lambda kafka, patience_s: held)
    done = CliRunner().invoke(app, ["publish", "a/b", "-", "--home", str(without_job)], input="<x/>")
    assert done.exit_code == 0
    assert ("no streaming job runs" in done.stderr) == (not held)
    assert re.fullmatch("[0-9a-f]{32}\n", done.stdout)


@pytest.mark.parametrize(("held", "word", "code"), [(True, "running", 0), (False, "none", 4)])
def test_status_says_whether_a_job_of_others_runs(
    without_job: Path, monkeypatch: pytest.MonkeyPatch, held: bool, word: str, code: int
) -> None:
    monkeypatch.setattr(lease, "is_held", lambda kafka, patience_s: held)
    monkeypatch.setattr(status, "status", lambda path: {"running": False, "ready": True, "home": "h", "problem": ""})
    done = CliRunner().invoke(app, ["status", "--json", "--home", str(without_job)])
    assert (json.loads(done.stdout)["job"], done.exit_code) == (word, code)
    done = CliRunner().invoke(app, ["status", "--home", str(without_job)])
    assert ("no streaming job runs" in done.stdout, done.exit_code) == (not held, code)
