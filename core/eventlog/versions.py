"""Refusing records that a newer Arborcast wrote, the same way in every log of MessagePack records."""

from __future__ import annotations

import msgspec

from core.errors import RecordVersionError


class _VersionOnly(msgspec.Struct, frozen=True):
    v: int


_decoder = msgspec.msgpack.Decoder(_VersionOnly)


class KnownVersion:
    """The newest version of a kind of record that this Arborcast knows. `what` begins the message: "a dead letter"."""

    def __init__(self, what: str, version: int) -> None:
        self._what = what
        self._version = version

    def refuse_newer(self, version: int) -> None:
        """Raises RecordVersionError for a newer version."""
        if version > self._version:
            raise RecordVersionError(
                f"{self._what} has version {version}, this Arborcast knows up to {self._version}: upgrade it first"
            )

    def refuse_newer_in(self, value: bytes) -> None:
        """The same for a value that could not be decoded: what a newer version wrote may look like nothing to us, and
        must not pass for damaged."""
        try:
            version = _decoder.decode(value).v
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        self.refuse_newer(version)
