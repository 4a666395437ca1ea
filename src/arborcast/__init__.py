"""Arborcast, a WS-Notification broker and dispatch engine. In a clone its packages are links to the top folders.

This file comes with the distribution arborcast-client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arborcast.analysis import Tables, spark

    tables: Tables

__all__ = ["spark", "tables"]


def __getattr__(name: str) -> object:
    """`tables` and `spark` of `arborcast.analysis`, imported at their first use: a gateway needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import arborcast.analysis as analysis
    except ModuleNotFoundError as error:
        if error.name != "arborcast.analysis":
            raise
        raise ImportError(
            f"arborcast.{name} needs the distribution arborcast; only arborcast-client is installed"
        ) from error
    return getattr(analysis, name)
