"""The topic tree and its directory, kept in step: what to do on either side is decided here, in a thread; what
cannot be done is listed in a file."""

from __future__ import annotations
