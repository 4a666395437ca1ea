"""Errors of the embedded engine; every message names the action to take."""

from __future__ import annotations

from arborcast.core.errors import ArborcastError


class StackError(ArborcastError):
    """The embedded engine cannot do the requested work."""


class JavaNotFound(StackError):
    """No Java was found on this machine."""


class JavaTooOld(StackError):
    """Java was found, but no release that Kafka and Spark run on."""


class JarError(StackError):
    """A jar is missing, could not be fetched, or has the wrong checksum."""


class PortInUse(StackError):
    """A required port is in use."""


class HomeError(StackError):
    """The data directory cannot be used."""


class HomeInUse(HomeError):
    """Another engine runs in this data directory."""


class PartFailed(StackError):
    """A part of the engine ended, or was not ready in time. `part` is its name."""

    def __init__(self, message: str, part: str) -> None:
        super().__init__(message)
        self.part = part
