"""Settings: precedence, origins, errors that name the mistake, the file of `arborcast init`, and the outbound
policy made from all settings."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from arborcast.admin import configuration
from arborcast.cli import app
from arborcast.core.errors import ConfigError
from arborcast.engine.embedded import engine
from arborcast.engine.settings.loading import SECTIONS, Settings, declarations, dump, json_schema, load_settings
from arborcast.engine.settings.outbound import describe, policy_of

EXAMPLE = configuration.example()


def load(tmp_path: Path, toml: str = "", env: dict[str, str] | None = None, **kwargs: object) -> Settings:
    file = tmp_path / "arborcast.toml"
    file.write_text(toml)
    return load_settings(file, environ=env or {}, **kwargs)  # type: ignore[arg-type]


def test_the_source_of_higher_precedence_wins_and_is_named(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[gateway]\nport = 1111\nhost = "127.0.0.2"\n[kafka]\nprefix = "x."\n',
        {"ARBORCAST_GATEWAY_PORT": "2222", "ARBORCAST_KAFKA_PREFIX": "y."},
        overrides={"gateway.port": 3333},
    )
    assert (settings.gateway.port, settings.gateway.host, settings.kafka.prefix) == (3333, "127.0.0.2", "y.")
    assert settings.origins.items() >= {
        ("gateway.port", "command line"),
        ("kafka.prefix", "$ARBORCAST_KAFKA_PREFIX"),
        ("gateway.host", str(tmp_path / "arborcast.toml")),
        ("kafka.partitions", "default"),
    }


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff[gateway]\r\nport = 1111\r\n").gateway.port == 1111


def test_texts_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    """No log, no table and no other process could have them."""
    with pytest.raises(ConfigError, match=re.escape("$ARBORCAST_ACCESS_LDAP_USER_BASE: access.")):
        load(tmp_path, env={"ARBORCAST_ACCESS_LDAP_USER_BASE": "ou=\udcff"})
    with pytest.raises(ConfigError, match="command line: home is not UTF-8"):
        load(tmp_path, home=tmp_path / "\udcff")


def test_home_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    assert load(tmp_path, 'home = "data"').home == tmp_path / "data"
    assert load(tmp_path, 'home = "data"', {"ARBORCAST_HOME": "/elsewhere"}).home == Path("/elsewhere")
    assert load(tmp_path, home=tmp_path / "given").tables.path == str(tmp_path / "given" / "tables")
    assert not (tmp_path / "given").exists(), "reading creates no folder"


def test_files_are_relative_to_the_settings_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of an engine and the commands have different current folders."""
    current = tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    settings = load(
        tmp_path,
        '[tables]\npath = "tables"\n[access]\nusers_file = "users.toml"\npolicy_file = "/etc/policy.toml"\n',
        {"ARBORCAST_SECRETS_KEY_FILE": "keys"},
    )
    assert (settings.tables.path, settings.access.users_file) == (
        str(tmp_path / "tables"),
        str(tmp_path / "users.toml"),
    )
    assert (settings.access.policy_file, settings.secrets.key_file) == ("/etc/policy.toml", str(current / "keys"))
    assert load(tmp_path, '[tables]\npath = "s3://bucket/t"').tables.path == "s3://bucket/t"
    for each in declarations():
        if each.type is str and re.search(r"\bPEM\b|\bfile\b|\bFolder\b", each.info.help):
            assert each.is_path, each.key


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[gateway]\nport = 70000", ["gateway.port", "70000", "from 0 to 65535"]),
        ('[gateway]\nport = "80"', ["gateway.port", "'80'", "a whole number"]),
        ("[gateway]\nport = true", ["gateway.port", "True", "a whole number"]),
        ("[gateway]\nprot = 80", ["gateway.prot", "did you mean gateway.port?"]),
        ("[kafka]\nprefix = 'plant 1.'", ["kafka.prefix", "'plant 1.'", "letters, digits"]),
        ("[tls]\ngateway.port = 80", ["gateway.port is below [tls]: write it above all tables, or below [gateway]"]),
        ("[gatway]\nport = 80", ["gatway", "did you mean gateway?"]),
        ("gateway = 80", ["gateway must be a table"]),
        ('[kafka]\nsecurity_protocol = "TLS"', ["kafka.security_protocol", "'TLS'", "'SASL_SSL'"]),
        ('[kafka]\nsecurity_protocol = "SASL_SSL"', ["kafka.sasl_mechanism", "SASL_SSL"]),
        ("[tables]\ninterval_s = nan", ["tables.interval_s", "nan", "from 0.2 to 1e+09"]),
        ("[tables]\ninterval_s = 0.1", ["tables.interval_s", "0.1", "from 0.2"]),
        ("[gateway]\ndefault_termination_s = 1_000_000_001", ["termination_s = 1000000001", "from 0 to 1000000000"]),
        ("[kafka]\nretention_hours = 1_000_001", ["kafka.retention_hours = 1000001", "from 1 to 1000000"]),
        ("[zmq]\nsend_hwm = 2_147_483_648", ["zmq.send_hwm = 2147483648", "from 1 to 1000000"]),
        ("[tables]\ninterval_s = true", ["tables.interval_s", "True", "a number"]),
        ("[gateway]\nhost = 1979-05-27", ["gateway.host", "text"]),
        ("[topics]\nfixed = 1", ["topics.fixed", "true or false"]),
        ("[gateway\nport = 80", ["not valid TOML", "line"]),
        ("home = 3", ["home", "3"]),
        ("[[gateway]]\nport = 80", ["gateway must be a table"]),
        ({"ARBORCAST_GATEWAY_PORT": "eighty"}, ["gateway.port = 'eighty'"]),
        ({"ARBORCAST_GATEWAY_PROT": "80"}, ["did you mean ARBORCAST_GATEWAY_PORT?"]),
        ({"ARBORCAST_TOPICS_FIXED": "maybe"}, ["true or false"]),
        ({"ARBORCAST_TABLES_INTERVAL_S": "nan"}, ["tables.interval_s = 'nan'"]),
        ('[push]\nproxy = "http://proxy:80800"', ["push.proxy must begin with http:// or https://, then a host"]),
        ('[gateway]\npublic_url = "http://"', ["gateway.public_url = 'http://'"]),
        ('[federation]\nadministrator = "http://[a"', ["federation.administrator = 'http://[a'"]),
        ("[gateway]\npull_claim_s = 1", ["gateway.pull_claim_s = 1", "from 3 to"]),
        ("[fragments]\nbytes = 100", ["fragments.bytes = 100 must be 0", "at least 500"]),
        ("[retry]\nsuspend_after_s = inf", ["retry.suspend_after_s = inf"]),
        ("[stack]\njob_hang_timeout_s = 5", ["stack.job_hang_timeout_s = 5 must be 0", "at least 10"]),
        ({"ARBORCAST_GATEWAY_PORT": "70000"}, ["gateway.port = '70000'"]),
        ({"ARBORCAST_KAFKA_SECURITY_PROTOCOL": "TLS"}, ["'SASL_SSL'"]),
    ],
)
def test_an_error_names_the_key_or_variable_and_allowed_values(
    tmp_path: Path, toml: str | dict[str, str], named: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml) if isinstance(toml, str) else load(tmp_path, env=toml)
    for part in (*named, *([] if isinstance(toml, str) else toml)):
        assert part in str(caught.value)


