"""Folders of the broker. For its records after a kill and a stop see tests/integration/test_control_log.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.engine.processes.errors import PartFailed
from tests.support.broker import new_broker

pytestmark = pytest.mark.kafka


def test_a_folder_may_have_any_name_in_any_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under cron, or in a container, with LC_ALL=C and a non-ASCII home folder."""
    monkeypatch.setenv("LC_ALL", "C")
    home = tmp_path / "Zoë's back\\slash = #1: \u2603 \U0001f332"
    home.mkdir()
    broker = new_broker(home)
    broker.prepare()
    assert (broker.layout.data / "meta.properties").exists()
    assert list(tmp_path.iterdir()) == [home], "nothing is written outside of it"

    # Also the libraries that a JVM unpacks; a killed broker leaves them.
    assert f"-Djava.io.tmpdir={broker.layout.temporary}" in broker.command()
    (broker.layout.temporary / "liblz4-java-1.so").touch()
    broker.prepare()
    assert not any(broker.layout.temporary.iterdir())


def test_a_name_that_kafka_would_split_in_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PartFailed, match=r"a comma .* --home"):
        new_broker(tmp_path / "a,b").prepare()
    assert not (tmp_path / "a").exists()
