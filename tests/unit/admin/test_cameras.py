"""Cameras, as an operator adds, pauses and removes them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from arborcast.admin import cameras, control_log, resealing
from arborcast.admin.cameras import CameraRequest
from arborcast.core.errors import ConfigError, NotFound, SecretError
from arborcast.core.security.keyring import KeyFile, KeyRing, add_key, parse_keys
from arborcast.core.settings import KafkaSettings
from arborcast.engine.settings.loading import Settings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import CameraRecord, CameraState, ControlRecord, Tombstone, ending_camera
from arborcast.topic_model.records.operations import OperationBegun
from tests.support.console import settings_in
from tests.support.written_operations import WrittenOperations

KAFKA = KafkaSettings()

GATE = CameraRequest("gate", "192.168.1.20", "viewer", "secret")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = settings_in(tmp_path, outbound__scope="private")
    add_key(settings.home / "secrets.keys", "k1")
    return settings


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch, written_operations: WrittenOperations) -> ControlView:
    control = ControlView()

    def append(_kafka: KafkaSettings, records: list[ControlRecord]) -> None:
        for record in records:
            control.apply(record)

    monkeypatch.setattr(control_log, "append", append)
    monkeypatch.setattr(control_log, "read_control", lambda _: control)
    return control


def one(control: ControlView) -> CameraRecord:
    (camera,) = control.cameras
    return camera


def test_the_password_is_sealed_and_recorded_nowhere(
    settings: Settings, control: ControlView, written_operations: WrittenOperations
) -> None:
    cameras.add(settings, KAFKA, GATE)
    camera = one(control)
    assert camera.url == "http://192.168.1.20/onvif/device_service"
    keys = KeyFile(settings.home / "secrets.keys")
    assert keys.open(camera.sealed, camera.sealing_context()) == b"secret"
    with pytest.raises(SecretError):  # bound to its camera
        keys.open(camera.sealed, CameraRecord("gate", "http://evil.example/", "").sealing_context())
    assert written_operations.made() == [("cameras add", ["gate"])]
    (begun, _) = written_operations.records
    assert isinstance(begun, OperationBegun)
    assert not any(secret in begun.changes[0].after for secret in ("secret", camera.key, camera.sealed))


@pytest.mark.parametrize(
    ("name", "url", "words"),
    [
        ("gate", "ftp://192.168.1.20", "must be an http or https URL (outbound rule: scheme); correct the address"),
        ("gate", "http://viewer:secret@192.168.1.20", "must not have a user name"),
        ("gate", "http://viewer:secret@192.168.1.20", "name the user with --user"),
        ("gate", "203.0.113.9", "allow it with outbound.scope or outbound.allow"),
        ("gate", "127.0.0.1", "outbound rule: loopback"),
        ("a/b", "192.168.1.20", "a camera's name has"),
        ("1st", "192.168.1.20", "a camera's name has"),
    ],
)
def test_wrong_cameras(settings: Settings, control: ControlView, name: str, url: str, words: str) -> None:
    """The error has the remedy, and no password."""
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        cameras.add(settings, KAFKA, GATE._replace(name=name, url=url))
    assert "secret" not in str(refused.value)
    assert not list(control.cameras)


def test_the_life_of_a_camera(settings: Settings, control: ControlView) -> None:
    cameras.add(settings, KAFKA, GATE)
    key = one(control).key
    control.apply(CameraState("gate", "connected", 1))
    cameras.add(settings, KAFKA, GATE._replace(user="other"))
    assert control.cameras.state("gate") is not None
    cameras.set_paused(KAFKA, "gate", True)
    cameras.add(settings, KAFKA, GATE._replace(url="https://10.0.0.1:8443/onvif/device"))
    changed = one(control)
    assert (changed.url, changed.key, changed.paused) == ("https://10.0.0.1:8443/onvif/device", key, True)
    assert control.cameras.state("gate") is None, "no subscription at the new address"
    cameras.set_paused(KAFKA, "gate", False)
    assert not one(control).paused
    cameras.remove(KAFKA, "gate")
    assert not list(control.cameras)
    for act in (partial(cameras.set_paused, paused=True), cameras.remove):
        with pytest.raises(NotFound, match="there is no camera 'gate'"):
            act(KAFKA, "gate")


def test_a_camera_of_this_machine_is_allowed_where_the_embedded_engine_calls_it(
    tmp_path: Path, control: ControlView
) -> None:
    local = CameraRequest("gate", "127.0.0.1:8000")
    cameras.add(settings_in(tmp_path), KAFKA, local)
    with pytest.raises(ConfigError, match=r"outbound\.scope is public"):
        cameras.add(settings_in(tmp_path, stack__broker="external"), KAFKA, local)


def test_passwords_of_cameras_are_resealed(settings: Settings, control: ControlView) -> None:
    cameras.add(settings, KAFKA, GATE)
    add_key(settings.home / "secrets.keys", "k2")
    keys = KeyRing(parse_keys((settings.home / "secrets.keys").read_text()))
    secrets = resealing.SealedSecrets()
    secrets.apply(one(control))
    (record,), report = secrets.plan(keys)
    control.apply(record)
    assert one(control).sealed.startswith("k2:")
    assert keys.open(one(control).sealed, one(control).sealing_context()) == b"secret"
    assert (report.secrets, dict(report.sealed)) == (1, {"k1": 1})
    secrets.apply(record)
    assert not secrets.plan(keys)[0]
    (_, stuck) = secrets.plan(KeyRing({"other": b"o" * 32}))
    assert set(stuck.stuck) == {"gate"}


def test_resealing_undoes_no_concurrent_change(settings: Settings, control: ControlView) -> None:
    """Between its reading of the log and its records an operator pauses a camera, changes one, and removes one."""
    names = ("paused", "changed", "removed")
    for name in names:
        cameras.add(settings, KAFKA, GATE._replace(name=name))
    secrets = resealing.SealedSecrets()
    for camera in control.cameras:
        secrets.apply(camera)
    for key in ("k2", "k3"):
        add_key(settings.home / "secrets.keys", key)
        keys = KeyRing(parse_keys((settings.home / "secrets.keys").read_text()))
        records, _ = secrets.plan(keys)
        if key == "k2":
            cameras.set_paused(KAFKA, "paused", True)
            cameras.add(settings, KAFKA, CameraRequest("changed", GATE.url, "viewer", "other"))
            cameras.remove(KAFKA, "removed")
            for each in (*control.cameras, *ending_camera("removed")):
                secrets.apply(each)
        for record in records:
            control.apply(record)
            secrets.apply(record)
        (paused, changed) = sorted(control.cameras, key=lambda each: each.paused, reverse=True)
        assert (paused.name, paused.paused) == ("paused", True)
        assert [keys.open(each.sealed, each.sealing_context()) for each in (paused, changed)] == [b"secret", b"other"]
        assert paused.sealed.startswith(key)
    remaining, report = secrets.plan(keys)
    assert report.sealed == {"k3": 2}
    assert remaining == [], "the record of the removed camera is removed"
    assert Tombstone.of("seal", "camera:removed") in records
