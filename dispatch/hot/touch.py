"""What a worker is asked to do only to keep it: nothing.

A module of its own, because a worker imports the module of every function that it is sent. When this one stood beside
the warm-up, each worker loaded delta-rs, Arrow and pandas with it: 70 MiB each, for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable


def touch(rows: Iterable[object]) -> None:
    """A partition function that does nothing. Spark ends its Python workers, all together, after a minute in which none
    was used; a task with this in time keeps them, their connections and what they have loaded."""
    for _ in rows:
        pass
