"""Cameras and their states: a fold over the control log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from arborcast.topic_model.records.control import CameraRecord, CameraState, ControlRecord, SecretsResealed, Tombstone

_KEY = "camera:"


class Cameras:
    """The current cameras, a function of the last record of each key. `version` grows with each change of a camera."""

    def __init__(self) -> None:
        self._written: dict[str, CameraRecord] = {}
        self._resealed: dict[str, Mapping[str, str]] = {}
        self._states: dict[str, CameraState] = {}
        self.version = 0

    def apply(self, record: ControlRecord) -> None:
        match record:
            case CameraRecord(name=name):
                self._written[name] = record
            case Tombstone(subject=("camera", name)):
                self._written.pop(name, None)
            case SecretsResealed(id=key, sealed=sealed) if key.startswith(_KEY):
                self._resealed[key.removeprefix(_KEY)] = sealed
            case Tombstone(subject=("seal", key)) if key.startswith(_KEY):
                self._resealed.pop(key.removeprefix(_KEY), None)
            case CameraState(name=name):
                self._states[name] = record
                return
            case Tombstone(subject=("camstate", name)):
                self._states.pop(name, None)
                return
            case _:
                return
        self.version += 1

    def __iter__(self) -> Iterator[CameraRecord]:
        return map(self._current, sorted(self._written.values(), key=lambda each: each.name))

    def __len__(self) -> int:
        return len(self._written)

    def get(self, name: str) -> CameraRecord | None:
        written = self.written(name)
        return None if written is None else self._current(written)

    def written(self, name: str) -> CameraRecord | None:
        """The camera with the password of its record, which may be resealed since."""
        return self._written.get(name)

    def of_key(self, key: str) -> CameraRecord | None:
        """The camera whose pushes have this key."""
        return next((self._current(each) for each in self._written.values() if each.key == key), None)

    def state(self, name: str) -> CameraState | None:
        """The last recorded state; None before the first."""
        return self._states.get(name)

    def _current(self, written: CameraRecord) -> CameraRecord:
        """The camera with its current password."""
        sealed = self._resealed.get(written.name, {}).get(written.sealed, written.sealed)
        return written if sealed == written.sealed else msgspec.structs.replace(written, sealed=sealed)
