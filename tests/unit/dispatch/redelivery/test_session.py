from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import Mock

import pytest

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.delivery.health import EndpointHealthRegistry
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Delivery, Parked, Place, Tried, Tries
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery import redeliverer, session
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.redelivery.scheduler import Redelivery, RedeliveryContext, RedeliveryStatistics
from arborcast.dispatch.redelivery.session import SessionParts, opened_session
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records import results
from arborcast.topic_model.records.results import Promise, Result
from tests.support.make import known_to_redelivery, notification
from tests.support.outbound import THIS_MACHINE
from tests.support.redelivery_setup import HOUR_MS, Setup


def record(offset: int, size: int = 1) -> Any:
    """A record of the parked log."""
    value = parked.encode(Parked(notification(payload=b"x" * size, accepted_ms=1), Tries()))
    return SimpleNamespace(key=Delivery("s", Place(1, 0, offset)).key(), value=value, offset=offset)


def parts(make_transport: Any, subscriptions: Any = None) -> SessionParts:
    context = RedeliveryContext(
        push=PushSettings(),
        retry=RetrySettings(),
        health=EndpointHealthRegistry(RetrySettings(), lambda endpoint: True),
        subscriptions=subscriptions,
        held=HeldLanes(),
        envelope_of=cast(Any, None),
        publish=lambda event: None,
    )
    return SessionParts(
        kafka=KafkaSettings(),
        file=Path("never made"),
        context=context,
        make_transport=make_transport,
        end_subscriptions=lambda ids: None,
        suspend_subscriptions=lambda since_ms: None,
    )


