"""Dead letters and waiting deliveries as values, also of queues and links. On logs in Kafka:
tests/integration/dispatch/test_dead_letters.py."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.admin import control_log, dead_letters, waiting
from arborcast.admin.dead_letters import LetterFilter, RedriveCounts
from arborcast.admin.federation import links, with_waiting
from arborcast.admin.queues import QueueRequests, RequestStatus, job_figures, requests
from arborcast.admin.waiting import WaitingFilter
from arborcast.cli import app
from arborcast.cli import dead_letters as commands
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Delivery, Place, Tries
from arborcast.dispatch.operations.dead_letters import LetterConditions
from arborcast.dispatch.operations.views import DeliveryViews, ViewFilter, ViewGroup
from arborcast.dispatch.operations.waiting import Wait, Waiting
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import Peer
from arborcast.topic_model.topics import TopicPath
from tests.support.listed_logs import ListedLogs, cached_views
from tests.support.routing import make_subscription
from tests.support.waiting import TIMEOUT_S

KAFKA = KafkaSettings()
NOW_MS = int(time.time() * 1000)
AT_MS, LATER_MS = NOW_MS - 3_600_000, NOW_MS + 3_600_000


def letter(subscription: str, at_ms: int = AT_MS, offset: int = 0) -> tuple[Delivery, DeadLetter]:
    message = Notification("n", TopicPath("a"), b"<x/>", AT_MS)
    found = DeadLetter(subscription, "http://r/", message, "dead", at_ms, 6, "server-error", status=500)
    return Delivery(subscription, Place(0, 0, offset)), found


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> ListedLogs:
    return ListedLogs(monkeypatch)


@pytest.fixture
def kept() -> Iterator[DeliveryViews]:
    with cached_views() as views:
        yield views


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, logs: ListedLogs) -> list[tuple[Delivery, DeadLetter]]:
    given = [letter("s1"), letter("over"), letter("s1", NOW_MS + 3_000, 1), letter("s1", offset=2)]
    for each in given:
        logs.bury(*each)

    def letters(_kafka: KafkaSettings, selects: Callable[[DeadLetter], bool]) -> Iterator[tuple[Delivery, DeadLetter]]:
        return (each for each in given if selects(each[1]))

    monkeypatch.setattr(dead_letters, "letters", letters)
    return given


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> ControlView:
    monkeypatch.setattr(control_log, "read_control", None)
    control = ControlView()
    for name in ("s1", "s2"):
        control.apply(SubscriptionRecord(make_subscription(name, "a", consumer=f"http://r/{name}")))
    control.apply(SubscriptionSuspended("s2", "away", NOW_MS, NOW_MS))
    return control


def test_the_command_prints_iso_8601_times_and_an_empty_list(logs: ListedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "kafka_of", lambda: KAFKA)
    result = CliRunner().invoke(app, ["dead-letters", "list"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no dead letters\n")
    logs.bury(*letter("s1"))
    result = CliRunner().invoke(app, ["dead-letters", "list", "--json", "--limit", "1"])
    (found,) = json.loads(result.stdout)["letters"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", found["given_up"])


@pytest.mark.usefixtures("given")
def test_each_letter_of_a_notification_is_a_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "kafka_of", lambda: KAFKA)
    shown = CliRunner().invoke(app, ["dead-letters", "show", "n", "--json"]).stdout.splitlines()
    assert [json.loads(each)["subscription"] for each in shown] == ["s1", "over", "s1", "s1"]


@pytest.mark.usefixtures("written_operations")
def test_concurrent_redrives_redrive_a_letter_once(monkeypatch: pytest.MonkeyPatch, control: ControlView) -> None:
    """As after a double click: the second one begins before the letters of the first have left the log."""
    log, redriven = [letter("s1")], list[Delivery]()
    second_waits = threading.Event()

    class Lock:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                second_waits.set()
                self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    class Admin(nullcontext[None]):
        def __enter__(self) -> Any:
            return self

        def redrive(self, letters: Iterator[tuple[Delivery, DeadLetter]]) -> int:
            found = [delivery for delivery, _ in letters]
            if not redriven:
                redriven.extend(found)
                threads.append(threading.Thread(target=redrive))
                threads[0].start()
                assert second_waits.wait(TIMEOUT_S)
                log.clear()
            else:
                redriven.extend(found)
                second_waits.set()
            return len(found)

    def redrive() -> None:
        counts.append(dead_letters.redrive(KAFKA, LetterFilter(), control=control).redriven)

    threads, counts = list[threading.Thread](), list[int]()
    monkeypatch.setattr(dead_letters, "letters", lambda *_: iter(log))
    monkeypatch.setattr(dead_letters, "DeadLetterAdmin", lambda _kafka: Admin())
    monkeypatch.setattr(dead_letters, "_CHANGE", Lock(), raising=False)
    redrive()
    threads[0].join(TIMEOUT_S)
    assert (len(redriven), counts) == (1, [1, 0])


def test_letters_of_queues_can_be_redriven(monkeypatch: pytest.MonkeyPatch, control: ControlView) -> None:
    monkeypatch.setattr(dead_letters, "letters", lambda *_: iter([letter("queue:jobs"), letter("over")]))
    assert dead_letters.redrivable(KAFKA, LetterFilter(), control=control) == (1, 1, 0)


@pytest.mark.usefixtures("given")
def test_lists_counts_and_messages_of_letters(control: ControlView, kept: DeliveryViews) -> None:
    found = dead_letters.listed(KAFKA, LetterFilter(), 3)
    assert [(each.subscription, each.given_up_ms) for each in found.letters] == [
        ("s1", NOW_MS + 3_000),
        ("s1", AT_MS),
        ("over", AT_MS),
    ]
    assert (found.more, found.letters[0].status) == (1, 500)
    wanted = LetterFilter(subscription="s1")
    assert [dead_letters.count(KAFKA, wanted, *most) for most in ((), (2,))] == [3, 2]
    # In parts, as for the console.
    first, place = dead_letters.following(KAFKA, wanted, 2, None, control, kept)
    others, end = dead_letters.following(KAFKA, wanted, 2, place, control, kept)
    assert first + others == dead_letters.listed(KAFKA, wanted, 9).letters
    assert (len(first), len(others), end) == (2, 1, None)
    # Only the selected ones.
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
def test_letters_that_cannot_be_redriven(control: ControlView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.admin.dead_letters.time.time", lambda: NOW_MS / 1000)
    assert dead_letters.redrivable(KAFKA, LetterFilter(), None, control) == RedriveCounts(redriven=2, over=1, too_new=1)
    assert dead_letters.redrivable(KAFKA, LetterFilter(), 1, control) == RedriveCounts(redriven=1, over=0, too_new=0)


def waits(
    monkeypatch: pytest.MonkeyPatch, wanted: WaitingFilter, control: ControlView | None, tries: Tries | None = None
) -> waiting.WaitingList:
    def oldest(
        _self: Waiting, asked: ViewFilter, most: int, skip: int, *, newest_first: bool
    ) -> tuple[list[Wait], int, Counter[str]]:
        assert (skip, newest_first) == (0, False)
        names = [name for name in ("s1", "s2", "over") if asked.group(ViewGroup(name, "", TopicPath("a"), ""))]
        waits = [Wait(Delivery(each, Place(1, 0, 1)), "n", TopicPath("a"), 1, 2, tries or Tries()) for each in names]
        return waits[:most], len(waits[most:]), Counter(each.delivery.subscription for each in waits)

    monkeypatch.setattr(Waiting, "oldest", oldest)
    monkeypatch.setattr(Waiting, "with_last", lambda _self, waits, _within_s: (waits, False))
    return waiting.oldest(KAFKA, wanted, 2, control)


def test_without_a_state_it_is_read(monkeypatch: pytest.MonkeyPatch, control: ControlView) -> None:
    monkeypatch.setattr(control_log, "read_control", lambda _: control)
    (only,) = waits(monkeypatch, WaitingFilter(endpoint="http://r/s2"), None).waiting
    assert only.subscription == "s2"
    (over,) = waits(monkeypatch, WaitingFilter(subscription="http://broker/over"), None).waiting
    assert (over.state, over.endpoint) == ("over", "")


@pytest.mark.parametrize("shown", ["http://user:secret@r/s3", "http://…@r/s3"])
def test_deliveries_are_found_by_an_endpoint_as_pages_show_it(
    monkeypatch: pytest.MonkeyPatch, control: ControlView, shown: str
) -> None:
    address = "http://user:secret@r/s3"
    control.apply(SubscriptionRecord(make_subscription("s1", "a", consumer=address)))
    assert [each.subscription for each in waits(monkeypatch, WaitingFilter(endpoint=shown), control).waiting] == ["s1"]
    assert LetterConditions(endpoint=shown).at(address)
    assert not LetterConditions(endpoint=shown).at("http://r/s3")


@pytest.mark.parametrize(
    ("tries", "stage", "suspended", "next_ms"),
    [
        (Tries(), "queued", "held", 0),
        (Tries(1, 1, NOW_MS - 1, NOW_MS - 2), "due", "held", 0),
        (Tries(1, 0, LATER_MS, NOW_MS, f"{UNANSWERED_PUSH}p"), "in flight", "in flight", LATER_MS),
        (Tries(1, 0, LATER_MS, NOW_MS, "p"), "awaited", "awaited", LATER_MS),
        (Tries(2, 2, LATER_MS, NOW_MS), "scheduled", "held", LATER_MS),
    ],
    ids=["new", "due", "in flight", "awaited", "scheduled"],
)
def test_stages(
    monkeypatch: pytest.MonkeyPatch, control: ControlView, tries: Tries, stage: str, suspended: str, next_ms: int
) -> None:
    """The time of the next attempt is never in the past; a suspended subscription has none."""
    active, held = waits(monkeypatch, WaitingFilter(), control, tries).waiting
    assert (active.stage, active.next_ms) == (stage, next_ms)
    assert (held.stage, held.next_ms) == (suspended, 0 if suspended == "held" else next_ms)


def test_parts_of_a_list_have_the_last_attempts_until_its_end(
    monkeypatch: pytest.MonkeyPatch, control: ControlView, logs: ListedLogs, kept: DeliveryViews
) -> None:
    for number in range(3):
        message = Notification(f"n{number}", TopicPath("a"), b"<x/>", 1)
        logs.park(Delivery("s1", Place(1, 0, number)), message, Tries(1, 1, LATER_MS, NOW_MS), at_ms=NOW_MS)
    attempt = Attempt("n", "s1", TopicPath("a"), "http://r/s1", 1, "p", "parked", 1, 1, 2.0, error="timeout")

    def with_last(_self: Waiting, waits: Sequence[Wait], within_s: float) -> tuple[list[Wait], bool]:
        assert within_s == 7.0
        return [each._replace(last=attempt) for each in waits], True

    monkeypatch.setattr(Waiting, "with_last", with_last)
    wanted, found, place = WaitingFilter(endpoint="http://r/s1"), list[waiting.WaitingEntry](), None
    for names in (["n2", "n1"], ["n0"]):
        part, place = waiting.following(KAFKA, wanted, 2, place, control, True, kept, 7.0)
        assert [each.notification for each in part] == names
        found += part
    assert place is None
    assert {(each.endpoint, each.error, each.state) for each in found} == {("http://r/s1", "timeout", "active")}


JOBS = TopicPath("jobs")


def test_an_unreachable_job_is_a_problem_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Mock(side_effect=ConnectionRefusedError(111, "Connection refused"))
    monkeypatch.setattr("arborcast.engine.monitoring.stack_monitor.get", away)
    assert job_figures(tmp_path, "http://job:1") == (None, "no process listens there")
    away.assert_called_once_with("http://job:1/metrics")
    assert "no engine runs in" in job_figures(tmp_path).problem
    monkeypatch.setattr("arborcast.engine.monitoring.stack_monitor.get", lambda _: b'queue_requests{queue="a"} 7')
    scrape = job_figures(tmp_path, "http://job:1").scrape
    assert scrape is not None
    assert scrape.sum("queue_requests", queue="a") == 7


def test_requests_are_the_deliveries_in_the_lane_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Delivery("queue:jobs", Place(1, 0, 2))
    waits = [
        Wait(lane, "r1", JOBS, 1_000, 1_000, Tries(2, 2, 5_000, 2_000), None, 5),
        Wait(lane, "r2", JOBS, 2_000, 2_000, Tries()),
    ]

    def oldest(_: object, asked: ViewFilter, most: int) -> tuple[list[Wait], int, Counter[str]]:
        assert (asked, most) == (ViewFilter(subscription="queue:jobs"), 2)
        return waits, 3, Counter()

    monkeypatch.setattr("arborcast.dispatch.operations.waiting.Waiting.oldest", oldest)
    assert requests(KafkaSettings(), JOBS, 2) == QueueRequests(
        (RequestStatus("r1", 5, 1_000, 2, 5_000), RequestStatus("r2", 0, 2_000, 0, 0)), 3
    )


def test_links_are_the_subscriptions_of_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlView()
    for name, terminates_ms in (("peer-b", None), ("peer-a", None), ("peer-c", 5), ("ordinary", None)):
        made = make_subscription(name, "a//.|b", consumer=f"http://{name}/", created_ms=1_000)
        peer = Peer("G/own", f"G/{name[-1]}") if name.startswith("peer") else None
        control.apply(SubscriptionRecord(msgspec.structs.replace(made, peer=peer, terminates_ms=terminates_ms)))
    control.apply(SubscriptionSuspended("peer-b", "refused", 1, 2))
    found = links(control)
    assert [(each.link, each.to, each.state) for each in found] == [
        ("peer-a", "G/a", "active"),
        ("peer-b", "G/b", "suspended"),
        ("peer-c", "G/c", "closing"),
    ]
    assert (found[0].url, found[0].topics, found[0].since_ms) == ("http://peer-a/", ("a//.", "b"), 1_000)
    tally = Mock(return_value={"peer-b": (41, 2_000)})
    monkeypatch.setattr("arborcast.dispatch.operations.waiting.Waiting.tally", tally)
    counted = with_waiting(KafkaSettings(), found)
    assert [(each.waiting, each.waiting_since_ms) for each in counted] == [(0, 0), (41, 2_000), (0, 0)]
    assert with_waiting(KafkaSettings(), ()) == ()
    tally.assert_called_once_with({"peer-a", "peer-b", "peer-c"})
