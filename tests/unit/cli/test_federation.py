"""What `arborcast federation` prints without an engine."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.admin import federation
from arborcast.admin.federation import Groups, GroupStatus, MemberList
from arborcast.admin.moments import iso
from arborcast.cli import app
from arborcast.core.errors import ConfigError
from arborcast.ingest.federation.keys import parse_secrets
from arborcast.ingest.federation.settings import FederationSettings
from arborcast.ingest.federation.topology import Member, Topology
from arborcast.topic_model.control_view import ControlView
from tests.support.console_answers import LINKS, MEMBERS
from tests.support.receiver import refusing_url


def test_a_new_secret_comes_first_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "federation.key"
    for _ in range(2):
        done = CliRunner().invoke(app, ["federation", "key", str(file)])
        assert done.exit_code == 0
        assert file.read_text().splitlines()[0] not in done.output
    first, second = parse_secrets(file.read_text(), "it")
    assert first != second
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_while_the_administrator_is_away_the_last_topology_is_shown(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["federation", "key", str(tmp_path / "key")])
    config = tmp_path / "arborcast.toml"
    with refusing_url() as nobody:
        config.write_text(
            f'home = "home"\n[federation]\nname = "a"\ngroup = "G"\nadministrator = "{nobody}"\n'
            f'key_file = "{tmp_path / "key"}"\n'
        )
        _shows_what_was_known_last(tmp_path, config)


def _shows_what_was_known_last(tmp_path: Path, config: Path) -> None:
    (tmp_path / "home").mkdir()
    kept = Topology(3, (Member("a", "G", "http://a", "1", 1), Member("b", "H", "http://b", "1", 2, "gone", 16_000)))
    (tmp_path / "home" / "federation.json").write_bytes(msgspec.json.encode(kept))
    done = CliRunner().invoke(app, ["federation", "members", "--json", "--config", str(config)])
    assert "this is what the engine knew last" in done.stderr
    said = json.loads(done.stdout)
    assert "no answer from" in said["problem"]
    assert [(each["engine"], each["state"], each["represents"]) for each in said["members"]] == [
        ("G/a", "live", True),
        ("H/b", "gone", False),
    ]
    done = CliRunner().invoke(app, ["federation", "topology", "--config", str(config)])
    assert done.stdout.splitlines() == ["G: a of a", "H: no representative of b"]


def test_an_engine_by_itself_says_so() -> None:
    done = CliRunner().invoke(app, ["federation", "members"])
    assert isinstance(done.exception, ConfigError)
    assert "federation.name is not set" in str(done.exception)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"group": ""}, "federation.group"),
        ({"name": "a b"}, "federation.name"),
        ({"administrator": ""}, "federation.administrator"),
        ({"key_file": ""}, "share a secret"),
        ({"url": "a:80"}, "federation.url"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, str], why: str) -> None:
    good = {"name": "a", "group": "G", "administrator": "http://h:1", "key_file": "k", "url": "http://a"}
    assert FederationSettings(**good).engine == "G/a"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=why):
        FederationSettings(**good | wrong)  # type: ignore[arg-type]


def test_json_is_made_from_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.cli.federation.kafka_of", lambda *_: None)
    monkeypatch.setattr("arborcast.admin.control_log.read_control", lambda _: ControlView())
    monkeypatch.setattr(federation, "members", lambda _: MemberList(MEMBERS[:1], "away"))
    monkeypatch.setattr(federation, "groups", lambda _: Groups(3, {"G": GroupStatus(None, ("a", "b"))}, ""))
    monkeypatch.setattr(federation, "with_waiting", lambda *_: LINKS)
    monkeypatch.chdir(tmp_path)

    def said(command: str) -> Any:
        return json.loads(CliRunner().invoke(app, ["federation", command, "--json"]).stdout)

    member = {
        "engine": "north/n1",
        "state": "live",
        "represents": True,
        "url": "https://n1.example:8080",
        "number": 0,
        "version": "2.0.0",
        "silent_s": 0.4,
    }
    assert said("members") == {"members": [member], "problem": "away"}
    groups = {"G": {"representative": None, "members": ["a", "b"]}}
    assert said("topology") == {"version": 3, "groups": groups, "problem": ""}
    first, second = said("links")["links"]
    assert first == {
        "link": "peer-n2",
        "to": "north/n2",
        "url": "https://n2.example:8080/federation",
        "state": "active",
        "topics": ["plant//alarm", "building//."],
        "since": iso(LINKS[0].since_ms),
        "waiting": 41,
        "waiting_since": iso(LINKS[0].waiting_since_ms),
    }
    assert (second["waiting"], second["waiting_since"]) == (0, "")
