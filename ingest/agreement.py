"""How a consumer says that it agrees to be pushed to: both ends of the challenge. See `ingest.consumers`."""

from __future__ import annotations

import re

HEADER = "Arborcast-Challenge"

_WORD = re.compile(r"[A-Za-z0-9_-]{20,100}")


def agreement(challenge: str) -> bytes | None:
    """What a consumer answers to the value of the header, None when that is no challenge of ours."""
    return challenge.encode() if _WORD.fullmatch(challenge) else None
