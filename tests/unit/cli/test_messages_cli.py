"""`publish`, `listen`, `unsubscribe` with the gateway's application over real HTTP, as a shell runs them."""

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

from arborcast.cli import output_queue
from arborcast.cli.messages import InputError, duration, print_message
from arborcast.cli.output_queue import OutputQueue
from arborcast.cli.shell_client import LEASE_S, LOOK_S, LeasedSubscription
from arborcast.client import BrokerUnreachable, FaultReceived, RemoteSubscription
from arborcast.client.client import Client
from arborcast.client.listener import Busy
from arborcast.client.received import ReceivedMessage
from arborcast.core.errors import ConfigError
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
from tests.support.command import COMMAND, Shell
from tests.support.gateway_parts import START, GatewayParts, only_subscription
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def publish(url: str) -> Callable[..., str]:
    return lambda *arguments, data="<x/>": Shell()("publish", "a", "-", *arguments, "--url", url, typed=data)


@pytest.fixture
def subscribe(url: str) -> Callable[..., str]:
    return lambda *arguments: Shell()("subscribe", "a", "--to", "http://h/", *arguments, "--url", url)


def test_publish_prints_the_notification_id(parts: GatewayParts, publish: Callable[..., str]) -> None:
    ids = [publish().strip(), json.loads(publish("--json"))["notification_id"]]
    assert ids == [each.id for each in parts.notifications.accepted]
    assert re.fullmatch("[0-9a-f]{32}", ids[0])


def test_facts_of_a_published_notification(parts: GatewayParts, publish: Callable[..., str]) -> None:
    publish(
        *("--lifespan", "0.5", "--valid-until", "2030-01-31T12:00:00"),
        *("--priority", "-5", "--type", "p:x", "-n", "p=urn:p"),
    )
    publish("--valid-until", "2026-01-01T00:00:01Z", "--reliable")
    start_ms = int(START.timestamp() * 1000)
    facts = [(each.valid_until_ms, each.type, each.priority, each.reliable) for each in parts.notifications.accepted]
    assert facts == [(start_ms + 500, "{urn:p}x", -5, False), (start_ms + 1_000, "x", 0, True)]
    with pytest.raises(ConfigError, match="--valid-until"):
        publish("--valid-until", "soon")


@pytest.mark.parametrize("data", ['{"celsius": 21.5, "of": "a<b"}', " [1, 2]\n", '"text"', "21.5"])
def test_json_is_published_as_by_post(parts: GatewayParts, url: str, publish: Callable[..., str], data: str) -> None:
    publish(data=data)
    posted = httpx.post(f"{url}/publish/a", content=data, headers={"Content-Type": "application/json"})
    assert posted.status_code == 202
    ours, theirs = parts.notifications.accepted
    assert ours.payload == theirs.payload
    with pytest.raises(InputError, match="neither an XML element nor JSON"):
        publish(data="hello")


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ("--reliability timely", DeliveryPolicy(reliability="timely")),
        ("--kind signal", DeliveryPolicy(reliability="timely", lifespan_ms=1_000)),
        ("--kind signal --lifespan 3", DeliveryPolicy(reliability="timely", lifespan_ms=3_000)),
        ("--kind request --per-topic", DeliveryPolicy("strict", deadline_ms=5_000, deadline_per="topic")),
        ("--kind state --reliability strict", DeliveryPolicy("strict", interval_ms=1_000)),
        ("--kind state --interval 3 --together", DeliveryPolicy(interval_ms=3_000, interval_per="subscription")),
        ("--priority 9", DeliveryPolicy(priority=9)),
    ],
)
def test_delivery_by_kind_of_information_or_by_options(
    arguments: str, policy: DeliveryPolicy, parts: GatewayParts, subscribe: Callable[..., str]
) -> None:
    subscribe(*arguments.split(), "--type", "{urn:p}x", "--type", "{urn:p}y")
    made = only_subscription(parts)
    assert (made.policy, made.types) == (policy, ("{urn:p}x", "{urn:p}y"))


@pytest.mark.parametrize("name", ["id", "address"])
def test_unsubscribe_takes_the_id_or_the_address(
    parts: GatewayParts, url: str, subscribe: Callable[..., str], name: str
) -> None:
    subscribe()
    Shell()("unsubscribe", getattr(only_subscription(parts), name), "--url", f"{url}/wsn/NotificationBroker")
    assert not list(parts.table.subscriptions())


