"""The client of the commands: somebody waits at a terminal, and hears soon that nobody answers."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from core.errors import ConfigError
from core.reasons import reason_of
from ingest.client import BrokerUnreachable, Client, Credentials, FaultReceived, HttpAnswer, Retries
from ingest.client.calls import Call, ResultT
from jobs.terminal import noting_silence

# To connect, and to answer: the broker gives up on its storage after ten seconds, and says so.
TIMEOUT_S = (1.0, 15.0)

# So long somebody looks at a terminal that says nothing.
QUIET_S = 1.0

_ADVICE = "`arborcast status` says whether one is up here, `arborcast up` starts it; else check the address"

# Not an option: everybody on the machine can read those. And curl, git and others know the file.
_SAY_WHO = "Arborcast takes a line of ~/.netrc (mode 600): machine {} login NAME password PASSWORD"


class ShellClient(Client):
    """Repeats only what the broker puts off. What nobody answers is said at once, with what to do about it."""

    def __init__(self, url: str) -> None:
        credentials = _credentials(urlsplit(url).hostname)
        super().__init__(url, timeout_s=TIMEOUT_S, retries=Retries(unanswered=False), credentials=credentials)

    def _exchange(self, call: Call[ResultT]) -> tuple[ResultT, HttpAnswer]:
        parts = urlsplit(call.to.address)
        where = f"{parts.scheme}://{parts.netloc}"
        waiting = f"{where} has not answered yet; waiting for up to {TIMEOUT_S[1]:g} s (arborcast status: how it is)"
        try:
            with noting_silence(waiting, QUIET_S):
                return super()._exchange(call)
        except FaultReceived as error:
            if error.status != 401:
                raise
            raise FaultReceived(f"{error.reason}. {_SAY_WHO.format(parts.hostname)}", error.fault, 401) from error
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"no engine at {where}: {error.reason}. {_ADVICE}", error.reason) from error


def _credentials(host: str | None) -> Credentials | None:
    """What this user's netrc file has for the host. Raises ConfigError for a file that cannot be used."""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    if host is None or not file.exists():
        return None
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} holds passwords and others may read it: chmod 600 it")
        # Only what is meant for this host: `default` is for anybody who asks.
        known = netrc.netrc(str(file)).hosts.get(host)
    except netrc.NetrcParseError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.msg}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {reason_of(error)}") from error
    return None if known is None else Credentials(user=known[0], password=known[2] or "")
