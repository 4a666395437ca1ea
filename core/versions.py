"""The values of a log: records that carry the version of their format.

A reader refuses a newer version (RecordVersionError) instead of guessing, and passes over fields that it does not know.
So a new field has a default, and what an older reader must not pass over needs a new version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from msgspec import json, msgpack

from arborcast.core.errors import InfrastructureError, RecordVersionError


class Versioned(msgspec.Struct, frozen=True):
    """What a value holds: the version, and in subclasses the record beside it."""

    v: int


_V = TypeVar("_V", bound=Versioned)

# What the decoders of msgspec raise for bytes that are something else.
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError)


class VersionedCodec(Generic[_V]):
    """Encodes and decodes one kind of value, as MessagePack, or as JSON.

    `what` begins the messages of errors: "a dead letter". `version` is the newest one that this Arborcast knows.
    """

    __slots__ = ("_decode", "_decode_version", "_what", "encode", "version")

    def __init__(self, form: type[_V], what: str, version: int, *, readable: bool = False) -> None:
        self._what = what
        self.version = version
        wire = json if readable else msgpack
        self.encode: Callable[[_V], bytes] = wire.Encoder().encode
        self._decode: Callable[[bytes], _V] = wire.Decoder(form).decode
        name = next(field.encode_name for field in msgspec.structs.fields(form) if field.name == "v")
        self._decode_version = wire.Decoder(msgspec.defstruct("_VersionOnly", [("v", int)], rename={"v": name})).decode

    def decode(self, value: bytes | None, key: bytes | None = None) -> _V:
        """What a value holds. With a `key`, the message of an error names it.

        Raises RecordVersionError for a record of a newer version and InfrastructureError for one that cannot be read.
        """
        if value is None:
            raise InfrastructureError(f"{self._named(key)} has no value")
        try:
            found = self._decode(value)
        except _DAMAGED as error:
            # What a newer version wrote may look like nothing to us; it must not pass for damaged.
            self._refuse_newer(self._version_of(value), key)
            raise InfrastructureError(f"{self._named(key)} cannot be read: {error}") from error
        # A newer record may be decodable (unknown fields are skipped), but the skipped fields might matter.
        if found.v > self.version:
            self._refuse_newer(found.v, key)
        return found

    def _version_of(self, value: bytes) -> int:
        """Which version has written this; 0 where that cannot be read."""
        try:
            return int(self._decode_version(value).v)
        except _DAMAGED:
            return 0

    def _refuse_newer(self, version: int, key: bytes | None) -> None:
        if version > self.version:
            raise RecordVersionError(
                f"{self._named(key)} has version {version}, this Arborcast knows up to {self.version}: upgrade this "
                f"process before it goes on"
            )

    def _named(self, key: bytes | None) -> str:
        return self._what if key is None else f"{self._what} {key.decode(errors='replace')!r}"
