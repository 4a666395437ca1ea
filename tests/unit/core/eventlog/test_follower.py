"""A follower of a log, over records in memory. In Kafka: tests/integration/test_ordered_log.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.eventlog import follower
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.lease import LeaseLog, LeaseTimes
from arborcast.core.settings import KafkaSettings

RECORDS = [(b"k", b"a"), (None, b"no key"), (b"k", b"damaged"), (b"\xff", b"b"), (b"k", b"c"), (b"k", b"newer")]


class Log:
    """A consumer at the beginning of the records."""

    placed, topic = True, "arborcast.pullpoints"

    def __init__(self, *_: object, **__: object) -> None:
        self.at = 0

    def close(self) -> None: ...

    def seek(self, positions: dict[int, int]) -> None:
        self.at = positions[0]

    def poll(self, _timeout_s: float) -> dict[int, list[Any]]:
        records = [SimpleNamespace(key=key, value=value, offset=n) for n, (key, value) in enumerate(RECORDS)]
        found, self.at = records[self.at :], len(records)
        return {0: found}


def decode(key: bytes, value: bytes | None) -> str:
    text = (value or b"").decode()
    if text in ("damaged", "newer"):
        raise (RecordVersionError if text == "newer" else InfrastructureError)(text)
    return key.decode() + text


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[LogFollower[str], list[str]]]:
    monkeypatch.setattr(follower, "LogConsumer", Log)

    def make(**how: bool) -> tuple[LogFollower[str], list[str]]:
        applied: list[str] = []
        return LogFollower(KafkaSettings(), "pullpoints", decode, lambda each, _: applied.append(each), **how), applied

    return make


def test_damaged_records_are_skipped_and_a_newer_one_is_not(
    following: Callable[..., tuple[LogFollower[str], list[str]]],
) -> None:
    log, applied = following(skips_damaged=True)
    for _ in range(2):
        with pytest.raises(RecordVersionError):
            log.poll(0.0)
    assert (applied, log.position) == (["ka", "kc"], 5)


def test_another_log_is_not_followed_behind_a_damaged_record(
    following: Callable[..., tuple[LogFollower[str], list[str]]],
) -> None:
    log, applied = following()
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="has no key"):
            log.poll(0.0)
    assert (applied, log.position) == (["ka"], 1)


def test_candidates_for_a_lease_skip_damaged_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one such record would end every lease for the hour of its retention."""

    class LeaseRecords(Log):
        def ends(self, _timeout_s: float) -> dict[int, int]:
            return {0: 5}

    monkeypatch.setattr(follower, "LogConsumer", LeaseRecords)
    applied: list[str] = []
    times = LeaseTimes(5.0, 4.0, 1.0, 1.5)
    log = LeaseLog(KafkaSettings(), "lease", times, lambda _: (b"", b""), decode, lambda each, _: applied.append(each))
    with pytest.raises(RecordVersionError):
        log.read()
    assert applied == ["ka", "kc"]
