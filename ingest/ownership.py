"""Asking a consumer whether it wants to be one, before it is pushed to: else a stranger could aim us at others.

The consumer's address gets a POST without a body, whose header Arborcast-Challenge holds a word that cannot be guessed;
it agrees by a 200 whose body is that word and nothing else. A service that merely repeats what it is sent does not.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ingest import outgoing
from ingest.errors import ConsumerRefused, NoAnswer, NotCalled
from ingest.outgoing import DIRECT, Route
from topic_model.errors import InfrastructureError
from topic_model.outbound import AddressPolicy

HEADER = "Arborcast-Challenge"

_TOTAL_S = 10
_AT_ONCE = 16
# One who names consumers that do not answer must not keep all others from subscribing.
_OF_ONE_OWNER = 4
_WORD = re.compile(r"[A-Za-z0-9_-]{20,100}")


class OwnershipProof:
    """Asks consumers. On the event loop's thread, but for the requests."""

    def __init__(self, policy: AddressPolicy, route: Route = DIRECT) -> None:
        self._policy = policy
        self._route = route
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="challenge")
        self._under_way = 0
        self._of: Counter[str] = Counter()

    async def ask(self, url: str, owner: str = "") -> None:
        """Returns when the consumer agrees. Raises ConsumerRefused when it does not, InfrastructureError when too many
        are being asked, in all or of this owner (empty where nobody has to say who it is)."""
        if self._under_way >= _AT_ONCE or (owner and self._of[owner] >= _OF_ONE_OWNER):
            raise InfrastructureError("too many consumers are being asked whether they agree", retry_after=1.0)
        self._under_way += 1
        self._of[owner] += 1
        word = secrets.token_urlsafe(32)
        asked = asyncio.get_running_loop().run_in_executor(self._threads, partial(self._post, url, word))
        asked.add_done_callback(partial(self._done, owner))
        # A client that hangs up does not free the thread that asks for it.
        status, answer = await asyncio.shield(asked)
        if status != 200 or not hmac.compare_digest(answer.strip(), word.encode()):
            raise ConsumerRefused(
                f"the consumer at {url[:200]!r} did not agree to be one: a POST with the header {HEADER} must be "
                f"answered with 200 and that header's value as the whole body; it answered {status}",
                "ownership",
            )

    def _post(self, url: str, word: str) -> tuple[int, bytes]:
        headers = [f"{HEADER}: {word}", "Content-Type: text/plain"]
        try:
            return outgoing.post(url, headers, b"", self._policy, self._route, total_s=_TOTAL_S, max_answer=1_024)
        except NotCalled as error:
            raise ConsumerRefused(
                f"the ConsumerReference {url[:200]!r} may not be reached (rule {error.rule})", error.rule
            ) from error
        except NoAnswer as error:
            raise ConsumerRefused(
                f"the consumer at {url[:200]!r} gave no answer when it was asked whether it agrees to be one",
                "ownership",
            ) from error

    def _done(self, owner: str, asked: asyncio.Future[tuple[int, bytes]]) -> None:
        self._under_way -= 1
        self._of[owner] -= 1
        if not self._of[owner]:
            del self._of[owner]
        if not asked.cancelled():
            asked.exception()  # or asyncio reports the one that nobody waited for


def agreement(challenge: str) -> bytes | None:
    """What a consumer answers to the value of the header, None when that is no challenge of ours."""
    return challenge.encode() if _WORD.fullmatch(challenge) else None
