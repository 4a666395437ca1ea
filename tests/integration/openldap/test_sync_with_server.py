"""The log and a real OpenLDAP server stay in step through outages of either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.directory import Open, synced, topic
from tests.support.slapd import Slapd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ldap


def test_a_server_that_returns_empty_after_a_crash_is_refilled(
    fresh_slapd: Slapd, tmp_path: Path, opened: Open
) -> None:
    directory, synced_one = (opened(fresh_slapd.settings()) for _ in range(2))
    with synced(synced_one, tmp_path / "state", topic("a", code="1"), topic("b/c")) as (log, _):
        wait_until(lambda: set(directory.load().entries) == {"a", "b/c"})
        fresh_slapd.wipe()
        wait_until(lambda: set(directory.load().entries) == {"a", "b/c"})
        assert set(log.topics()) == {"a", "b/c"}


def test_kills_in_the_middle_lose_nothing_on_either_side(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    directory, synced_one = (opened(fresh_slapd.settings()) for _ in range(2))
    with synced(synced_one, tmp_path / "state", topic("start")) as (log, _):
        wait_until(lambda: set(directory.load().entries) == {"start"})
        base = fresh_slapd.settings().base_dn
        for round_number in range(3):
            log.append([topic(f"ours{round_number}/t{n}") for n in range(40)])
            with fresh_slapd.admin() as person:
                name = f"theirs{round_number}"
                person.add(f"topicName={name},{base}", ["arborcastTopic"], {"topicName": name})
            fresh_slapd.kill()
            fresh_slapd.start()
        expected = {"start"} | {f"theirs{r}" for r in range(3)} | {f"ours{r}/t{n}" for r in range(3) for n in range(40)}
        wait_until(lambda: set(log.topics()) == expected)
        wait_until(lambda: set(directory.load().entries) == expected)
