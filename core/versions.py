"""Versioned encoding of the values of logs.

A reader refuses newer versions (RecordVersionError) and ignores unknown fields. So a new field has a default, and a
change that an older reader must not ignore needs a new version.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import json, msgpack

from arborcast.core.errors import InfrastructureError, RecordVersionError


class Versioned(msgspec.Struct, frozen=True):
    """A value with its version; subclasses add the record."""

    v: int


_V = TypeVar("_V", bound=Versioned)
_R = TypeVar("_R")

# Exceptions of msgspec's decoders for invalid bytes.
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError)


class VersionedCodec(Generic[_V]):
    """Encodes and decodes one kind of value, as MessagePack, or as JSON.

    `what` begins the messages of errors: "a dead letter". `version` is the newest supported one.
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
        """Decode a value; error messages have the `key`.

        Raises RecordVersionError for a newer version and InfrastructureError for an unreadable value.
        """
        if value is None:
            raise InfrastructureError(f"{self._named(key)} has no value")
        try:
            found = self._decode(value)
        except _DAMAGED as error:
            # A newer version may be undecodable here; its error must not be "damaged".
            with suppress(*_DAMAGED):
                self._refuse_newer(self._decode_version(value).v, key)
            raise InfrastructureError(f"{self._named(key)} cannot be read: {error}") from error
        # A newer record may be decodable since unknown fields are ignored; those fields might matter.
        if found.v > self.version:
            self._refuse_newer(found.v, key)
        return found

    def _refuse_newer(self, version: int, key: bytes | None) -> None:
        if version > self.version:
            raise RecordVersionError(
                f"{self._named(key)} has version {version}, this Arborcast supports up to {self.version}: upgrade this "
                f"process"
            )

    def _named(self, key: bytes | None) -> str:
        return self._what if key is None else f"{self._what} {key.decode(errors='replace')!r}"


class RecordCodec(Generic[_R]):
    """As VersionedCodec, for the records of a log (`form` is their type), which are the field `name` of its values."""

    def __init__(self, form: Any, what: str, version: int, *, name: str = "record", readable: bool = False) -> None:
        self._value: Any = msgspec.defstruct("_Value", [(name, form)], bases=(Versioned,), frozen=True)
        self.codec: VersionedCodec[Any] = VersionedCodec(self._value, what, version, readable=readable)
        self._record: Callable[[Versioned], _R] = attrgetter(name)

    def encode(self, record: _R) -> bytes:
        return self.codec.encode(self._value(self.codec.version, record))

    def decode(self, value: bytes | None, key: bytes | None = None) -> _R:
        """See VersionedCodec."""
        return self._record(self.codec.decode(value, key))
