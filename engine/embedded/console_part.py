"""The web console as a part of the embedded engine."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from arborcast.core.security.ip_addresses import host_to_reach, in_url, is_loopback
from arborcast.engine.embedded import questions
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.parts import PartSpec
from arborcast.engine.embedded.questions import Question
from arborcast.engine.processes import processes
from arborcast.engine.settings.loading import Settings
from arborcast.engine.settings.stack import ConsoleSettings


def with_port(settings: Settings, *, any_port: bool) -> ConsoleSettings:
    """The console's settings with its port. Raises PortInUse only for a configured port; otherwise the console must not
    prevent a start."""
    console = settings.console
    if not console.port:
        return console
    if settings.origins.get("console.port", "default") != "default":
        zero = "does without the console"
        processes.require_free(console.port, "the console", "--console-port", console.host, zero)
    elif any_port or not processes.is_free(console.port, console.host):
        return dataclasses.replace(console, port=processes.free_port())
    return console


def address(settings: Settings) -> dict[str, str]:
    """Its address; empty without a console."""
    console = settings.console
    if not console.port:
        return {}
    host = in_url(host_to_reach(console.host))
    return {"console": f"http{'s' * _tls(settings)}://{host}:{console.port}"}


def question(settings: Settings) -> Question:
    """Its health check."""
    return questions.gateway(host_to_reach(settings.console.host), settings.console.port, tls=_tls(settings))


def spec(settings: Settings, home: Home, environ: Mapping[str, str]) -> PartSpec:
    """Its part of the engine."""
    host, port, tls = host_to_reach(settings.console.host), settings.console.port, _tls(settings)
    return PartSpec(
        "console",
        [sys.executable, "-m", "arborcast.console", "--config", str(home.settings_file)],
        environ,
        home.run,
        home.log("console"),
        is_ready=lambda: questions.answers_page(host, port, "/health/live", tls=tls),
        after=("gateway",),  # after the parts that deliver
        stop_share=0.3,
        lives=question(settings),
        hang_timeout_s=settings.stack.hang_timeout_s,
    )


def _tls(settings: Settings) -> bool:
    """Whether the console uses TLS: not on loopback, where browsers would not trust the certificate."""
    return bool(settings.tls.certificate_file) and not is_loopback(settings.console.host)
