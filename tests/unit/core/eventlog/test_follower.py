"""A follower of a log, over records in memory. In Kafka: tests/integration/test_ordered_log.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast
from unittest.mock import Mock

import pytest

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.eventlog import follower
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.lease import LeaseLog, LeaseTimes
from arborcast.core.settings import KafkaSettings
from tests.support.listed_logs import Listed, ListedConsumer

Records = Sequence[tuple[bytes | None, bytes | None]]
Following = Callable[..., tuple[LogFollower[str], list[str]]]

FAILURES = {"damaged": InfrastructureError, "newer": RecordVersionError, "not now": ValueError}

RECORDS: Records = [
    *((b"k", b"a"), (None, b"no key"), (b"k", b"damaged"), (b"\xff", b"b"), (b"k", b"c"), (b"k", b"newer"))
]


def decode(key: bytes, value: bytes | None) -> str:
    text = (value or b"").decode()
    if text in FAILURES:
        raise FAILURES[text](text)
    return key.decode() + text


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Listed]:
    """The records of the log."""
    found: list[Listed] = []
    monkeypatch.setattr(follower, "LogConsumer", lambda *_, **__: ListedConsumer("pullpoints", found))
    return found


def listed(records: Records) -> list[Listed]:
    return [Listed(cast(bytes, key), value, offset) for offset, (key, value) in enumerate(records)]


@pytest.fixture
def following(log: list[Listed]) -> Following:
    def make(records: Records = RECORDS, **how: bool) -> tuple[LogFollower[str], list[str]]:
        log[:] = listed(records)
        applied: list[str] = []
        return LogFollower(KafkaSettings(), "pullpoints", decode, lambda each, _: applied.append(each), **how), applied

    return make


def test_damaged_records_are_skipped_and_a_newer_one_is_not(following: Following) -> None:
    log, applied = following(skips_damaged=True)
    for _ in range(2):
        with pytest.raises(RecordVersionError):
            log.poll(0.0)
    assert (applied, log.position) == (["ka", "kc"], 5)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ((None, b"no key"), "offset 1 of .*pullpoints has no key"),
        ((b"\xff", None), "offset 1 of .*pullpoints is not UTF-8"),
        ((b"k", b"damaged"), "damaged .offset 1 of .*pullpoints"),
        ((b"k", b"not now"), "not now"),
    ],
)
def test_another_log_is_not_followed_behind_a_failure(
    following: Following, record: tuple[bytes | None, bytes | None], said: str
) -> None:
    log, applied = following([(b"k", b"a"), record, (b"k", b"b")])
    for _ in range(2):
        with pytest.raises((InfrastructureError, ValueError), match=said):
            log.read_to_end(120)
        assert (applied, log.position) == (["ka"], 1)


def test_a_recreated_log_is_an_error(following: Following, log: list[Listed]) -> None:
    opened, _ = following([(b"k", b"a")] * 2)
    opened.read_to_end(120)
    del log[1]
    with pytest.raises(InfrastructureError, match=r"truncated or created again.*restart") as caught:
        opened.read_to_end(120)
    assert caught.value.retry_after is None


def test_candidates_for_a_lease_skip_damaged_records(log: list[Listed]) -> None:
    """Otherwise one such record would end every lease for the hour of its retention."""
    log += listed(RECORDS)
    applied: list[str] = []
    times, encode = LeaseTimes(5.0, 4.0, 1.0, 1.5), Mock()
    lease = LeaseLog(KafkaSettings(), "lease", times, encode, decode, lambda each, _: applied.append(each))
    with pytest.raises(RecordVersionError):
        lease.read()
    assert applied == ["ka", "kc"]
