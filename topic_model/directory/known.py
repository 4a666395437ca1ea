"""What the tree and its directory last agreed on, kept over restarts in a small file of the engine's own.

Without it nobody could tell, after a restart, whether a topic that only one side has was added there or removed from
the other. It is no truth but a memory: when it is lost, both sides' topics are kept.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from topic_model.records import TopicRecord
from topic_model.topics import TopicPath

_log = logging.getLogger(__name__)

_VERSION = 1


class _State(msgspec.Struct, frozen=True):
    v: int
    directory: str
    topics: tuple[TopicRecord, ...]


def load_known(path: Path, directory: str) -> dict[TopicPath, TopicRecord]:
    """What was saved for this directory; empty when nothing was, or it was for another one, or cannot be read."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("directory.state-lost %s: %s; topics that only one side has are kept on both", path, error)
        return {}
    if state.v != _VERSION or state.directory != directory:
        return {}
    return {record.path: record for record in state.topics}


def save_known(path: Path, directory: str, topics: Iterable[TopicRecord]) -> None:
    """Replace the file in one step. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    # No fsync: after a power cut the older memory does, and this is written often.
    temporary.write_bytes(msgspec.json.encode(_State(_VERSION, directory, tuple(topics))))
    os.replace(temporary, path)
