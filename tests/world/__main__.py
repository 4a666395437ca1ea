from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets of strings is part of a history.
    again = [sys.executable, "-m", "tests.world", *sys.argv[1:]]
    os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606  # this very program

from tests.world.run import main

sys.exit(main())
