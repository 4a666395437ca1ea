"""Commands of ours, run beside the console: what they load (tables, logs of any size) is gone when they end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from core.errors import ArborcastError
from jobs.processes.processes import dying_with_us

# Each takes a core for a second or more; others wait for their turn.
_AT_A_TIME = 2

_PATIENCE_S = 120.0

_MOST_BYTES = 64 * 1024 * 1024

_NO_OPTIONS: Mapping[str, str | bool] = MappingProxyType({})

_ENTRY = "from jobs.cli import main; main()"


class CommandFailed(ArborcastError):
    """A command said no; the message is what it said."""


class Commands:
    """Runs `arborcast COMMAND --json` for this engine."""

    def __init__(self, home: Path, config: Path | None) -> None:
        self._common = ["--json", "--home", str(home), *(["--config", str(config)] if config else [])]
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    async def ask(
        self, *words: str, given: tuple[str, ...] = (), options: Mapping[str, str | bool] = _NO_OPTIONS
    ) -> Any:
        """The JSON that a command prints; options that are empty are left out. `given` is what stands without an
        option's name. Raises CommandFailed."""
        arguments = [*words, *self._common, *options_of(options), "--", *given]
        command = dying_with_us([sys.executable, "-c", _ENTRY, *arguments])
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_MOST_BYTES,
            )
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    out, errors = await process.communicate()
            except TimeoutError:
                raise CommandFailed(
                    f"that took longer than {_PATIENCE_S:g} s: ask for less, or run it in a shell: "
                    f"arborcast {' '.join(words)}"
                ) from None
            finally:
                # Who asked may have left.
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        text = out.decode(errors="replace").lstrip()
        if text:
            # `show` prints one document for each letter: the first is what was asked for.
            value, _ = json.JSONDecoder().raw_decode(text)
            return value
        said = errors.decode(errors="replace").strip()
        raise CommandFailed(said.rpartition("error: ")[2] or f"the command ended with code {process.returncode}")


def options_of(options: Mapping[str, str | bool]) -> list[str]:
    """Options as a command takes them, each in one word: what somebody has typed cannot become another option. True is
    for an option without a value."""
    words = []
    for name, value in options.items():
        if value:
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}"))
    return words
