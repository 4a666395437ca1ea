"""The log and a server are kept in step, whichever of the two is away. Against a real OpenLDAP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arborcast.directory.stores.ldap import LdapDirectory
from arborcast.directory.sync.sync import DirectorySync
from arborcast.topic_model.topics import parse_path
from tests.support.directory import Log, topic
from tests.support.ldap_directory import Open
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


def test_a_server_that_is_down_at_start_and_comes_later(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    fresh_slapd.kill()
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("from-the-log"))
    try:
        wait_until(lambda: "cannot be reached" in sync.status.detail)
        assert not sync.status.connected
        log.append([topic("meanwhile")])
        fresh_slapd.start()
        wait_until(lambda: sync.status.connected)
        directory = opened(fresh_slapd.settings())
        wait_until(lambda: set(directory.load().entries) == {"from-the-log", "meanwhile"})
    finally:
        sync.close()


def test_a_server_that_dies_and_returns_empty_is_filled_again(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
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


def test_an_edit_in_ldap_reaches_the_log(fresh_slapd: Slapd, tmp_path: Path) -> None:
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("a"))
    try:
        wait_until(lambda: sync.status.topics == 1 and sync.status.connected)
        base = fresh_slapd.settings().base_dn
        with fresh_slapd.admin() as person:
            wait_until(lambda: person.search(base, "(topicName=a)", attributes=["*"]))
            person.modify(f"topicName=a,{base}", {"topicCode": [("MODIFY_REPLACE", ["by hand"])]})
            wait_until(lambda: log.topics()[parse_path("a")].code == "by hand")
    finally:
        sync.close()
