"""Settings of what every part shares, and the helper with which all packages declare theirs.

Settings are frozen data classes, declared beside the code that uses them and passed down; only `jobs.settings.loading`
reads files and the environment. `setting()` puts the sentence for the reference page and the allowed range next to the
default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SettingInfo:
    """What is known of one setting beside its type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    secret: bool = False


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str = "",
    secret: bool = False,
) -> Any:
    """A data class field that documents and bounds itself."""
    info = SettingInfo(help, minimum, maximum, unit, secret)
    return dataclasses.field(default=default, metadata={"setting": info}, repr=not secret)
