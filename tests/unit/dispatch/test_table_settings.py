from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import ATTEMPTS
from arborcast.dispatch.tables.spec import options_of


def test_storage_options_of_the_location_of_a_table() -> None:
    settings = TableSettings(path="s3://bucket/x/", storage_options="AWS_REGION=eu  AWS_SECRET_ACCESS_KEY=a/b+c==\nX=")
    location = ATTEMPTS.location(settings, Path("home"))
    assert location == "s3://bucket/x/attempts"
    assert options_of(location) == {"AWS_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "a/b+c==", "X": ""}
    assert options_of("s3://bucket/x/attempts") == {}


@pytest.mark.parametrize("text", ["AWS_REGION=eu hunter2", "=hunter2"])
def test_invalid_options_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"its part \d is not NAME=VALUE") as caught:
        TableSettings(storage_options=text).storage()
    assert "hunter2" not in str(caught.value)


def test_options_are_not_shown_with_settings_or_location() -> None:
    settings = TableSettings(storage_options="KEY=hunter2")
    assert "hunter2" not in repr(settings) + repr(ATTEMPTS.location(settings, Path("home")))
