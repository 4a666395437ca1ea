"""Dead letters as values. On logs in Kafka: tests/integration/dispatch/test_dead_letters.py."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from arborcast.admin import control_log, dead_letters
from arborcast.admin.dead_letters import LetterFilter, Redrivable
from arborcast.cli import app
from arborcast.cli import dead_letters as commands
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.operations.dead_letters import LetterConditions
from arborcast.dispatch.operations.views import DeliveryViews
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.listed_logs import ListedLogs
from tests.support.routing import make_subscription

KAFKA = KafkaSettings()
NOW_MS = int(time.time() * 1000)
AT_MS = NOW_MS - 3_600_000


def letter(subscription: str, at_ms: int = AT_MS, offset: int = 0) -> tuple[Delivery, DeadLetter]:
    message = Notification("n", TopicPath("a"), b"<x/>", AT_MS)
    found = DeadLetter(subscription, "http://r/", message, "dead", at_ms, 6, "server-error", status=500)
    return Delivery(subscription, Place(0, 0, offset)), found


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> ListedLogs:
    return ListedLogs(monkeypatch)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, logs: ListedLogs) -> list[tuple[Delivery, DeadLetter]]:
    """What is in the log."""
    given = [letter("s1"), letter("over"), letter("s1", NOW_MS + 3_000, 1), letter("s1", offset=2)]
    for each in given:
        logs.bury(*each)

    def letters(_kafka: KafkaSettings, wanted: LetterConditions) -> Iterator[tuple[Delivery, DeadLetter]]:
        return (each for each in given if wanted.includes(each[1]))

    monkeypatch.setattr(dead_letters, "letters", letters)
    return given


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> ControlView:
    monkeypatch.delattr(control_log, "read_control")
    control = ControlView()
    control.apply(SubscriptionRecord(make_subscription("s1", "a")))
    return control


def test_the_command_prints_times_in_iso_8601_and_an_empty_list(
    logs: ListedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "kafka_of", lambda config, home: KAFKA)
    result = CliRunner().invoke(app, ["dead-letters", "list"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no dead letters\n")
    logs.bury(*letter("s1"))
    result = CliRunner().invoke(app, ["dead-letters", "list", "--json", "--limit", "1"])
    (found,) = json.loads(result.stdout)["letters"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", found["given_up"])


@pytest.mark.usefixtures("given")
def test_lists_counts_and_messages_of_letters(control: ControlView) -> None:
    found = dead_letters.listed(KAFKA, LetterFilter(), 3)
    assert [(each.subscription, each.given_up_ms) for each in found.letters] == [
        ("s1", NOW_MS + 3_000),
        ("s1", AT_MS),
        ("over", AT_MS),
    ]
    assert (found.more, found.letters[0].status) == (1, 500)
    wanted = LetterFilter(subscription="s1")
    assert [dead_letters.count(KAFKA, wanted, *most) for most in ((), (2,))] == [3, 2]
    # In parts, as the console has it.
    kept = DeliveryViews()
    first, place = dead_letters.following(KAFKA, wanted, 2, None, control, kept)
    others, end = dead_letters.following(KAFKA, wanted, 2, place, control, kept)
    assert first + others == dead_letters.listed(KAFKA, wanted, 9).letters
    assert (len(first), len(others), end) == (2, 1, None)
    # Chosen ones, and no others.
    chosen = LetterFilter(chosen=frozenset({("n", "over"), ("other", "s1")}))
    assert dead_letters.count(KAFKA, chosen) == 1
    assert [each.subscription for each in dead_letters.listed(KAFKA, chosen, 9).letters] == ["over"]
    with pytest.raises(ConfigError, match=r"^since --help"):
        dead_letters.listed(KAFKA, LetterFilter(since="--help"), 1)
    # With the message.
    assert dead_letters.first_whole(KAFKA, "n", "over").payload == "<x/>"
    assert len([*dead_letters.whole(KAFKA, "n")]) == 4
    with pytest.raises(ConfigError, match="no dead letter of notification m"):
        dead_letters.first_whole(KAFKA, "m")


@pytest.mark.usefixtures("given")
def test_some_letters_cannot_be_sent_again(control: ControlView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.admin.dead_letters.time.time", lambda: NOW_MS / 1000)
    assert dead_letters.redrivable(KAFKA, LetterFilter(), None, control) == Redrivable(possible=2, over=1, too_new=1)
    assert dead_letters.redrivable(KAFKA, LetterFilter(), 1, control) == Redrivable(possible=1, over=0, too_new=0)
