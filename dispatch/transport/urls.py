"""Judging the URLs of pushes by their text: once per URL, not once per push."""

from __future__ import annotations

from topic_model.outbound import AddressPolicy, Refusal
from topic_model.recent import Recent

# Bytes of URLs, twice: some ten thousand of ordinary length.
_REMEMBERED = 4 * 1024 * 1024


class UrlJudge:
    """Remembers what the policy said of URLs; belongs to one transport."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._known: Recent[str, tuple[Refusal | None]] = Recent(_REMEMBERED)

    def refusal(self, url: str) -> Refusal | None:
        """Why this URL is not pushed to; None when its text is in order."""
        known = self._known.get(url)
        if known is None:
            known = (self._policy.check_url(url),)
            self._known.put(url, known, len(url))
        return known[0]
