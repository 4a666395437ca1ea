"""Cameras at a gateway process over a real broker, with the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import NotFound
from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.camera import Camera
from tests.support.command import Shell
from tests.support.gateway_process import gateway_run, post
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

SPOKEN = "tr0ub4dor"

MOTION = "cameras/gate/VideoSource/MotionAlarm/Source.1"


def current(url: str) -> str:
    return post(url, f"<wsnt:GetCurrentMessage>{soap.topic(MOTION)}</wsnt:GetCurrentMessage>").text


@pytest.mark.chaos
def test_a_camera_by_command_and_over_kill_9(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    more = '[stack]\nbroker = "external"\n'
    with Camera("viewer", SPOKEN, most=1) as camera, gateway_run(tmp_path, kafka_settings, more=more) as gateway:
        shell = Shell(gateway.config)

        def listed(**expected: object) -> dict[str, object]:
            def found() -> dict[str, object] | None:
                (one,) = shell.json("cameras", "list")
                return one if all(one[name] == value for name, value in expected.items()) else None

            return wait_until(found, f"{expected} in {shell.json('cameras', 'list')}")

        shell("keys", "new")
        assert "cameras/gate" in shell(
            "cameras", "add", "gate", camera.url, "--user", "viewer", "--stdin", typed=f"{SPOKEN}\n"
        )
        listed(state="connected", events=0, way="pull")
        camera.emit()
        listed(state="connected", events=1)
        assert 'PropertyOperation="Changed"' in current(gateway.broker)

        gateway.kill()
        assert listed()["state"] == "unknown"
        camera.emit(value="false")
        gateway.start()
        listed(state="connected")
        # The answer to the last pull went to the killed process; the state is requested again.
        wait_until(lambda: 'Value="false"' in current(gateway.broker))
        assert camera.count("CreatePullPointSubscription") == 1

        shell("cameras", "pause", "gate")
        listed(state="paused")
        shell("cameras", "resume", "gate")
        listed(state="connected")
        shell("cameras", "remove", "gate")
        assert shell.json("cameras", "list") == []
        with pytest.raises(NotFound, match="there is no camera 'gate'"):
            shell("cameras", "remove", "gate")
        operations = shell("operations", "--json")
        assert all(f"cameras {each}" in operations for each in ("add", "pause", "resume", "remove"))
        assert SPOKEN not in operations
        assert camera.count("Unsubscribe") == 0
