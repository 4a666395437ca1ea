from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.core.errors import ConfigError, NotFound
from arborcast.engine.gateway.parts import check_exposed
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, key_of
from arborcast.topic_model.routing import RoutingTable
from tests.support.routing import make_subscription

pytestmark = pytest.mark.slow

RUNNER = CliRunner()


def users(home: Path, *arguments: str, typed: str = "") -> tuple[int, str]:
    result = RUNNER.invoke(app, ["users", *arguments, "--home", str(home)], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 2, str(result.exception)
    return result.exit_code, result.output


def test_users_are_added_checked_listed_and_removed(tmp_path: Path) -> None:
    assert users(tmp_path, "add", "anna", "-g", "x", "--stdin", typed="a good one\n")[0] == 0
    assert users(tmp_path, "add", "bert", "--digest", "--stdin", typed="another one\n")[0] == 0
    file = (tmp_path / "users.toml").read_text()
    assert "a good one" not in file
    assert "another one" in file  # so says --digest
    assert users(tmp_path, "check", "anna", "--stdin", typed="a good one\n") == (0, "yes: anna, x\n")
    assert users(tmp_path, "check", "anna", "--stdin", typed="a bad one\n")[0] == 1
    status, said = users(tmp_path, "check", "anna", "--stdin", "--json", typed="a good one\n")
    assert (status, json.loads(said)) == (0, {"name": "anna", "right": True, "groups": ["x"]})
    assert users(tmp_path, "check", "anna", "--stdin", "--json", typed="a bad one\n")[0] == 1
    listed = users(tmp_path, "list", "--json")[1]
    assert '"anna"' in listed
    assert "scrypt" not in listed
    assert "another one" not in listed
    assert users(tmp_path, "remove", "anna")[0] == 0
    assert users(tmp_path, "check", "anna", "--stdin", typed="a good one\n")[0] == 1
    assert "no user anna" in users(tmp_path, "remove", "anna")[1]


@pytest.mark.parametrize("command", [("users", "list"), ("topics", "problems")])
def test_a_data_directory_that_does_not_exist_has_no_empty_list(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = RUNNER.invoke(app, [*command, "--home", str(tmp_path / "none")])
    assert isinstance(result.exception, NotFound)
    assert f"no data directory {tmp_path / 'none'}" in str(result.exception)
    assert users(tmp_path, "list") == (0, "no users\n")


def test_short_passwords_are_refused(tmp_path: Path) -> None:
    assert "8 to" in users(tmp_path, "add", "anna", "--stdin", typed="short\n")[1]
    assert not (tmp_path / "users.toml").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1", "broker.example"])  # noqa: S104  # not listened on
def test_a_gateway_open_to_the_network_must_ask_who_comes(tmp_path: Path, host: str) -> None:
    open_one = load_settings(home=tmp_path, overrides={"gateway.host": host}, environ={})
    with pytest.raises(ConfigError, match=r"access\.methods") as refused:
        check_exposed(open_one)
    assert "access.open_network" in str(refused.value)
    for key, value in (("access.methods", "basic"), ("access.open_network", True)):
        check_exposed(load_settings(home=tmp_path, overrides={"gateway.host": host, key: value}, environ={}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_needs_nobody_to_say_who_it_is(tmp_path: Path, host: str) -> None:
    check_exposed(load_settings(home=tmp_path, overrides={"gateway.host": host}, environ={}))


def test_what_an_owner_may_not_have_any_more_is_listed_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, written = RoutingTable(), list[ControlRecord]()
    made = msgspec.structs.replace(make_subscription("s", "a", consumer="http://r/"), owner="gone")
    table.apply(SubscriptionRecord(made))
    monkeypatch.setattr("arborcast.cli.users.kafka_of", lambda *_: None)
    monkeypatch.setattr("arborcast.admin.control_log.read_table", lambda _: table)
    monkeypatch.setattr("arborcast.admin.control_log.append", lambda _, records: written.extend(records))
    config = tmp_path / "arborcast.toml"
    config.write_text(f'home = "{tmp_path}"\n[access]\nmethods = "basic"\n')
    (tmp_path / "users.toml").write_text("")
    said = RUNNER.invoke(app, ["access", "check", "--config", str(config)])
    assert said.exit_code == 1
    assert said.output.endswith("(there)\nend those for which it is certain with --end\n")
    (found,) = json.loads(RUNNER.invoke(app, ["access", "check", "--json", "--config", str(config)]).output)
    reason = found.pop("reason")
    assert found == {
        "id": "s",
        "owner": "gone",
        "topics": ["a"],
        "endpoint": "http://r/",
        "certain": True,
        "ended": False,
    }
    assert written == []
    said = RUNNER.invoke(app, ["access", "check", "--end", "--config", str(config)])
    assert said.exit_code == 0, said.output
    assert said.output == f"s  gone  a  {reason}  (ended)\n"
    assert {key_of(record) for record in written} == {"sub:s", "susp:s", "seal:s"}
