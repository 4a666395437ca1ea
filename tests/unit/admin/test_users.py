"""Users, and subscriptions whose owner has lost a right."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from arborcast.admin import control_log
from arborcast.admin.users import add, end, listed, lost_rights, rights_of
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, TriggerRecord, key_of
from arborcast.topic_model.routing import RoutingTable
from tests.support.console import settings_in
from tests.support.routing import make_subscription, make_trigger


def test_wrong_names_and_rights_without_authentication(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a user's name has"):
        add(tmp_path / "users.toml", "a:b", lambda: pytest.fail("asked"), ())
    with pytest.raises(ConfigError, match=r"access\.methods is not set"):
        rights_of(settings_in(tmp_path))


def test_a_user_who_was_added_during_the_prompt_stays(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"

    def typed() -> str:
        add(file, "bert", lambda: "second-password", ())
        return "first-password"

    add(file, "anna", typed, ())
    assert [each.name for each in listed(file)] == ["anna", "bert"]


def test_subscriptions_and_triggers_without_a_right_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, written = RoutingTable(), list[ControlRecord]()
    made = msgspec.structs.replace(make_subscription("s", "a"), owner="gone")
    table.apply(SubscriptionRecord(made))
    table.apply(TriggerRecord(make_trigger("t", "a", "b", owner="gone")))
    settings = settings_in(tmp_path, access__methods="basic")
    Path(settings.access.users_file).write_text("")
    found = lost_rights(rights_of(settings), table)
    assert [(each.id, each.owner, each.certain, each.ended) for each in found] == [
        ("s", "gone", True, False),
        ("t", "gone", True, False),
    ]
    found[1] = msgspec.structs.replace(found[1], certain=False)
    monkeypatch.setattr(control_log, "append", lambda _, records: written.extend(records))
    assert [each.ended for each in end(KafkaSettings(), table, found)] == [True, False]
    assert {key_of(record) for record in written} == {"sub:s", "susp:s", "seal:s"}
    written.clear()
    end(KafkaSettings(), table, lost_rights(rights_of(settings), table))
    for record in written:
        table.apply(record)
    assert list(table.subscriptions()) == []
    assert {key_of(record) for record in written} == {"sub:s", "susp:s", "seal:s", "trigger:t", "susp:t"}
