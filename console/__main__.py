"""The console as a process:

    python -m arborcast.console --config arborcast.toml

`arborcast up` runs it where console.port is not 0. It listens at once and waits for Kafka as long as it takes. SIGTERM
and SIGINT end it. The exit status is 0 after an orderly stop, 1 when the log cannot be followed any further, 2 for
wrong settings or a busy port.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

from arborcast.console.process import ConsoleProcess
from arborcast.core.errors import ConfigError
from arborcast.core.telemetry import log_format
from arborcast.engine.settings.loading import level_of, load_settings
from arborcast.engine.terminal import print_error
from arborcast.ingest.http.listening import listen_on


class WithoutPandas(MetaPathFinder):
    """Refuses pandas, which no page needs: Arrow would import it with its first data set, for 20 MiB of memory."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the console does not load pandas", name=name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m arborcast.console", description="Arborcast's web console.")
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--home", type=Path, help="data directory")
    options = parser.parse_args(arguments)
    # Read when Arrow is loaded, with the first question about a table: its own pool would keep 25 MiB after it.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    sys.meta_path.insert(0, WithoutPandas())
    log_format.configure("human", "console")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        settings = load_settings(options.config, options.home)
        log_format.configure(settings.logging.format, "console", level_of(settings))
        console = settings.console
        listener = listen_on(console.host, console.port, host_by="console.host", port_by="console.port")
        runner = asyncio.Runner()
        return runner.run(ConsoleProcess(settings, listener).run())
    except ConfigError as error:
        print_error(f"arborcast console: {error}")
        return 2


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    # Everything is stopped. Python's own end would wait for threads that may be waiting for a broker that is away.
    os._exit(status)