def test_mistakes_are_reported_together_with_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[nosuch]\na = 1\n[gateway]\nprot = 80\nhost = 1", env={"ARBORCAST_TOPICS_FIXED": "maybe"})
    names = ("nosuch", "gateway.prot", "gateway.host", "topics.fixed")
    for name, line in zip(names, str(caught.value).splitlines(), strict=True):
        assert name in line
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings(tmp_path / "none.toml", environ={})


@pytest.mark.parametrize("text", ["true", "1", "Yes", "FALSE", "no"])
def test_words_for_true_and_false_in_a_variable(tmp_path: Path, text: str) -> None:
    expected = text in ("true", "1", "Yes")
    assert load(tmp_path, env={"ARBORCAST_TOPICS_FIXED": text}).topics.fixed is expected


def test_no_secret_in_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[kafka]\nsasl_password = 12345")
    assert "12345" not in str(caught.value)


def test_dump_reads_back_to_the_same(tmp_path: Path) -> None:
    assert load(tmp_path, dump(load(tmp_path))) == load(tmp_path), "the defaults are valid"
    odd = '[kafka]\nsasl_password = "quote\\" back\\\\ newline\\n del\\u007f ü"\n[tables]\ninterval_s = 2\n'
    settings = load(tmp_path, odd, home=tmp_path / "a home")
    assert load(tmp_path, dump(settings)) == settings


def test_the_schema_has_every_setting_with_its_range() -> None:
    definitions = json_schema()["$defs"]
    assert set(definitions["arborcast"]["properties"]) == {"home", *SECTIONS}
    for each in declarations():
        assert each.info.help.endswith("."), each.key
        found = definitions[each.section]["properties"][each.name]
        assert (found["description"], found["default"]) == (each.info.help, each.default)
        assert (found.get("minimum"), found.get("maximum")) == (each.info.minimum, each.info.maximum)
        assert set(found.get("enum", ())) == set(get_args(each.type))
    assert definitions["gateway"]["additionalProperties"] is False


def test_the_example_has_the_defaults_also_without_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the default place of the data directory
    usual = load_settings(environ={})
    assert load(tmp_path, EXAMPLE) == usual
    assert load(tmp_path, re.sub(r"^#([a-z0-9_]+ = )", r"\1", EXAMPLE, flags=re.MULTILINE)) == usual
    assert re.findall(r"^\[(.*)\]$", EXAMPLE, re.MULTILINE) == list(SECTIONS)
    for above, line in pairwise(EXAMPLE.splitlines()):
        assert not re.match(r"#[a-z0-9_]+ = ", line) or re.match(r"# \S", above), "a setting has a comment"
    most_used = {f"{section}.{name}" for section, names in configuration._MOST_USED.items() for name in names}
    assert most_used <= {each.key for each in declarations()}


