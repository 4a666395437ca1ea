"""Where an engine of this machine shows its metrics."""

from __future__ import annotations

from pathlib import Path

from jobs.stack import state
from jobs.stack.errors import StackError
from jobs.stack.home import Home


def metrics_address(path: Path) -> str:
    """The address, from the state in its data directory. Raises StackError when no engine runs there."""
    home = Home(path)
    known = state.read(home.state_file)
    if home.owner() is None or known is None or "metrics" not in known.addresses:
        raise StackError(
            f"no engine runs in {path}; start one with: arborcast up, or name a remote one with: --url http://host:port"
        )
    return known.addresses["metrics"]
