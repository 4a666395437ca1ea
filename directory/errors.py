"""The directory's branch of the exception tree.

InfrastructureError
└── DirectoryError           the file or the server did not do its part; names it
    ├── DirectoryAway            it cannot be reached now; trying again is of use
    ├── DirectoryRefused         it is there and said no: wrong password, no rights, limits; says what to change
    ├── LdifError                a file is not LDIF; carries the line
    └── DnError                  a text is not a distinguished name
"""

from __future__ import annotations

from arborcast.core.errors import InfrastructureError


class DirectoryError(InfrastructureError):
    """The directory did not do its part."""


class DirectoryAway(DirectoryError):
    """The directory cannot be reached now. `retry_after` says in seconds when to try again."""


class DirectoryRefused(DirectoryError):
    """The directory is there and refuses."""


class LdifError(DirectoryError):
    """The text is not LDIF that we can read. `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class DnError(DirectoryError):
    """The text is not a distinguished name."""
