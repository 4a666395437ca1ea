"""The directory's branch of the exception tree.

InfrastructureError
└── DirectoryError           the file or the server failed; the message names it
    ├── DirectoryUnavailable     it cannot be reached now; a retry may succeed
    ├── DirectoryRefused         it refuses: TLS, missing rights, limits; the message has the setting
    │   └── BindRefused              it refuses the bind: wrong name or password
    ├── LdifError                a file is not LDIF; has the line
    └── DnError                  a text is not a distinguished name
"""

from __future__ import annotations

from arborcast.core.errors import InfrastructureError


class DirectoryError(InfrastructureError):
    """The directory failed."""


class DirectoryUnavailable(DirectoryError):
    """The directory cannot be reached now. `retry_after` is the time until a retry, in seconds."""


class DirectoryRefused(DirectoryError):
    """The directory can be reached, but refuses."""


class BindRefused(DirectoryRefused):
    """The directory refuses the bind of an identity."""


class LdifError(DirectoryError):
    """The text is not supported LDIF. `line` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(f"line {line}: {reason}")
        self.reason = reason
        self.line = line


class DnError(DirectoryError):
    """The text is not a distinguished name."""
