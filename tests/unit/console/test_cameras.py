"""The screen Cameras."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.admin import cameras
from arborcast.admin.queues import JobFigures
from arborcast.topic_model.records.control import CameraRecord, CameraState, ControlRecord
from tests.support.console import Browser, console_parts
from tests.support.console_answers import ANSWERS, answering

EVIL = "<img src=x onerror=alert(1)>"

RECORDS: list[ControlRecord] = [
    CameraRecord("gate", "http://192.168.1.20/onvif/device_service", "the-secret-key", "viewer", "k:sealed"),
    CameraRecord("yard", "http://192.168.1.21/onvif/device_service", "the-secret-key"),
    CameraRecord("attic", "http://192.168.1.22/onvif/device_service", "the-secret-key", paused=True),
    CameraState("gate", "connected", 1_000),
    CameraState("yard", "away", 2_000, f"no answer from {EVIL}"),
]


def test_cameras_with_trouble_come_first_and_no_secret_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch)
    browser = Browser(console_parts(tmp_path, RECORDS).app)
    assert browser.get("/cameras").status_code == 200
    rows = [" ".join(each.text_content().split()) for each in browser.page.xpath("//table/tbody/tr")]
    assert [row.split("http")[0] for row in rows] == ["yard", "attic", "gate"]
    assert "away" in rows[0]
    assert "connected" in rows[2]
    assert "1,440" in rows[2]
    assert rows[2].endswith("-3 s")
    assert EVIL not in browser.answer.text
    assert not any(secret in browser.answer.text for secret in ("the-secret-key", "sealed"))


def test_without_a_gateway_states_are_unknown_and_without_cameras_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {**ANSWERS, cameras.figures: JobFigures(problem="connection refused")})
    browser, empty = (Browser(console_parts(tmp_path / str(len(each)), each).app) for each in (RECORDS, []))
    browser.get("/cameras")
    assert "the gateway does not respond" in browser.text
    assert "connected" not in browser.text
    empty.get("/cameras")
    assert "arborcast cameras add" in empty.text
