"""Judging the URLs of pushes by their text: once per URL, not once per push."""

from __future__ import annotations

from topic_model.outbound import AddressPolicy, Refusal

# So many URLs are remembered; then all are forgotten. A few hundred bytes each.
_MAX_URLS = 20_000


class UrlJudge:
    """Remembers what the policy said of URLs; belongs to one transport."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._known: dict[str, Refusal | None] = {}

    def refusal(self, url: str) -> Refusal | None:
        """Why this URL is not pushed to; None when its text is in order."""
        try:
            return self._known[url]
        except KeyError:
            if len(self._known) >= _MAX_URLS:
                self._known.clear()
            judged = self._known[url] = self._policy.check_url(url)
            return judged
