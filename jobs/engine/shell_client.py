"""The client of the commands: somebody waits at a terminal, and hears soon that nobody answers."""

from __future__ import annotations

from urllib.parse import urlsplit

from ingest.client import BrokerUnreachable, Client, Retries
from ingest.client.calls import Call, ResultT
from jobs.terminal import noting_silence

# To connect, and to answer: the broker gives up on its storage after ten seconds, and says so.
TIMEOUT_S = (1.0, 15.0)

# So long somebody looks at a terminal that says nothing.
QUIET_S = 1.0

_ADVICE = "`arborcast status` says whether one is up here, `arborcast up` starts it; else check the address"


class ShellClient(Client):
    """Repeats only what the broker puts off. What nobody answers is said at once, with what to do about it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout_s=TIMEOUT_S, retries=Retries(unanswered=False))

    def _perform(self, call: Call[ResultT]) -> ResultT:
        parts = urlsplit(call.to.address)
        where = f"{parts.scheme}://{parts.netloc}"
        waiting = f"{where} has not answered yet; waiting for up to {TIMEOUT_S[1]:g} s (arborcast status: how it is)"
        try:
            with noting_silence(waiting, QUIET_S):
                return super()._perform(call)
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"no engine at {where}: {error.reason}. {_ADVICE}", error.reason) from error