def test_a_retained_message_and_a_server_of_a_queue(
    parts: GatewayParts, publish: Callable[..., str], subscribe: Callable[..., str]
) -> None:
    parts.table.apply(TopicRecord(TopicPath("a"), policy=TopicPolicy(retain=True)))
    publish()
    subscribe("--kind", "state")
    assert [each.only for each in parts.notifications.accepted] == ["", only_subscription(parts).id]
    parts.table.apply(TopicRecord(TopicPath("a"), policy=TopicPolicy(queue=True)))
    subscribe("--queue", "3")
    assert sorted(each.queue for each in parts.table.subscriptions()) == [0, 3]


@pytest.mark.parametrize("option", ["--secret-file", "--bearer-file"])
def test_an_empty_secret_is_refused(
    parts: GatewayParts, subscribe: Callable[..., str], tmp_path: Path, option: str
) -> None:
    """The subscription would have neither signatures nor credentials."""
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match="empty is empty: a secret"):
        subscribe(option, str(tmp_path / "empty"))
    assert not [*parts.table.subscriptions()]


def test_listen_at_an_address_of_another_machine(url: str) -> None:
    with pytest.raises(InputError, match=r"cannot listen at 203\.0\.113\.1:0: .*--host"):
        Shell()("listen", "a", "--host", "203.0.113.1", "--url", url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_listen_unsubscribes_at_every_signal(parts: GatewayParts, url: str, number: signal.Signals) -> None:
    command = [COMMAND, "listen", "a//.", "--url", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stderr is not None
            assert listening.stderr.readline().startswith("listening to a//.")
            (subscription,) = parts.table.subscriptions()
            lasts_ms = (subscription.terminates_ms or 0) - START.timestamp() * 1000
            assert lasts_ms == LEASE_S * 1000, "after a kill it expires"
            listening.send_signal(number)
            assert listening.wait() == 0, listening.stderr.read()
        finally:
            listening.kill()
    assert not list(parts.table.subscriptions())


def test_messages_before_a_blocked_output_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_queue, "WAITING_BYTES", 50_000)
    waiting = OutputQueue()
    message = ReceivedMessage(payload=b"x" * 20_000, topic=TopicPath("a"))
    waiting.put(message)
    waiting.put(message)
    with pytest.raises(Busy):
        waiting.put(message)
    assert waiting.get() is message
    waiting.put(message)
    waiting.end()
    assert [waiting.get() for _ in range(3)] == [message, message, None]


def test_a_message_joined_from_parts_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = tmp_path / "content"
    content.write_text("<joined/>")
    message = ReceivedMessage(payload=b"", topic=TopicPath("a"), file=content.open("rb"))
    print_message(message, json=True)
    assert json.loads(capsys.readouterr().out)["payload"] == "<joined/>"
    assert message.file is not None
    assert message.file.closed


@dataclass
class Broker:
    """A client whose calls fail by its attributes."""

    renewal_fails: Exception | None = None
    unsubscription_fails: Exception | None = None
    renewed: list[timedelta] = field(default_factory=list)
    subscribed: list[timedelta] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def renew(self, address: str, lasts: timedelta) -> None:
        assert address == "http://b/1"
        self.renewed.append(lasts)
        if self.renewal_fails:
            raise self.renewal_fails

    def unsubscribe(self, address: str) -> None:
        if self.unsubscription_fails:
            raise self.unsubscription_fails

    def subscribe(self, lasts: timedelta) -> RemoteSubscription:
        self.subscribed.append(lasts)
        return RemoteSubscription("http://b/1")

    def leased(self, lease_s: float) -> LeasedSubscription:
        client: Client = self  # type: ignore[assignment]
        return LeasedSubscription(
            client, self.subscribe, self.printed.append, self.ended.set, lease_s=lease_s, renewed_every_s=0.01
        )


UNKNOWN = FaultReceived("there is none", "ResourceUnknownFault")
AWAY = BrokerUnreachable("no answer")


def test_a_lease_during_an_outage_of_the_broker() -> None:
    broker = Broker(renewal_fails=AWAY)
    with broker.leased(60):
        wait_until(lambda: len(broker.renewed) >= 3, "tried again")
        assert not broker.ended.is_set()
        (away,) = broker.printed
        assert re.search(r"the broker does not respond; the subscription lasts until \d\d:\d\d:\d\d", away)
        broker.renewal_fails = None
        wait_until(lambda: len(broker.printed) == 2, "the broker is back")
        assert "the broker is back; the subscription continues" in broker.printed[1]
        broker.unsubscription_fails = AWAY
    assert re.search(r"it expires at \d\d:\d\d:\d\d: no answer", broker.printed[2])


def test_between_renewals_a_connection_detects_an_outage() -> None:
    broker, there = Broker(), True
    client: Client = broker  # type: ignore[assignment]  # has the part that is called
    leased = LeasedSubscription(
        client, broker.subscribe, broker.printed.append, broker.ended.set, reachable=lambda: there
    )
    with leased:
        assert leased._look() == LOOK_S
        there = False
        leased._look()
        there = True
        leased._look()
    notes = [each.partition(" ")[2].partition(";")[0] for each in broker.printed]
    assert notes == ["the broker does not respond", "the broker is back"]
    assert broker.renewed == [timedelta(seconds=LEASE_S)], "one record, not one for each check"


def test_an_ended_subscription_is_recreated_only_after_its_lease() -> None:
    """After a suspension of the machine; not when another client has ended it."""
    asleep = Broker(renewal_fails=UNKNOWN)
    with asleep.leased(0.001):
        wait_until(lambda: bool(asleep.printed), "a note")
    assert "subscribed again" in asleep.printed[0]
    assert len(asleep.subscribed) >= 2
    assert not asleep.ended.is_set()
    ended = Broker(renewal_fails=UNKNOWN, unsubscription_fails=UNKNOWN)
    with ended.leased(60):
        assert ended.ended.wait(60)
    assert (len(ended.subscribed), ended.printed) == (1, [])


def test_triggers_of_the_documentation(parts: GatewayParts, url: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
    block = page.partition("\n## Triggers\n")[2].partition("```sh\n")[2].partition("```")[0]
    names = []
    for line in block.replace("\\\n", "").splitlines():
        _, command, verb, *arguments = shlex.split(line)
        if (command, verb) == ("topics", "add"):
            parts.control.apply(TopicRecord(TopicPath(arguments[0])))
        elif verb != "list":
            Shell()(command, verb, *arguments, "--url", url)
            names.append(arguments[0])
    assert names == ["overheated", "mirror", "mirror"]


@pytest.fixture
def without_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Path:
    """The data directory of an engine that seems to run, at this address, with an external job."""
    home = Home(tmp_path)
    home.settings_file.parent.mkdir(parents=True, exist_ok=True)
    write_settings(load_settings(None, tmp_path, {"stack.job": "external"}, environ={}), home)
    state.write(home.state_file, EngineStatus(ProcessId(os.getpid(), 0), 0, {"gateway": url}))
    monkeypatch.setattr(Home, "owner", lambda _: os.getpid())
    return tmp_path


@pytest.mark.parametrize(("held", "word", "code"), [(True, "running", 0), (False, "none", 4)])
def test_whether_a_job_runs_is_printed(
    without_job: Path, monkeypatch: pytest.MonkeyPatch, held: bool, word: str, code: int
) -> None:
    monkeypatch.setattr(lease, "is_held", lambda kafka, patience_s: held)
    published = Shell().run("publish", "a/b", "-", "--home", str(without_job), typed="<x/>")
    assert ("no streaming job runs" in published.stderr, published.exit_code) == (not held, 0)
    assert re.fullmatch("[0-9a-f]{32}\n", published.stdout)
    monkeypatch.setattr(status, "status", lambda path: {"running": False, "ready": True, "home": "h", "problem": ""})
    shown = Shell().run("status", "--json", "--home", str(without_job))
    assert (json.loads(shown.stdout)["job"], shown.exit_code) == (word, code)
    shown = Shell().run("status", "--home", str(without_job))
    assert ("no streaming job runs" in shown.stdout, shown.exit_code) == (not held, code)


@pytest.mark.parametrize("seconds", [1e300, float("nan"), float("inf")])
def test_a_number_that_is_no_duration_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="not a number of seconds"):
        duration(seconds)
