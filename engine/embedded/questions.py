"""Health checks of the parts, used by the supervisor and by doctor.

An open port is not enough, since the kernel accepts connections for a stopped process. A refusal is: a process that
refuses or closes a connection runs. Each check has a deadline in seconds and returns the reason of a failure, empty for
a healthy part.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from arborcast.core.backoff import Backoff
from arborcast.core.liveness import Silence
from arborcast.core.reasons import reason_of
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service, pool
from arborcast.engine.embedded import kafka_broker
from arborcast.engine.processes.processes import LOOPBACK

Question = Callable[[float], str]


# Interval of checks of the heartbeat's file, which is written every other second.
_POLL_S = 0.25

_MOST_HEALTH = 64 * 1024


def web(url: str) -> Question:
    """Queries the event loop of the gateway or the console; with several workers, that of one, which also checks their
    parent."""

    def check(deadline_s: float) -> str:
        status, body = fetch(f"{url}/health/live", deadline_s, most=_MOST_HEALTH, verify=False)
        return body.decode(errors="replace").strip() if status == 500 else ""

    return lambda deadline_s: _failure_of(check, deadline_s)


def kafka(port: int) -> Question:
    """Queries the list of brokers, which needs a network thread and a request thread."""

    def check(deadline_s: float) -> str:
        kafka_broker.listed(port, LOOPBACK, deadline_s)
        return ""

    return lambda deadline_s: _failure_of(check, deadline_s)


def job(file: Path) -> Question:
    """Waits for the next heartbeat: a new modification time of this file."""

    def modified_ns() -> int:
        try:
            return file.stat().st_mtime_ns
        except OSError:
            return 0

    def check(deadline_s: float) -> str:
        last, until = modified_ns(), time.monotonic() + deadline_s
        while modified_ns() == last:
            if time.monotonic() >= until:
                return f"no heartbeat within {deadline_s:g} s"
            time.sleep(_POLL_S)
        return ""

    return check


def fetch(url: str, timeout: float, *, most: int, verify: bool = True) -> tuple[int, bytes]:
    """Status and body of a page of at most `most` bytes. Raises OSError. `verify` is False for a part of this engine,
    whose certificate need not name this machine."""
    parts = urlsplit(url)
    connection = (
        http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=timeout, context=None if verify else _unverified()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    )
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        answer = connection.getresponse()
        body = answer.read(most + 1)
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {reason_of(error)}") from error
    finally:
        connection.close()
    if len(body) > most:
        raise OSError(f"{url} has more than {most} bytes")
    return answer.status, body


def answers_page(url: str, timeout: float = 0.5) -> bool:
    """Whether a server of this engine answers with this page. `timeout` in seconds."""
    try:
        return fetch(url, timeout, most=_MOST_HEALTH, verify=False)[0] == 200
    except OSError:
        return False


def _failure_of(check: Question, deadline_s: float) -> str:
    try:
        return check(deadline_s)
    except TimeoutError:
        return f"no answer within {deadline_s:g} s"
    except ConnectionRefusedError:
        return "no process listens"
    except OSError:
        return ""


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_KAFKA_PORT = "9092"

_CONNECT_S = 1.0

# A busy broker takes a moment.
_ANSWER_S = 5.0


def answers(kafka: KafkaSettings) -> bool:
    """Whether a process listens at the broker's address. The Kafka client would take half a minute to find out."""
    return not unreachable_reason(kafka, check=False)


def unreachable_reason(kafka: KafkaSettings, *, check: bool = True) -> str:
    """The reason why each of the configured brokers is unreachable; empty if one is reachable. Takes a second, and
    longer only for a server that accepts the connection without an answer."""
    servers = [each.strip() for each in kafka.bootstrap_servers.split(",") if each.strip()]
    # The request uses neither TLS nor SASL; without a login only the open port can be checked.
    check = check and kafka.security_protocol == "PLAINTEXT"
    # In parallel: each host that is down costs its timeout.
    with pool("reach", max(1, len(servers))) as threads:
        reasons = list(threads.map(lambda server: _why_unreachable(server, check=check), servers))
    return "" if "" in reasons else "; ".join(reasons) or "kafka.bootstrap_servers is empty"


def _why_unreachable(server: str, *, check: bool) -> str:
    host, port = _place(server)
    if not port.isdecimal():
        return f"{server} is not host:port"
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
        if check:
            kafka_broker.listed(int(port), host, _ANSWER_S)
    except (OSError, OverflowError, UnicodeError) as error:
        return f"{server}: {reason_of(error)}"
    return ""


def _place(server: str) -> tuple[str, str]:
    """Host and port, parsed as by the Kafka client: with a protocol in front, or without a port."""
    server = server.rpartition("://")[2]
    host, colon, port = server.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = server, _KAFKA_PORT
    return host.strip("[]"), port


# Failed checks in a row. All of them fit into the timeout of a part: each has a quarter of it, and the first begins a
# sixth of it after the last answer.
_CHECKS = 3

_DEADLINE, _PAUSE = 1 / 4, 1 / 6

# Wait after an immediate failure, against a busy loop.
_RETRY_S = 0.5


class LivenessWatch:
    """Runs the checks in a thread, since a check may take its whole deadline; the rest belongs to the owner's thread.
    `limit_s` is the timeout, in the owner's own time."""

    def __init__(self, name: str, question: Question, limit_s: float, at: float) -> None:
        self._question = question
        self._limit_s = limit_s
        self._silence = Silence(limit_s, at, _CHECKS)
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.why = ""
        """The result of the last check; empty if the part answered."""
        pause_s = limit_s * _PAUSE
        self._service = Service(f"watch-{name}", self._check, delay_s=pause_s, backoff=Backoff(pause_s, pause_s))
        self._service.start()

    def silent_s(self, at: float) -> float:
        """Seconds without an answer, 0 if it answers. `at` is the owner's own time."""
        while True:
            try:
                self.why = self._answers.get_nowait()
            except queue.Empty:
                return self._silence.lasts_s(at) if self.why else 0.0
            if self.why:
                self._silence.unanswered()
            else:
                self._silence.answered(at)

    def hangs(self, at: float) -> bool:
        """Whether the timeout has passed, as of the last check."""
        return self._silence.is_too_long(at)

    def end(self) -> None:
        """Stop checking. Does not wait for a check in progress."""
        self._service.stop()

    def _check(self) -> float:
        try:
            why = self._question(self._limit_s * _DEADLINE)
        except Exception:
            # The check itself failed, which is no evidence about the part.
            self._answers.put("")
            raise
        self._answers.put(why)
        return min(_RETRY_S, self._limit_s * _PAUSE) if why else self._limit_s * _PAUSE
