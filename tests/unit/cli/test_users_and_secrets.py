"""Users, rights and keys; commands that print settings or states never print a secret."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from arborcast.admin import control_log
from arborcast.admin.users import add, end, lost_rights, rights_of
from arborcast.core.errors import ArborcastError, ConfigError, NotFound
from arborcast.core.security import keyring
from arborcast.core.security.keyring import KeyFile, UnknownKey, parse_keys
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.home import ensure_keys
from arborcast.engine.settings.checks import check_gateway
from arborcast.engine.settings.loading import declarations, dump, load_settings
from arborcast.ingest.access.users_file import hash_password
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, TriggerRecord, key_of
from arborcast.topic_model.routing import RoutingTable
from tests.support.command import Engine, Shell
from tests.support.console import settings_in
from tests.support.routing import make_subscription, make_trigger

pytestmark = pytest.mark.slow


def test_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def users(*arguments: str, typed: str = "") -> tuple[int, str]:
        done = Shell().run("users", *arguments, "--home", str(tmp_path), typed=typed)
        return done.exit_code, done.output

    monkeypatch.setattr(hash_password, "__kwdefaults__", {"log_n": 4})  # a cheap hash
    assert users("list") == (0, "no users\n")
    with pytest.raises(ArborcastError, match="8 to"):
        users("add", "anna", "--stdin", typed="short\n")
    file = tmp_path / "users.toml"
    assert not file.exists()
    assert users("add", "anna", "-g", "x", "--stdin", typed="a good one\n")[0] == 0
    assert users("add", "bert", "--digest", "--stdin", typed="another one\n")[0] == 0
    assert "a good one" not in file.read_text()
    assert "another one" in file.read_text(), "by --digest"
    assert users("check", "anna", "--stdin", typed="a good one\n") == (0, "yes: anna, x\n")
    status, checked = users("check", "anna", "--stdin", "--json", typed="a good one\n")
    assert (status, json.loads(checked)) == (0, {"name": "anna", "right": True, "groups": ["x"]})
    assert users("check", "anna", "--stdin", "--json", typed="a bad one\n")[0] == 1
    prompted = Shell().run("users", "check", "anna", "--json", "--home", str(tmp_path), typed="a good one\n")
    assert (json.loads(prompted.stdout)["right"], "Password" in prompted.stderr) == (True, True)
    listed = users("list", "--json")[1]
    assert [word in listed for word in ('"anna"', "scrypt", "another one")] == [True, False, False]
    assert users("remove", "anna")[0] == 0
    assert users("check", "anna", "--stdin", typed="a good one\n")[0] == 1
    with pytest.raises(NotFound, match="no user anna"):
        users("remove", "anna")


def test_a_password_without_a_terminal(tmp_path: Path) -> None:
    # In a session of its own there is no /dev/tty.
    asked = Engine(tmp_path).start("users", "add", "anna", stdin=subprocess.DEVNULL)
    assert (
        asked.communicate()[1]
        == "Password:\nerror: there is no terminal to ask for the password: give it with --stdin\n"
    )
    assert asked.returncode == 2


@pytest.mark.parametrize("command", ["users list", "topics problems", "slo"])
def test_a_missing_data_directory_is_an_error(tmp_path: Path, command: str) -> None:
    with pytest.raises(NotFound, match=f"no data directory {tmp_path / 'none'}"):
        Shell().run(*command.split(), "--home", str(tmp_path / "none"))


def test_problems_of_the_directory_of_a_stopped_engine_are_those_of_its_last_run(tmp_path: Path) -> None:
    assert "this is the state of its last run" in Shell().run("topics", "problems", "--home", str(tmp_path)).stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1", "broker.example"])  # noqa: S104  # not listened on
def test_a_gateway_in_the_network_needs_authentication(tmp_path: Path, host: str) -> None:
    def check(host: str, **more: object) -> None:
        overrides = {"gateway.host": host} | {f"access.{key}": value for key, value in more.items()}
        check_gateway(load_settings(home=tmp_path, overrides=overrides, environ={}))  # type: ignore[arg-type]  # values of a table

    with pytest.raises(ConfigError, match=r"access\.methods.*access\.open_network"):
        check(host)
    check(host, methods="basic")
    check(host, open_network=True)
    for loopback in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        check(loopback)


def test_subscriptions_and_triggers_of_owners_without_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, written = RoutingTable(), list[ControlRecord]()
    made = make_subscription("s", "a", consumer="http://r/", owner="gone")
    table.apply(SubscriptionRecord(made))
    table.apply(TriggerRecord(make_trigger("t", "a", "b", owner="gone")))
    monkeypatch.setattr("arborcast.cli.users.kafka_of", lambda *_: KafkaSettings())
    monkeypatch.setattr(control_log, "read_table", lambda _: table)
    monkeypatch.setattr(control_log, "append", lambda _, records, *_progress: written.extend(records))
    config = tmp_path / "arborcast.toml"
    config.write_text(f'home = "{tmp_path}"\n[access]\nmethods = "basic"\n')
    (tmp_path / "users.toml").write_text("")
    check = Shell(config, None, "access", "check")
    listed = check.run("access", "check", "--json")
    found = json.loads(listed.output)
    assert (listed.exit_code, [(each["id"], each["certain"], each["ended"]) for each in found]) == (
        1,
        [("s", True, False), ("t", True, False)],
    )
    findings = lost_rights(rights_of(load_settings(config, environ={})), table)
    findings[1] = msgspec.structs.replace(findings[1], certain=False)
    assert [each.ended for each in end(KafkaSettings(), table, findings)] == [True, False]
    assert {key_of(record) for record in written} == {"sub:s", "susp:s", "seal:s"}
    written.clear()
    assert check("--end").splitlines()[0] == f"s  gone  a  {found[0]['reason']}  (ended)"
    for record in written:
        table.apply(record)
    assert list(table.subscriptions()) == []
    assert {key_of(record) for record in written} == {"sub:s", "susp:s", "seal:s", "trigger:t", "susp:t"}


def test_new_keys_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = Shell(None, None, "keys")
    output = keys("new", "--home", "engine") + keys("new", "--home", "engine", "--id", "second")
    output += keys("list", "--home", "engine")
    first, older = keys.json("list", "--home", "engine")
    assert (first, older["seals"]) == ({"id": "second", "seals": True}, False)
    path = tmp_path / "engine" / "secrets.keys"
    assert list(parse_keys(path.read_text())) == [first["id"], older["id"]]
    assert not any(line.split()[1] in output for line in path.read_text().splitlines())
    assert KeyFile(path).seal(b"x", "").startswith("second:")


def test_the_embedded_engine_makes_its_own_key_file_only(tmp_path: Path) -> None:
    ensure_keys(str(tmp_path / "elsewhere.keys"), tmp_path)
    assert list(tmp_path.iterdir()) == []
    ensure_keys(str(tmp_path / "secrets.keys"), tmp_path)
    before = (tmp_path / "secrets.keys").read_text()
    ensure_keys(str(tmp_path / "secrets.keys"), tmp_path)
    assert (tmp_path / "secrets.keys").read_text() == before


def test_a_lost_key_file_is_reported_and_can_be_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, times = tmp_path / "secrets.keys", iter(("k20260101T080000", "k20260102T090000"))
    monkeypatch.setattr(keyring, "time", SimpleNamespace(strftime=lambda *_: next(times), gmtime=lambda: None))
    assert ensure_keys(str(path), tmp_path) == ""
    (tmp_path / "kafka").mkdir()
    sealed, former = KeyFile(path).seal(b"secret", "s"), path.read_text()
    path.unlink()

    assert "was lost, and now has a new key k20260102T090000" in ensure_keys(str(path), tmp_path)

    with pytest.raises(UnknownKey, match="sealed with the key 'k20260101T080000', which is not in the key file"):
        KeyFile(path).open(sealed, "s")
    path.write_text(path.read_text() + former)
    assert KeyFile(path).open(sealed, "s") == b"secret"


PASSWORD = "hemlig-in-a-url"  # noqa: S105  # looked for

SECRETS = {each.key: f"hemlig-{number}-value" for number, each in enumerate(declarations()) if each.info.secret}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A file with a value for every setting that is a secret."""
    values = SECRETS | {
        "stack.broker": "external",
        "kafka.bootstrap_servers": "127.0.0.1:9",
        "push.proxy": f"http://user:{PASSWORD}@proxy.example:3128",
        "tracing.endpoint": f"https://user:{PASSWORD}@collector.example/v1/traces",
        "tables.storage_options": "AWS_SECRET_ACCESS_KEY=hemlig-in-options",
    }
    file = tmp_path / "arborcast.toml"
    # Dotted keys: TOML needs no sections for them.
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"home": str(tmp_path / "home"), **values}.items()]
    file.write_text("\n".join(lines))
    return file


