"""Collected changes in memory and in files, so that they survive a restart of the console.

Nothing is saved to the log by itself: each change has its base, which is compared with the current state when it is
shown or saved.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from arborcast.console.screens.topics.draft import BringEdit, Draft, Edit
from arborcast.core.files import write_atomically

_log = logging.getLogger(__name__)

_VERSION = 1

# Number of people with drafts; the oldest are dropped first, empty ones before all others.
_PEOPLE = 200

# A larger import can be repeated from its document.
_MOST_TOPICS = 20_000
_MOST_BYTES = 16 * 1024 * 1024

# Drafts untouched for this time are deleted.
_LASTS_S = 30 * 24 * 3_600


class _Kept(msgspec.Struct, frozen=True):
    v: int
    at_ms: int
    edits: list[Edit]


class Drafts:
    """Those of everybody. Used on the event loop, but for `write`."""

    def __init__(self, folder: Path, most: int = _PEOPLE, clock: Callable[[], float] = time.time) -> None:
        self._drafts: OrderedDict[str, Draft] = OrderedDict()
        self._folder = folder
        self._most = most
        self._clock = clock
        self._writing = threading.Lock()

    def of(self, person: str) -> Draft:
        """The draft of a person: the stored one, or an empty one."""
        draft = self._drafts.pop(person, None) or self._read(person)
        self._drafts[person] = draft
        while len(self._drafts) > self._most:
            empty = (each for each, known in self._drafts.items() if not known.edits and each != person)
            del self._drafts[next(empty, next(iter(self._drafts)))]
        return draft

    def write(self, person: str, draft: Draft) -> None:
        """Write the current draft of a person. On a failure it stays in memory only, which the draft reports.
        Thread-safe."""
        file = self._file(person)
        with self._writing:
            edits = list(draft.edits)
            try:
                draft.kept = not edits
                data = b""
                if sum(len(each.topics) for each in edits if isinstance(each, BringEdit)) <= _MOST_TOPICS:
                    data = msgspec.json.encode(_Kept(_VERSION, int(self._clock() * 1000), edits))
                if not edits or not data or len(data) > _MOST_BYTES:
                    file.unlink(missing_ok=True)
                    return
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(file, data, mode=0o600)
                draft.kept = True
                self._forget_old()
            except OSError as error:
                _log.warning("the draft of topic changes cannot be stored, a restart loses it: %s", error)

    def _read(self, person: str) -> Draft:
        try:
            kept = msgspec.json.decode(self._file(person).read_bytes(), type=_Kept)
        except FileNotFoundError:
            return Draft()
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            _log.warning("the stored draft of topic changes cannot be read, the draft is empty: %s", error)
            return Draft()
        if kept.v != _VERSION or self._clock() - kept.at_ms / 1000 > _LASTS_S:
            return Draft()
        return Draft(kept.edits, found_ms=kept.at_ms)

    def _file(self, person: str) -> Path:
        # Names and sessions are not for file names: the one may be any text, the other is a secret.
        return self._folder / f"{hashlib.sha256(person.encode()).hexdigest()}.json"

    def _forget_old(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for number, file in enumerate(files):
            if number >= self._most or self._clock() - file.stat().st_mtime > _LASTS_S:
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
