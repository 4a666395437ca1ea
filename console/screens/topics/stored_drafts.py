"""Collected changes in memory and in files, so that they survive a restart of the console.

Nothing is saved to the log by itself: each change has its base, which is compared with the current state when it is
shown or saved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from arborcast.console.personal_files import PersonalFiles
from arborcast.console.screens.topics.draft import MOST_IMPORTED, Draft, Edit

_log = logging.getLogger(__name__)

_VERSION = 1

# Number of people with drafts; the oldest are dropped first, empty ones before all others.
_PEOPLE = 200

# A larger import can be repeated from its document.
_MOST_TOPICS = 20_000
_MOST_BYTES = 16 * 1024 * 1024

# Drafts untouched for this time are deleted.
_LASTS_S = 30 * 24 * 3_600


class _StoredDraft(msgspec.Struct, frozen=True):
    v: int
    at_ms: int
    edits: list[Edit]


class Drafts:
    """The drafts of all operators. Used on the event loop, except `write`."""

    def __init__(self, folder: Path, most: int = _PEOPLE, clock: Callable[[], float] = time.time) -> None:
        self._drafts: OrderedDict[str, Draft] = OrderedDict()
        self._files = PersonalFiles(folder, most, _LASTS_S, clock)
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
        # Imports of sessions that ended without saving would stay.
        large = [each for each, known in self._drafts.items() if known.imported and each != person]
        while large and sum(known.imported for known in self._drafts.values()) > MOST_IMPORTED:
            del self._drafts[large.pop(0)]
        return draft

    def write(self, person: str, draft: Draft) -> None:
        """Write the current draft of a person. On a failure it stays in memory only, which the draft reports.
        Thread-safe."""
        with self._writing:
            edits = list(draft.edits)
            try:
                draft.kept = not edits
                data = b""
                if draft.imported <= _MOST_TOPICS:
                    data = msgspec.json.encode(_StoredDraft(_VERSION, int(self._clock() * 1000), edits))
                if not edits or len(data) > _MOST_BYTES:
                    data = b""
                self._files.write(person, data)
                draft.kept = draft.kept or bool(data)
            except OSError as error:
                _log.warning("the draft of topic changes cannot be stored, a restart loses it: %s", error)

    def _read(self, person: str) -> Draft:
        try:
            kept = msgspec.json.decode(self._files.read(person), type=_StoredDraft)
        except FileNotFoundError:
            return Draft()
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            _log.warning("the stored draft of topic changes cannot be read, the draft is empty: %s", error)
            return Draft()
        if kept.v != _VERSION or self._clock() - kept.at_ms / 1000 > _LASTS_S:
            return Draft()
        return Draft(kept.edits, found_ms=kept.at_ms)
