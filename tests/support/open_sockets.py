"""The sockets that this process holds, as Linux lists them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_FOLDER = Path("/proc/self/fd")


def sockets() -> set[int]:
    """Descriptors of open sockets."""
    return {int(each.name) for each in _FOLDER.iterdir() if _is_socket(int(each.name))}


def inherited() -> set[int]:
    """Those of them that a child process would get."""
    return {descriptor for descriptor in sockets() if _is_inheritable(descriptor)}


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # closed since it was listed
        return False