@pytest.mark.parametrize("failing", ["transport", "session"])
def test_a_failed_start_closes_the_open_parts(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def opened(name: str) -> SimpleNamespace:
        parts = {"positions": dict, "recall": lambda name: None, "is_displaced": lambda delivery: False}
        return SimpleNamespace(close=lambda: closed.append(name), **parts)

    def fails(*_: object) -> NoReturn:
        raise InfrastructureError("no certificates")

    monkeypatch.setattr(session, "_identity", lambda kafka: "log")
    monkeypatch.setattr(session, "_opened", lambda file, log: opened("store"))
    monkeypatch.setattr(session, "_cursor", lambda kafka, log, positions: opened(f"reading {log}"))
    monkeypatch.setattr(session, "journal_for", lambda *_: opened("journal"))
    expected = ["journal", "reading parked", "reading results", "store"]
    used = parts(fails)
    if failing == "session":
        monkeypatch.setattr(session, "Redelivery", fails)
        expected, used = [*expected, "transport"], parts(lambda: opened("transport"))
    with pytest.raises(InfrastructureError, match="no certificates"), opened_session(used):
        pass
    assert sorted(closed) == expected


@pytest.mark.parametrize(("hours", "waits"), [(11, 1), (13, 0), (-1, 0)], ids=["used", "old", "clock set back"])
def test_a_file_unused_for_half_a_day_is_rebuilt(
    hours: int, waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have removed tombstones by then."""
    file, at = tmp_path / "parked.sqlite", 1_700_000_000_000
    monkeypatch.setattr(session, "time_ms", lambda: at + hours * HOUR_MS)
    with closing(ParkedStore(file, "log")) as store:
        store.apply(record(0).key, record(0).value, 0)
        store.advance(0, 1)
        store.remember("health", b"known")
        store.remember("read-ms", b"%d" % at)
        store.commit()
    with closing(session._opened(file, "log")) as store:
        assert (store.count, store.positions()) == (waits, {0: 1} if waits else {})
        assert store.recall("health") == b"known"


class Records:
    """A log of records of 4 MB, one per poll."""

    def __init__(self, records: int) -> None:
        self._left, self.positions = records, {0: 0}

    def ends(self) -> dict[int, int]:
        return {0: self._left}

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        return self.positions[0] >= ends[0]

    def unread(self) -> int:
        return self._left - self.positions[0]

    def poll(self, timeout_s: float) -> dict[int, Sequence[Any]]:
        offset = self.positions[0]
        if offset >= self._left:
            return {}
        self.positions[0] += 1
        return {0: [record(offset, 4_000_000)]}


def session_over(store: ParkedStore, log: Records, results: Records | None = None) -> session.RedeliverySession:
    """A session that reads these logs into the store."""
    setup, logs = Setup(), (cast(Any, log), cast(Any, results or Records(0)))
    return session.RedeliverySession(parts(None, setup), store, *logs, setup.journal, setup)


def test_commits_are_bounded_in_bytes_and_a_long_fold_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("arborcast.core.progress._LOG_S", -1.0)
    caplog.set_level("INFO")
    with closing(ParkedStore(tmp_path / "parked.sqlite", "log")) as store:
        commit = store.commit

        def committed() -> None:
            sizes.append(store.uncommitted)
            commit()

        monkeypatch.setattr(store, "commit", committed)
        session_over(store, Records(15)).read_to_end(lambda: False)
        assert store.count == 15
    assert max(sizes) < 40_000_000
    assert "reading the parked log: 14 records are left" in caplog.messages


def test_a_start_waits_as_long_as_parked_deliveries_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, known = (KafkaSettings(), PushSettings(), RetrySettings()), known_to_redelivery(ControlState())
    redeliverer = Redeliverer(*settings, THIS_MACHINE, known, tmp_path / "parked")
    read = [7, 6, 5, 5]  # a session that begins again is behind the last one
    monkeypatch.setattr(redeliverer.lanes, "offsets_read", lambda: read.pop(0))
    with pytest.raises(InfrastructureError, match=r"no record of the parked log was read for 0\.01 s"):
        redeliverer.catch_up(0.01)
    assert not read


def test_a_redelivery_that_cannot_continue_counts_failures_and_keeps_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at a start, as on a full disk, follows one in the work."""
    known = known_to_redelivery(ControlState())
    made = Redeliverer(KafkaSettings(), PushSettings(), RetrySettings(), THIS_MACHINE, known, tmp_path / "parked")
    full = Mock(side_effect=InfrastructureError("the disk is full"))
    figures = RedeliveryStatistics(parked=7, in_flight=2)
    begun = Mock(figures=figures, run=full)
    monkeypatch.setattr(redeliverer, "opened_session", lambda parts: nullcontext(begun))
    monkeypatch.setattr(liveness, "listen", lambda beat: None)
    for failures in (1, 2):
        with pytest.raises(InfrastructureError, match="full"):
            made._step()
        assert made.statistics() == RedeliveryStatistics(parked=7, failures=failures)
        begun.begin = full


def test_results_after_a_full_disk_and_damaged_results(monkeypatch: pytest.MonkeyPatch) -> None:
    class Results(Records):
        def poll(self, timeout_s: float) -> dict[int, Sequence[Any]]:
            self.positions[0] = self._left
            return {0: [SimpleNamespace(value=b"\xc1", offset=0), SimpleNamespace(value=result, offset=1)]}

    def reported(_: Redelivery, each: Result) -> NoReturn:
        assert each.promise.push == "p1"
        raise InfrastructureError("the disk is full")

    _, result = results.encode(Result(Promise("s", "p1", 1, HOUR_MS, 1), "delivered", 2))
    with closing(ParkedStore(None)) as store:
        begun = session_over(store, Records(0), Results(2))
        monkeypatch.setattr(Redelivery, "reported", reported)
        with pytest.raises(InfrastructureError, match="the disk is full"):
            begun.read_to_end(lambda: False)
        assert store.recall("results") is None


def test_ends_and_requests_of_other_processes_reach_the_redelivery(monkeypatch: pytest.MonkeyPatch) -> None:
    class Log(Records):
        def poll(self, timeout_s: float) -> dict[int, Sequence[Any]]:
            self.positions[0] = self._left
            request = parked.encode(Tried(Tries().requested(6_000)))
            requested = SimpleNamespace(key=parked.decode_key(record(0).key)[0].tried_key(), value=request, offset=1)
            return {0: [record(0), requested, SimpleNamespace(key=record(0).key, value=None, offset=2)]}

    calls: list[tuple[str, str]] = []
    for name in ("turn_now", "attempt_requested"):
        monkeypatch.setattr(Redelivery, name, lambda _, lane, name=name: calls.append((name, lane)))
    with closing(ParkedStore(None)) as store:
        session_over(store, Log(3)).read_to_end(lambda: False)
    assert calls == [("turn_now", "s"), ("attempt_requested", "s")]


@pytest.mark.parametrize(("restore", "waits"), [(True, False), (False, True)], ids=["start", "after a failure"])
def test_a_session_after_a_failure_awaits_the_answers_of_workers(
    monkeypatch: pytest.MonkeyPatch, restore: bool, waits: bool
) -> None:
    """Kafka was away for longer than a push takes: workers write their answers now. At a start there is no worker."""
    monkeypatch.setattr(Setup, "catch_up", lambda *_: None, raising=False)
    waiting = record(0)
    parked_in_flight = parked.encode(Parked(notification(accepted_ms=1), Tries(1, 0, 2, 1, f"{UNANSWERED_PUSH}p")))
    with closing(ParkedStore(None)) as store:
        store.apply(waiting.key, parked_in_flight, 0)
        session_over(store, Records(0)).begin(lambda: False, restore)
        ((due_ms,),) = store.query("SELECT due_ms FROM waiting")
    assert (due_ms > time_ms() + 5_000) is waits


def test_outcomes_are_written_although_the_end_of_a_subscription_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next session would repeat pushes whose outcome is not written."""
    with closing(ParkedStore(None)) as store:
        begun = session_over(store, Records(0))
        begun._parts = replace(begun._parts, end_subscriptions=Mock(side_effect=InfrastructureError("no answer")))
        begun._journal.gone.add("s")
        written = Mock()
        monkeypatch.setattr(begun._journal, "catch_up", written)
        with pytest.raises(InfrastructureError):
            begun._write()
    written.assert_called_once()


def test_figures_get_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, counts = 0.0, 0

    def statistics(_: Redelivery) -> RedeliveryStatistics:
        nonlocal now, counts
        now, counts = now + 1.0, counts + 1
        return RedeliveryStatistics()

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Redelivery, "statistics", statistics)
    with closing(ParkedStore(None)) as store:
        begun = session_over(store, Records(0))
        while now < 100.0:
            now += 0.3
            begun._write()
    assert counts == 5