def test_settings_with_names_of_secrets_are_declared_secret() -> None:
    place = re.compile(r"_(file|folder|base|filter|name|certificates?)$|^(tls_client_key|key_file)$")
    for each in declarations():
        if each.type is str and re.search(r"password|secret|token|credential|(^|_)key($|_)", each.name):
            assert each.info.secret or place.search(each.name), each.key


@pytest.mark.parametrize(
    ("command", "reached"),
    [
        ("config show", "kafka.sasl_password"),
        ("config show --json", '"kafka.sasl_password"'),
        ("config spark", "spark.scheduler.mode"),
        ("doctor", "gateway port"),
        ("doctor --json", '"gateway port"'),
        ("status", "no engine runs"),
        ("status --json", '"running": false'),
        ("topics list", "Kafka cannot be reached"),
        ("audit", "Kafka cannot be reached"),
    ],
)
def test_no_command_prints_a_secret(config: Path, command: str, reached: str) -> None:
    try:
        shown = Shell(config).run(*command.split(), COLUMNS="200").output
    except ArborcastError as error:
        shown = str(error)
    assert reached in shown, "up to the settings"
    assert not any(secret in shown for secret in [*SECRETS.values(), PASSWORD, "hemlig-in-options"])


def test_an_invalid_proxy_is_not_quoted(config: Path) -> None:
    config.write_text(f'[push]\nproxy = "user:{PASSWORD}@proxy.example"\n')
    with pytest.raises(ConfigError, match=r"push\.proxy must begin with") as refused:
        Shell(config)("config", "show")
    assert PASSWORD not in str(refused.value)


def test_the_representation_of_settings_has_no_secret(config: Path) -> None:
    settings = load_settings(config, environ={})
    assert "hemlig" in dump(settings)
    assert "hemlig" not in repr(settings).replace(PASSWORD, "")


def test_invalid_names_and_rights_without_authentication(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a user's name has"):
        add(tmp_path / "users.toml", "a:b", lambda: pytest.fail("asked"), ())
    with pytest.raises(ConfigError, match=r"access\.methods is not set"):
        rights_of(settings_in(tmp_path))
