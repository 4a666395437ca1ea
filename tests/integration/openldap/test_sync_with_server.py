"""The log and a real OpenLDAP server stay in step through outages of either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.sync.sync import DirectorySync
from tests.support.directory import Log, Open, topic
from tests.support.slapd import Slapd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ldap


def _engine(server: Slapd, state: Path, *records: Any) -> tuple[Log, DirectorySync]:
    log = Log()
    sync = DirectorySync(LdapDirectory(server.settings()), log.append, state)
    log.sync = sync
    if records:
        log.append(records)
    sync.start()
    return log, sync


def test_a_server_that_returns_empty_after_a_crash_is_refilled(
    fresh_slapd: Slapd, tmp_path: Path, opened: Open
) -> None:
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("a", code="1"), topic("b/c"))
    try:
        directory = opened(fresh_slapd.settings())
        wait_until(lambda: set(directory.load().entries) == {"a", "b/c"})
        fresh_slapd.wipe()
        wait_until(lambda: set(directory.load().entries) == {"a", "b/c"})
        assert set(log.topics()) == {"a", "b/c"}
    finally:
        sync.close()


def test_kills_in_the_middle_lose_nothing_on_either_side(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("start"))
    try:
        directory = opened(fresh_slapd.settings())
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
    finally:
        sync.close()
