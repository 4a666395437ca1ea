"""The status of an engine, without the modules that start one, so that `arborcast status` is fast."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.engine.embedded import state
from arborcast.engine.embedded.home import Home, free_mb, shortage
from arborcast.engine.embedded.state import BEAT_S, PartState, PartStatus
from arborcast.engine.processes import processes
from arborcast.engine.settings.loading import load_settings
from arborcast.engine.settings.stack import StackSettings

SUPERVISOR = "supervisor"

# A supervisor without an update for this time is stopped, or hangs. Killing a part takes some seconds, and preparing a
# new broker's folder a JVM's start.
_SILENT_S = 60.0


def status(path: Path) -> dict[str, Any]:
    """The status of the engine in a data directory, as JSON values. `disk` is the problem with free space, empty
    without one. `silent_s` of a part is the time without an answer, of the supervisor without an update; 0 if all is
    well. Times are ISO 8601 in UTC, memory is bytes in use (`memory_kind`), `cpu_seconds` counts since the part's last
    start."""
    home = Home(path)
    running = home.owner() is not None
    silent_s = supervisor_silent_s(home) if running else 0.0
    known = state.read(home.state_file)
    parts = {name: _part_document(home, name, part, running) for name, part in (known.parts if known else {}).items()}
    document: dict[str, Any] = {
        "home": str(home.path),
        "running": running,
        "ready": bool(running and known and known.ready and not silent_s)
        and all(part["state"] == PartState.READY for part in parts.values()),
        "pid": known.supervisor.pid if running and known else None,
        "since": _iso(known.since) if running and known else None,
        "addresses": known.addresses if running and known else {},
        "problem": known.problem if known else "",
        "disk": _shortage(home),
        "parts": parts,
        "memory_kind": processes.memory_kind(),
    }
    if running and known:
        mine = [process for process in [known.supervisor.process()] if process]
        # Its children are the parts; ended ones do not count as its own load.
        used = processes.usage(mine, ended_children=False)
        document[SUPERVISOR] = {"silent_s": round(silent_s, 1), **_usage_document(used)}
    everything = [*parts.values(), *([document[SUPERVISOR]] if SUPERVISOR in document else [])]
    document["memory_bytes"] = sum(one["memory_bytes"] for one in everything)
    document["cpu_seconds"] = round(sum(one["cpu_seconds"] for one in everything), 2)
    return document


NO_JOB = (
    "no streaming job runs: notifications are stored, and delivered when one runs. The engine was started with "
    '--no-job (stack.job = "external"): start the job with spark-submit, or the engine without --no-job'
)


def job_state(path: Path, patience_s: float = 0.0) -> str:
    """The streaming job of the engine in this data directory: embedded (one of the parts); running, none or unknown if
    it is external; empty without an engine. `patience_s` is the wait for a heartbeat if the clock of the job's host
    differs."""
    home = Home(path)
    if home.owner() is None or not (home.settings_file.exists() and state.addresses(path)):
        return ""
    try:
        settings = load_settings(home.settings_file, environ={})
        if settings.stack.job == "embedded":
            return "embedded"
        from arborcast.dispatch.job.lease import is_held

        return "running" if is_held(settings.kafka, patience_s) else "none"
    except ArborcastError:
        return "unknown"


def supervisor_silent_s(home: Home) -> float:
    """Seconds since the supervisor's last update, 0 for a short time. A long one is checked again: the machine may have
    been suspended."""
    until = time.monotonic() + 2 * BEAT_S
    while (age_s := state.age_s(home.state_file)) > _SILENT_S:
        if time.monotonic() >= until:
            return age_s
        time.sleep(0.1)
    return 0.0


def _part_document(home: Home, name: str, part: PartStatus, running: bool) -> dict[str, Any]:
    shown = part.state if running or part.state is PartState.FAILED else PartState.STOPPED
    process = part.process if running else None
    members = processes.session(process.pid) if process and process.process() else []
    if shown is PartState.READY and not members:
        # Its end was not noticed yet, or could not be written: the disk is full.
        shown = PartState.RESTARTING
    return {
        "state": str(shown),
        "pid": process.pid if members and process else None,
        "since": _iso(part.since),
        "restarts": part.restarts,
        "last_exit": part.last_exit or None,
        "hangs": part.hangs,
        "silent_s": round(max(time.time() - part.silent_since, 0.1), 1) if process and part.silent_since else 0.0,
        "log": str(home.log(name)),
        **_usage_document(processes.usage(members)),
    }


def _usage_document(usage: processes.Usage) -> dict[str, Any]:
    return {**asdict(usage), "cpu_seconds": round(usage.cpu_seconds, 2)}


def stack_settings(home: Home) -> StackSettings:
    """The settings of the engine's start, or the defaults if they cannot be read."""
    try:
        return load_settings(home.settings_file, environ={}).stack
    except ConfigError:
        return StackSettings()


def _shortage(home: Home) -> str:
    try:
        return shortage(home.path, free_mb(home.path), stack_settings(home).min_free_disk_mb)
    except OSError:
        return ""


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
