"""Starts a command that dies with its parent: python die_with_parent.py PARENT_PID COMMAND...

Run as a script of its own between fork and the real command, because a fork hook in a process with threads may
deadlock. On Linux the kernel kills the process when the parent ends, however it ends; the setting survives exec. Other
systems have no equivalent: there the next `up` kills the processes that a killed supervisor left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # the parent died before prctl took effect
    os.execvp(command[0], command)  # noqa: S606 -- no shell on purpose


if __name__ == "__main__":
    main(sys.argv[1:])
