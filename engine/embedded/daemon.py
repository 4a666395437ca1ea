"""The supervisor of a detached engine: python -m arborcast.engine.embedded.daemon LOCK_FD HOME.

Started by `up --detach`, which has checked everything and written the effective settings, and passes on its lock.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arborcast.core.errors import ArborcastError
from arborcast.engine.embedded import commands, engine
from arborcast.engine.embedded.commands import UpOptions
from arborcast.engine.embedded.home import Home
from arborcast.engine.settings.loading import load_settings
from arborcast.engine.terminal import print_error


def main(arguments: list[str]) -> int:
    lock, home = int(arguments[0]), Home(Path(arguments[1]))
    os.set_inheritable(lock, False)
    home.sign_lock(lock)
    try:
        settings = load_settings(home.settings_file, environ={})
        # Standard error is the log, which has every line already.
        commands.supervise(settings, engine.find_tools(), home, UpOptions(report=lambda _line: None))
    except ArborcastError as error:
        print_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
