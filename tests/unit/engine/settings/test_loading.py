"""Settings: precedence, origins, and errors a person can act on."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import get_args

import pytest

from arborcast.core.errors import ConfigError
from arborcast.engine.settings.loading import SECTIONS, Settings, declarations, dump, json_schema, load_settings


def load(tmp_path: Path, toml: str = "", env: dict[str, str] | None = None, **kwargs: object) -> Settings:
    file = tmp_path / "arborcast.toml"
    file.write_text(toml)
    return load_settings(file, environ=env or {}, **kwargs)  # type: ignore[arg-type]


def test_the_stronger_source_wins_and_origins_say_which(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[gateway]\nport = 1111\nhost = "127.0.0.2"\n[kafka]\nprefix = "x."\n',
        {"ARBORCAST_GATEWAY_PORT": "2222", "ARBORCAST_KAFKA_PREFIX": "y."},
        overrides={"gateway.port": 3333},
    )
    assert settings.gateway.port == 3333
    assert settings.gateway.host == "127.0.0.2"
    assert settings.kafka.prefix == "y."
    assert settings.origins["gateway.port"] == "command line"
    assert settings.origins["kafka.prefix"] == "$ARBORCAST_KAFKA_PREFIX"
    assert settings.origins["gateway.host"] == str(tmp_path / "arborcast.toml")
    assert settings.origins["kafka.partitions"] == "default"


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("[gateway]\nport = 70000", ["gateway.port", "70000", "from 0 to 65535"]),
        ('[gateway]\nport = "80"', ["gateway.port", "'80'", "a whole number"]),
        ("[gateway]\nport = true", ["gateway.port", "True", "a whole number"]),
        ("[gateway]\nprot = 80", ["gateway.prot", "did you mean gateway.port?"]),
        ("[gatway]\nport = 80", ["gatway", "did you mean gateway?"]),
        ("gateway = 80", ["gateway must be a table"]),
        ('[kafka]\nsecurity_protocol = "TLS"', ["kafka.security_protocol", "'TLS'", "'SASL_SSL'"]),
        ('[kafka]\nsecurity_protocol = "SASL_SSL"', ["kafka.sasl_mechanism", "SASL_SSL"]),
        ("[tables]\ninterval_s = nan", ["tables.interval_s", "nan", "at least 0.2"]),
        ("[tables]\ninterval_s = 0.1", ["tables.interval_s", "0.1", "at least 0.2"]),
        ("[tables]\ninterval_s = true", ["tables.interval_s", "True", "a number"]),
        ("[gateway]\nhost = 1979-05-27", ["gateway.host", "text"]),
        ("[topics]\nfixed = 1", ["topics.fixed", "true or false"]),
        ("[gateway\nport = 80", ["not valid TOML", "line"]),
        ("home = 3", ["home", "3"]),
        ("[[gateway]]\nport = 80", ["gateway must be a table"]),
    ],
)
def test_an_error_names_the_key_the_value_and_what_is_allowed(tmp_path: Path, toml: str, told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ARBORCAST_GATEWAY_PORT", "eighty", "gateway.port = 'eighty'"),
        ("ARBORCAST_GATEWAY_PROT", "80", "did you mean ARBORCAST_GATEWAY_PORT?"),
        ("ARBORCAST_TOPICS_FIXED", "maybe", "true or false"),
        ("ARBORCAST_TABLES_INTERVAL_S", "nan", "tables.interval_s = 'nan'"),
        ("ARBORCAST_GATEWAY_PORT", "70000", "gateway.port = '70000'"),
        ("ARBORCAST_KAFKA_SECURITY_PROTOCOL", "TLS", "'SASL_SSL'"),
    ],
)
def test_errors_of_variables_name_the_variable(tmp_path: Path, variable: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        load(tmp_path, env={variable: value})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("Yes", True), ("FALSE", False), ("no", False)]
)
def test_a_variable_may_say_yes_in_several_ways(tmp_path: Path, text: str, value: bool) -> None:
    assert load(tmp_path, env={"ARBORCAST_TOPICS_FIXED": text}).topics.fixed is value


def test_the_schema_has_every_setting_with_its_range() -> None:
    definitions = json_schema()["$defs"]
    assert set(definitions["arborcast"]["properties"]) == {"home", *SECTIONS}
    for each in declarations():
        found = definitions[each.section]["properties"][each.name]
        assert (found["description"], found["default"]) == (each.info.help, each.default)
        assert (found.get("minimum"), found.get("maximum")) == (each.info.minimum, each.info.maximum)
        assert set(found.get("enum", ())) == set(get_args(each.type))
    assert definitions["gateway"]["additionalProperties"] is False


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[nosuch]\na = 1\n[gateway]\nprot = 80\nhost = 1", env={"ARBORCAST_TOPICS_FIXED": "maybe"})
    names = ("nosuch", "gateway.prot", "gateway.host", "topics.fixed")
    for name, line in zip(names, str(caught.value).splitlines(), strict=True):
        assert name in line


def test_a_missing_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings(tmp_path / "none.toml", environ={})


def test_a_secret_is_never_in_an_error_or_a_repr(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[kafka]\nsasl_password = 12345")
    assert "12345" not in str(caught.value)
    settings = load(tmp_path, '[kafka]\nsasl_password = "hunter2"\n[directory]\npassword = "hunter3"')
    assert settings.kafka.sasl_password == "hunter2"  # noqa: S105 (a made-up one)
    assert "hunter" not in repr(settings)


def test_dump_reads_back_to_the_same(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[kafka]\nsasl_password = "quote\\" back\\\\ newline\\n del\\u007f ü"\n[tables]\ninterval_s = 2\n',
        home=tmp_path / "a home",
    )
    again = load(tmp_path, dump(settings))
    assert again == settings


def test_home_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    assert load(tmp_path, 'home = "data"').home == tmp_path / "data"
    assert load(tmp_path, 'home = "data"', {"ARBORCAST_HOME": "/elsewhere"}).home == Path("/elsewhere")
    assert load(tmp_path, "", home=Path("/given")).tables.path == "/given/tables"


def test_every_setting_is_documented_and_its_default_allowed(tmp_path: Path) -> None:
    for declaration in declarations():
        assert declaration.info.help.endswith("."), declaration.key
        assert declaration.env.startswith("ARBORCAST_")
    load(tmp_path, dump(load(tmp_path)))


def test_reading_settings_writes_nothing(tmp_path: Path) -> None:
    load(tmp_path, home=tmp_path / "home")
    assert not (tmp_path / "home").exists()
    assert stat.S_ISREG((tmp_path / "arborcast.toml").stat().st_mode)
