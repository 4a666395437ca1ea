"""What can go wrong with the embedded engine; every message says what to do.

ArborcastError
└── StackError
    ├── JavaNotFound         no Java at all
    ├── JavaTooOld           a Java, but none we can use
    ├── JarError             a jar is missing, cannot be fetched, or is not the one we pinned
    ├── PortInUse            another process listens there
    ├── HomeError            the data directory cannot be used: not writable, full
    │   └── HomeInUse            another engine runs in it
    └── PartFailed           a process ended, or was not ready in time
"""

from __future__ import annotations

from arborcast.core.errors import ArborcastError


class StackError(ArborcastError):
    """The embedded engine cannot do what it was asked to."""


class JavaNotFound(StackError):
    """There is no Java on this machine that we know how to find."""


class JavaTooOld(StackError):
    """Java was found, but no release that Kafka and Spark run on."""


class JarError(StackError):
    """A jar is missing, could not be fetched, or has the wrong checksum."""


class PortInUse(StackError):
    """A port that we need is taken."""


class HomeError(StackError):
    """The data directory cannot be used."""


class HomeInUse(HomeError):
    """Another engine runs in this data directory."""


class PartFailed(StackError):
    """A part of the engine ended, or was not ready in time. Carries the part's name."""

    def __init__(self, message: str, part: str) -> None:
        super().__init__(message)
        self.part = part
