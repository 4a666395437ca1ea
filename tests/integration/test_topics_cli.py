"""`arborcast topics` and `subscriptions` over a real Kafka."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from arborcast.core.errors import ExpressionError, TopicError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.recording.folds import OperationsFold
from arborcast.dispatch.recording.state_tables import FoldedTables
from arborcast.topic_model.control_log import ControlLog
from tests.support.command import Shell
from tests.support.directory import topic

pytestmark = pytest.mark.kafka


@pytest.fixture
def shell(kafka_settings: KafkaSettings, tmp_path: Path) -> Shell:
    with closing(ControlLog(kafka_settings)) as log:
        log.ensure_created()
        log.append([topic("ALARM", code="7"), topic("ALARM/fire"), topic("{urn:t}Größe/x", retain=True)])
    return Shell(tmp_path / "arborcast.toml", kafka_settings, "topics")


def paths(shell: Shell) -> list[str]:
    return [each["path"] for each in shell.json("list")]


def test_list_and_tree(shell: Shell) -> None:
    assert paths(shell) == ["ALARM", "ALARM/fire", "{urn:t}Größe/x"]
    assert [each["code"] for each in shell.json("list", "ALARM")] == ["7"]
    assert "Größe" in shell("list")
    assert [(root["path"], root["topic"]) for root in shell.json("tree")] == [("ALARM", True), ("{urn:t}Größe", False)]
    assert shell.json("tree", "--depth", "1")[0]["children"] == []
    drawn = shell("tree")
    assert "3 topics" in drawn
    assert "fire" in drawn


def test_add_update_remove(shell: Shell) -> None:
    assert shell.json("add", "ALARM:flood", "--code", "9", "--publisher", "cn=p") == {
        "put": ["ALARM/flood"],
        "removed": [],
    }
    assert shell("add", "ALARM/flood", "--priority", "2", "--update").split() == ["put", "ALARM/flood"]
    (facts,) = shell.json("list", "ALARM/flood")
    assert (facts["code"], facts["policy"]["priority"], facts["policy"]["retain"]) == ("", 2, None)
    shell("add", "ALARM/flood", "--no-retain", "--queue", "--update")
    assert shell.json("list", "ALARM/flood")[0]["policy"]["queue"] is True
    assert shell.json("list", "ALARM/flood")[0]["policy"]["retain"] is False
    assert "queue, no retain" in shell("list", "ALARM/flood")
    assert shell("add", "p:x", "-n", "p=urn:p").split() == ["put", "{urn:p}x"]
    assert shell.json("remove", "ALARM", "-r") == {"put": [], "removed": ["ALARM/flood", "ALARM/fire", "ALARM"]}
    assert paths(shell) == ["{urn:p}x", "{urn:t}Größe/x"]


def test_an_export_can_be_imported(shell: Shell, tmp_path: Path) -> None:
    name = "topics.xml"
    before = shell.json("list")
    shell("export", str(tmp_path / name))
    shell("remove", "ALARM", "-r")
    assert shell.json("import", str(tmp_path / name), "--dry-run") == {
        "added": 2, "changed": 0, "removed": 0, "skipped": 0,
    }  # fmt: skip
    assert len(paths(shell)) == 1
    shell("import", str(tmp_path / name))
    assert shell.json("list") == before
    shell("add", "extra")
    assert shell.json("import", str(tmp_path / name), "--replace")["removed"] == 1
    assert shell.json("list") == before


def test_topics_are_found_and_named_by_their_codes(shell: Shell) -> None:
    shell("add", "{urn:t}Größe/x", "--code", "1.4.A", "--update")
    assert shell("find", "1.4.A").split() == ["{urn:t}Größe/x"]
    assert [each["path"] for each in shell.json("find", "7")] == ["ALARM"]
    with pytest.raises(TopicError, match="no topic has the code 'ALARM'"):
        shell("find", "ALARM")
    assert shell.json("match", "code:7//.") == ["ALARM", "ALARM/fire"]
    assert shell.json("match", "code:7/fire | code:1.4.A|p:Größe//.", "-n", "p=urn:t") == [
        "ALARM/fire",
        "{urn:t}Größe/x",
    ]
    assert "no subscriptions" in shell("subscriptions", "code:1.4.A")
    assert shell.json("subscriptions", "code:1.4.A") == []
    assert shell.json("list", "code:1.4.A")[0]["code"] == "1.4.A"
    with pytest.raises(ExpressionError, match=r"no topic has the code '1\.5'"):
        shell("match", "code:1.5//.")
    with pytest.raises(TopicError, match="more than one topic"):
        shell("remove", "code:7//.")
    assert json.loads(shell.command("subscriptions", "list", "--topic", "code:7", "--json"))["subscriptions"] == []
    assert json.loads(shell.command("dead-letters", "list", "--topic", "code:7//.", "--json"))["letters"] == []
    shell("move", "code:7", "moved")
    assert shell("find", "7").split() == ["moved"]
    assert shell.json("remove", "code:1.4.A")["removed"] == ["{urn:t}Größe/x"]


def test_each_change_is_recorded_with_its_old_value_and_is_a_row(
    shell: Shell, kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    shell("add", "ALARM", "--code", "8", "--update")
    with pytest.raises(TopicError, match="exists already"):
        shell("add", "ALARM")
    shell("remove", "ALARM", "--recursive")
    asked = Shell(tmp_path / "arborcast.toml", kafka_settings, "operations")
    found = asked.json("--action", "topics")
    whole = [each for each in found["operations"] if each["subject"] == "ALARM"]
    assert [(each["action"], each["interface"], each["result"]) for each in whole] == [
        ("topics remove", "command", "done"),
        ("topics add", "command", "done"),
    ]
    assert "@" in whole[0]["actor"]
    removed, changed = whole
    assert (json.loads(changed["before"])["code"], json.loads(changed["after"])["code"]) == ("7", "8")
    assert (removed["before"], removed["after"]) == (changed["after"], "")
    assert {each["subject"] for each in found["operations"]} == {"ALARM", "ALARM/fire"}
    assert asked.json("--actor", "a user without changes")["operations"] == []
    assert asked.json("--limit", "1")["more"] == 2

    tables = FoldedTables(kafka_settings, "operations", [OperationsFold()], lambda spec: str(tmp_path / spec.name))
    with closing(tables):
        while tables.step():
            pass
    rows = DeltaTable(str(tmp_path / "operations")).to_pyarrow_table().to_pylist()
    assert sorted((row["action"], row["subject"], row["result"]) for row in rows) == [
        ("topics add", "ALARM", "done"),
        ("topics remove", "ALARM", "done"),
        ("topics remove", "ALARM/fire", "done"),
    ]