def test_init_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, file = CliRunner(), tmp_path / "arborcast.toml"
    assert run.invoke(app, ["init"]).exit_code == 0
    assert file.read_text(encoding="utf-8") == EXAMPLE
    file.write_text("mine", encoding="utf-8")
    again = run.invoke(app, ["init"])
    assert again.exit_code != 0
    assert "--force" in str(again.exception)
    assert file.read_text(encoding="utf-8") == "mine"
    assert run.invoke(app, ["init", "--force"]).exit_code == 0
    assert file.read_text(encoding="utf-8") == run.invoke(app, ["init", "--stdout"]).stdout == EXAMPLE
    assert run.invoke(app, ["init", str(tmp_path / "nowhere" / "a.toml")]).exit_code != 0


def settings(tmp_path: Path, **overrides: str | int | bool) -> Settings:
    chosen = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(home=tmp_path, overrides=chosen, environ={})


def test_ports_of_the_engine_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "controller.port").write_text("8209\n")
    chosen = settings(
        tmp_path,
        gateway__host="127.0.0.5",
        gateway__port=8123,
        gateway__public_url="https://Bus.example./wsn",
        metrics__job_port=8124,
        kafka__bootstrap_servers="127.0.0.1:9192, [::1]:9193,kafka.invalid:9194",
        directory__kind="ldap",
        directory__url="ldaps://ldap.invalid",
        framed__port=8201,
        console__port=8202,
        federation__administrator="https://admin.invalid:8203",
        federation__datagram_port=8204,
        zmq__enabled=True,
        zmq__metrics_port=8205,
        zmq__subscribe="tcp://127.0.0.1:8206",
        zmq__publish="tcp://*:8207",
        zmq__pipeline=">tcp://127.0.0.1:8210",
        zmq__requests="tcp://127.0.0.1:*",
        zmq__tasks="tcp://[::1]:8208",
        outbound__allow="0.0.0.0/0, ::/0",
    )
    policy = policy_of(chosen, more={("127.0.0.1", 8211)})
    for at in (
        *("127.0.0.1:8123", "127.0.0.5:8123", "localhost:9192", "[::1]:9193", "kafka.invalid:9194", "ldap.invalid:636"),
        *("127.0.0.1:8124", "admin.invalid:8203", "bus.example:443"),
        *(f"127.0.0.1:{port}" for port in (8201, 8202, 8204, 8205, 8206, 8207, 8208, 8209, 8211)),
    ):
        refusal = policy.check_url(f"http://{at}/somewhere")
        assert refusal is not None, at
        assert refusal.rule == "own-port", at
    for url in ("http://127.0.0.1:8125/", "https://ldap.invalid/", "http://127.0.0.1:8210/"):
        assert policy.check_url(url) is None, "a port of another program, or a client's socket"
    closed = policy_of(settings(tmp_path, zmq__enabled=False, outbound__scope="loopback"))
    assert closed.check_url("http://127.0.0.1:5555/") is None
    chosen = settings(tmp_path, gateway__port=0, outbound__scope="loopback")
    assert policy_of(chosen).check_url("http://127.0.0.1:41234/") is None
    assert policy_of(chosen, 41234).check_url("http://127.0.0.1:41234/") is not None, "chosen by the system"


@pytest.mark.parametrize(
    ("overrides", "scope"),
    [
        ({}, "loopback"),
        ({"gateway__host": "localhost"}, "loopback"),
        ({"outbound__scope": "public"}, "public"),
        ({"outbound__scope": "private"}, "private"),
        # Networks may be allowed: the engine's ports on this machine are not.
        ({"gateway__host": "0.0.0.0"}, "public"),  # noqa: S104  # compared only
        ({"stack__broker": "external"}, "public"),
    ],
)
def test_only_an_engine_on_loopback_opens_loopback(tmp_path: Path, overrides: dict[str, str], scope: str) -> None:
    chosen = settings(tmp_path, gateway__port=0, stack__kafka_port=0, **overrides)
    assert chosen.outbound.scope == overrides.get("outbound__scope", "public")
    assert engine.effective(chosen).outbound.scope == scope


def test_the_policy_in_words(tmp_path: Path) -> None:
    parts = {"allow": "10.1.0.0/16", "deny": "10.1.9.0/24", "ports": "443"}
    given = {f"outbound__{name}": value for name, value in parts.items()}
    said = describe(settings(tmp_path, **given, outbound__https_only=True).outbound)
    assert said.startswith("globally routable addresses only")
    for part in (*parts.values(), "https only", "outbound.scope = public"):
        assert part in said
