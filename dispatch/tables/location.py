"""Where a table is: a path or URL, and what its storage wants to be told (credentials, an endpoint)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from deltalake import DeltaTable


class Location(str):
    """The path or URL, as text; the options go where it goes, and are never shown with it."""

    options: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, path: str, options: Mapping[str, str]) -> Location:
        """A place with its options."""
        made = cls(path)
        made.options = MappingProxyType(dict(options))
        return made


def options_of(location: str) -> dict[str, str]:
    """What the storage wants to be told; nothing for a place that is only a path."""
    return dict(location.options) if isinstance(location, Location) else {}


def is_there(location: str) -> bool:
    """Whether there is a table."""
    return DeltaTable.is_deltatable(location, storage_options=options_of(location))


def open_table(location: str) -> DeltaTable:
    """The table there, as it is now."""
    return DeltaTable(location, storage_options=options_of(location))
