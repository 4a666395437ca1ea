from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.engine.gateway import __main__ as command
from arborcast.engine.gateway import parts
from arborcast.engine.install import jars
from arborcast.engine.processes.errors import JarError
from arborcast.engine.settings.loading import load_settings


def test_the_defaults_fit_together(tmp_path: Path) -> None:
    parts.check_sizes(load_settings(home=tmp_path))


def test_what_is_accepted_must_fit_into_a_record(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, overrides={"gateway.max_body_bytes": 8 * 1024 * 1024})
    with pytest.raises(ConfigError, match=r"kafka\.max_record_bytes = 8388608 .* gateway\.max_body_bytes = 8388608"):
        parts.check_sizes(settings)


def test_a_setting_that_is_wrong_ends_it_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "arborcast.toml"
    config.write_text("[gateway]\nprot = 1\n")
    assert command.main(["--config", str(config)]) == 2
    assert "gateway.prot" in capsys.readouterr().err


def test_without_the_published_schemas_it_works_and_serves_no_wsdl(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(_: str) -> list[Path]:
        raise JarError("the wsdl jars have not been fetched; run: arborcast fetch")

    monkeypatch.setattr(jars, "jar_paths", missing)
    assert parts.descriptions() is None
    assert "arborcast fetch" in caplog.text
