"""No command and no page that shows settings or states shows a secret that is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.engine.embedded.engine import write_settings
from arborcast.engine.embedded.home import Home
from arborcast.engine.settings.loading import declarations, dump, load_settings

pytestmark = pytest.mark.slow

PASSWORD = "hemlig-in-a-url"  # noqa: S105  # looked for

# Texts whose names sound like secrets, and say where one is rather than what it is.
_NAMES_OF_PLACES = re.compile(r"_(file|folder|base|filter|name|certificates?)$|^(tls_client_key|key_file)$")


def secrets() -> dict[str, str]:
    """A value for every secret that can be set."""
    return {each.key: f"hemlig-{number}-value" for number, each in enumerate(declarations()) if each.info.secret}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "arborcast.toml"
    lines = [f'home = "{tmp_path / "home"}"']
    values = secrets() | {
        "stack.broker": "external",
        "kafka.bootstrap_servers": "127.0.0.1:9",
        "push.proxy": f"http://user:{PASSWORD}@proxy.example:3128",
        "tracing.endpoint": f"https://user:{PASSWORD}@collector.example/v1/traces",
        "tables.storage_options": "AWS_SECRET_ACCESS_KEY=hemlig-in-options",
    }
    for section in dict.fromkeys(key.partition(".")[0] for key in values):
        lines.append(f"[{section}]")
        lines += [
            f'{key.partition(".")[2]} = "{value}"' for key, value in values.items() if key.startswith(section + ".")
        ]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_what_sounds_like_a_secret_is_declared_one() -> None:
    for each in declarations():
        if each.type is str and re.search(r"password|secret|token|credential|(^|_)key($|_)", each.name):
            assert each.info.secret or _NAMES_OF_PLACES.search(each.name), each.key


# Each command with a text that shows how far it came: behind the place where it reads or shows the settings.
SHOWS = {
    "config show": "kafka.sasl_password",
    "config show --json": '"kafka.sasl_password"',
    "config spark": "spark.scheduler.mode",
    "doctor": "gateway port",
    "doctor --json": '"gateway port"',
    "status": "no engine runs",
    "status --json": '"running": false',
    "topics list": "Kafka cannot be reached",
    "audit": "Kafka cannot be reached",
}


@pytest.mark.parametrize("command", SHOWS)
def test_no_command_shows_one(config: Path, command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--config", str(config)], env={"COLUMNS": "200"})
    shown = result.output + str(result.exception)
    assert SHOWS[command] in shown, shown
    for secret in [*secrets().values(), PASSWORD, "hemlig-in-options"]:
        assert secret not in shown


def test_a_proxy_that_is_none_is_not_quoted(config: Path) -> None:
    config.write_text(f'[push]\nproxy = "user:{PASSWORD}@proxy.example"\n')
    result = CliRunner().invoke(app, ["config", "show", "--config", str(config)])
    assert "push.proxy must begin with" in str(result.exception)
    assert PASSWORD not in result.output + str(result.exception)


def test_the_file_that_the_parts_read_is_for_its_owner_alone(config: Path, tmp_path: Path) -> None:
    settings = load_settings(config, environ={})
    assert "hemlig" in dump(settings)
    assert "hemlig" not in repr(settings).replace("hemlig-in-a-url", "")
    home = Home(tmp_path / "home")
    home.settings_file.parent.mkdir(parents=True, exist_ok=True)
    home.settings_file.write_text("")
    home.settings_file.chmod(0o644)
    write_settings(settings, home)
    assert home.settings_file.stat().st_mode & 0o777 == 0o600
