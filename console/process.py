"""The console's process: its parts put together, run, and stopped in order."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import socket
from pathlib import Path

from arborcast.console.app import make_app
from arborcast.console.console import Console as WebConsole  # the other one is the terminal's
from arborcast.console.console import PageState
from arborcast.console.guard import MOST_IMPORTED, Sessions
from arborcast.console.signing import signing_for
from arborcast.core.security.keyring import KeyFile, KeyRing, Keys
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.http.listening import on_signals
from arborcast.ingest.http.serving import make_small_server, proxies
from arborcast.ingest.http.tls import ServerTls
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.changes import ControlChanges
from arborcast.ingest.state.log_view import ControlLogView
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.control_view import ControlView

logger = logging.getLogger("arborcast.console")

# Timeout of an import over a slow line.
_LIMITS = GatewaySettings(
    max_connections=256, max_body_bytes=MOST_IMPORTED, request_timeout_s=120, stop_timeout_s=2, keep_alive_s=5
)


class ConsoleProcess:
    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        """Raises ConfigError for settings with which it would be open to strangers."""
        self._listener = listener
        port = listener.getsockname()[1]
        signing = signing_for(settings)
        self._failed = False
        state = PageState()
        control = ControlView(state)
        self._view = ControlLogView(settings.kafka, control, self._fail)
        self._changes = ControlChanges(settings.kafka, ControlLog(settings.kafka), self._view)
        # Clear text only on loopback, or if the gateway accepts passwords so, too.
        secure = bool(signing and settings.tls.certificate_file)
        # Cookies are not specific to a port, and there may be several consoles on one machine.
        sessions = Sessions(_keys(settings), f"arborcast-{port}", secure=secure)
        self._console = WebConsole(
            settings,
            control,
            self._changes,
            sessions,
            trouble=self._trouble,
            state=state,
            ready=lambda: self._view.caught_up,
        )
        # Sign-in is by password, without client certificates.
        self._tls = ServerTls(dataclasses.replace(settings.tls, client_ca_file="")) if secure else None
        trusted = proxies(settings.gateway)
        self._server = make_small_server(make_app(self._console, signing), _LIMITS, self._tls, trusted)

    async def run(self) -> int:
        """Serve until stopped; returns the exit status."""
        on_signals(self._stop)
        self._view.start()
        host, port = self._listener.getsockname()[:2]
        logger.info("listening on %s port %d", host, port)
        tasks = [asyncio.create_task(self._freeze_state(), name="freeze")]
        if self._tls is not None:
            tasks.append(asyncio.create_task(self._tls.follow_files(), name="tls"))
        await self._server.serve(sockets=[self._listener])
        for task in tasks:
            task.cancel()
        await self._view.stop()
        self._changes.close()
        return 1 if self._failed else 0

    async def _freeze_state(self) -> None:
        """Exempt the state of the control log from the garbage collections that end questions."""
        await self._view.until_caught_up()
        gc.collect()
        gc.freeze()

    def _stop(self) -> None:
        self._console.live.stop()
        self._server.stop()

    def _fail(self, _error: Exception) -> None:
        # The view has logged why. A new process reads the log from its beginning.
        self._failed = True
        self._stop()

    def _trouble(self) -> str:
        if self._view.caught_up and self._view.obstacle:
            return "Kafka is not responding. Data may be stale and changes can't be saved; your draft is kept."
        return ""


def _keys(settings: Settings) -> Keys:
    """The keys of sessions: the engine's, so that sessions survive a restart."""
    path = settings.secrets.key_file
    if path and Path(path).exists():
        return KeyFile(Path(path))
    import secrets

    return KeyRing({"console": secrets.token_bytes(32)})
