"""Cameras and their states: a fold over the control log."""

from __future__ import annotations

from collections.abc import Iterator

from arborcast.topic_model.records.control import (
    CameraRecord,
    CameraState,
    ControlRecord,
    Tombstone,
    camera_key,
    camera_state_key,
)

_KEY, _STATE = camera_key(""), camera_state_key("")


class Cameras:
    """The current cameras, a function of the last record of each key. `version` grows with each change of a camera."""

    def __init__(self) -> None:
        self._cameras: dict[str, CameraRecord] = {}
        self._states: dict[str, CameraState] = {}
        self.version = 0

    def apply(self, record: ControlRecord) -> None:
        """Apply one record; records of other kinds are ignored."""
        match record:
            case CameraRecord(name=name):
                self._cameras[name] = record
                self.version += 1
            case CameraState(name=name):
                self._states[name] = record
            case Tombstone(key=key) if key.startswith(_KEY):
                self._cameras.pop(key.removeprefix(_KEY), None)
                self.version += 1
            case Tombstone(key=key) if key.startswith(_STATE):
                self._states.pop(key.removeprefix(_STATE), None)

    def __iter__(self) -> Iterator[CameraRecord]:
        return iter(sorted(self._cameras.values(), key=lambda each: each.name))

    def __len__(self) -> int:
        return len(self._cameras)

    def get(self, name: str) -> CameraRecord | None:
        return self._cameras.get(name)

    def of_key(self, key: str) -> CameraRecord | None:
        """The camera whose pushes have this key."""
        return next((each for each in self._cameras.values() if each.key == key), None)

    def state(self, name: str) -> CameraState | None:
        """The last recorded state; None before the first."""
        return self._states.get(name)
