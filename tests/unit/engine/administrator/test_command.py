"""The process of an administrator."""

from __future__ import annotations

import argparse
import asyncio
import resource
from pathlib import Path

import pytest
import uvloop

from arborcast.engine.administrator import __main__ as command


def test_a_flood_of_connections_fills_no_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run(_: argparse.Namespace) -> int:
        # Without a free file, asyncio's own loop logs a traceback for each connection that waits.
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
        return 3

    monkeypatch.setattr(command, "_run", run)
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 1_024), most))
    try:
        assert command.main(["--key-file", str(tmp_path / "missing")]) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
