"""Named views: a filter of a list with its sorting, which is an address, under a name.

They are of a user, so that they are there in each browser, and without script. Without sign-in all visitors are users
of this machine, with the same rights: they share theirs, which a new session would lose otherwise.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import msgspec

from arborcast.console.personal_files import PersonalFiles
from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.reasons import reason_of

_log = logging.getLogger(__name__)

_VERSION = 1

_VIEWS = 50
_NAME_CHARACTERS = 60
_ADDRESS_CHARACTERS = 1_000

# Users with views. The file of one has up to 100 KB.
_PEOPLE = 1_000

# Not of the view, but of its moment.
_NOT_SAVED = {"page", "after", "format"}


class ViewRefused(ArborcastError):
    """A view is not saved: there are too many, or it is too long."""


class SavedView(msgspec.Struct, frozen=True):
    """`url` is the address of a list on this console, with its filter."""

    name: str
    url: str

    @property
    def path(self) -> str:
        return self.url.partition("?")[0]


class _Saved(msgspec.Struct, frozen=True):
    v: int
    views: list[SavedView]


def view_url(path: str, query: str) -> str:
    """The address of the view that a page shows."""
    pairs = [(name, value) for name, value in parse_qsl(query) if name not in _NOT_SAVED]
    return f"{path}?{urlencode(pairs)}" if pairs else path


class SavedViews:
    """Those of all users. `save` and `remove` write a file and are thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._files = PersonalFiles(folder, _PEOPLE)
        self._writing = threading.Lock()

    def of(self, person: str) -> list[SavedView]:
        """The views of a person by name; none if they cannot be read."""
        try:
            return self._read(person)
        except OSError as error:
            _log.warning("saved views cannot be read: %s", reason_of(error))
            return []

    def save(self, person: str, name: str, url: str) -> SavedView:
        """Save a view; one of this name and list is replaced. Raises ViewRefused, InfrastructureError."""
        view = SavedView(" ".join(name.split()), view_url(*url.partition("?")[::2]))
        if not view.name or len(view.name) > _NAME_CHARACTERS:
            raise ViewRefused(f"Enter a name of at most {_NAME_CHARACTERS} characters.")
        if len(view.url) > _ADDRESS_CHARACTERS:
            raise ViewRefused(
                f"The filter is too long for a view: {len(view.url)} of {_ADDRESS_CHARACTERS} characters."
            )
        self._write(person, view.name, view.path, [view])
        return view

    def remove(self, person: str, name: str, path: str) -> None:
        """Delete a view; one that does not exist was deleted already. Raises InfrastructureError."""
        self._write(person, name, path, [])

    def _write(self, person: str, name: str, path: str, new: list[SavedView]) -> None:
        with self._writing:
            try:
                others = [each for each in self._read(person) if (each.name, each.path) != (name, path)]
                if len(others) + len(new) > _VIEWS:
                    raise ViewRefused(f"{_VIEWS} views are saved: delete one first.")
                views = sorted([*others, *new], key=lambda each: (each.name.casefold(), each.path))
                self._files.write(person, msgspec.json.encode(_Saved(_VERSION, views)) if views else b"")
            except OSError as error:
                raise InfrastructureError(f"the views cannot be stored: {reason_of(error)}") from error

    def _read(self, person: str) -> list[SavedView]:
        try:
            saved = msgspec.json.decode(self._files.read(person), type=_Saved)
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, ValueError) as error:
            _log.warning("the file of saved views is damaged, there are none: %s", error)
            return []
        return saved.views if saved.v == _VERSION else []
