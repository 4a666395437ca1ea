"""Commands of ours, run beside the console: what they load (tables, logs of any size) is gone when they end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from arborcast.core.errors import ArborcastError
from arborcast.engine.processes.processes import dying_with_us

# Each takes a core for a second or more; others wait for their turn.
_AT_A_TIME = 2

_PATIENCE_S = 120.0

_MOST_BYTES = 64 * 1024 * 1024

_NO_OPTIONS: Mapping[str, str | bool] = MappingProxyType({})

_ENTRY = "from arborcast.cli import main; main()"


# With so many that are at work or wait for their turn, no further one begins.
_MOST_AT_WORK = 32

# What answers are remembered for a while; the oldest go first.
_REMEMBERED = 100

# Of what a core can do, for a page that asks again and again.
_SHARE = 0.1


class CommandFailed(ArborcastError):
    """A command said no; the message is what it said."""


class CommandAnswer(NamedTuple):
    """What a command has said: its JSON, or why it could not; when that was, and how long it took."""

    value: Any
    wrong: str
    at: float
    took_s: float

    @property
    def rest_s(self) -> float:
        """How long to wait before it is asked again, by a page that stays open."""
        return self.took_s / _SHARE


class Commands:
    """Runs `arborcast COMMAND --json` for this engine."""

    def __init__(self, home: Path, config: Path | None) -> None:
        self._common = ["--json", "--home", str(home), *(["--config", str(config)] if config else [])]
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._lately: dict[object, asyncio.Task[CommandAnswer]] = {}
        self._at_work = 0

    async def lately(
        self,
        *words: str,
        given: tuple[str, ...] = (),
        options: Mapping[str, str | bool] = _NO_OPTIONS,
        age_s: float,
    ) -> CommandAnswer:
        """What the command says, or has said no longer ago than this. However many pages show the same, it runs once,
        and to its end also when they have left."""
        key = (words, given, tuple(sorted(options.items())))
        known = self._lately.get(key)
        if known is None or known.cancelled() or (known.done() and not 0 <= time.time() - known.result().at <= age_s):
            known = asyncio.ensure_future(self._said(*words, given=given, options=options))
            self._lately.pop(key, None)
            self._lately[key] = known
            for old in [each for each, task in self._lately.items() if task.done()][:-_REMEMBERED]:
                del self._lately[old]
        return await asyncio.shield(known)

    def forget(self) -> None:
        """Something was changed: whoever asks from now on is not told what was before."""
        self._lately.clear()

    async def _said(self, *words: str, given: tuple[str, ...], options: Mapping[str, str | bool]) -> CommandAnswer:
        begun = time.monotonic()
        value, wrong = None, ""
        self._at_work += 1
        try:
            if self._at_work > _MOST_AT_WORK:
                raise CommandFailed(f"{_MOST_AT_WORK} other questions wait for an answer: ask again in a moment")
            value = await self.ask(*words, given=given, options=options)
        except ArborcastError as error:
            wrong = str(error)
        finally:
            self._at_work -= 1
        return CommandAnswer(value, wrong, time.time(), time.monotonic() - begun)

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
