"""Does a part live? One question for each, put by the supervisor again and again, and by the doctor when it is asked.

An open port is no answer: the kernel opens connections for a process that is stopped. A refusal is one: a process that
refuses a client, or closes its connection, runs. Each question has a deadline in seconds, and gives why the answer is
no: empty, when the part lives.
"""

from __future__ import annotations

import http.client
import logging
import queue
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from arborcast.core.backoff import Backoff
from arborcast.core.liveness import Silence
from arborcast.core.reasons import reason_of
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service, pool
from arborcast.engine.embedded import kafka_broker

Question = Callable[[float], str]

logger = logging.getLogger(__name__)

# How often the file of a heart that beats every other second is looked at.
_LOOK_S = 0.25


def gateway(host: str, port: int, *, tls: bool) -> Question:
    """Asks the event loop; with several workers, one of them, which also says whether their parent lives."""

    def ask(deadline_s: float) -> None:
        status, text = get(host, port, "/health/live", deadline_s, tls=tls)
        if status == 500:
            raise _NoError(text)

    return lambda deadline_s: _why_not(ask, deadline_s)


def kafka(port: int, host: str = "127.0.0.1") -> Question:
    """Asks for the list of brokers, which takes a thread of the network's and one that handles requests."""
    return lambda deadline_s: _why_not(lambda limit_s: kafka_broker.listed(port, host, limit_s), deadline_s)


def job(file: Path) -> Question:
    """Waits for the next heartbeat, which is a new time of this file."""

    def beaten() -> int:
        try:
            return file.stat().st_mtime_ns
        except OSError:
            return 0

    def ask(deadline_s: float) -> str:
        last, until = beaten(), time.monotonic() + deadline_s
        while beaten() == last:
            if time.monotonic() >= until:
                return f"no heartbeat within {deadline_s:g} s"
            time.sleep(_LOOK_S)
        return ""

    return ask


def get(host: str, port: int, page: str, timeout: float, *, tls: bool) -> tuple[int, str]:
    """What the gateway at this port answers: status and text. Raises OSError and http.client.HTTPException."""
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout, context=_unverified())
        if tls
        else http.client.HTTPConnection(host, port, timeout=timeout)
    )
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.status, answer.read(1_000).decode(errors="replace").strip()
    finally:
        connection.close()


def answers_page(host: str, port: int, page: str, timeout: float = 0.5, *, tls: bool = False) -> bool:
    """Whether the server there has this page now. `timeout` in seconds."""
    try:
        return get(host, port, page, timeout, tls=tls)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


class _NoError(Exception):
    """The answer is no."""


def _why_not(ask: Callable[[float], object], deadline_s: float) -> str:
    try:
        ask(deadline_s)
    except _NoError as no:
        return str(no)
    except TimeoutError:
        return f"no answer within {deadline_s:g} s"
    except ConnectionRefusedError:
        return "nobody listens"
    except (OSError, http.client.HTTPException):
        return ""
    return ""


def _unverified() -> ssl.SSLContext:
    """For asking our own process on our own machine how it is, by an address that its certificate need not name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_KAFKA_PORT = "9092"

_CONNECT_S = 1.0

# A busy broker takes a moment.
_ANSWER_S = 5.0


def answers(kafka: KafkaSettings) -> bool:
    """Whether a process listens where a broker should. The Kafka client would take half a minute to find out."""
    return not why_away(kafka, ask=False)


def why_away(kafka: KafkaSettings, *, ask: bool = True) -> str:
    """Why no broker can be reached, for each server that is set; empty when one can. Takes a second, and some more only
    where somebody takes the connection and says nothing."""
    servers = [each.strip() for each in kafka.bootstrap_servers.split(",") if each.strip()]
    # Our own request speaks no TLS and no SASL; an open port is all that can be said without logging in.
    ask = ask and kafka.security_protocol == "PLAINTEXT"
    # At once: a host that is off keeps everybody waiting.
    with pool("reach", max(1, len(servers))) as threads:
        reasons = list(threads.map(lambda server: _why_unreachable(server, ask=ask), servers))
    return "" if "" in reasons else "; ".join(reasons) or "kafka.bootstrap_servers is empty"


def _why_unreachable(server: str, *, ask: bool) -> str:
    host, port = _place(server)
    if not port.isdecimal():
        return f"{server} is not host:port"
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
        if ask:
            kafka_broker.listed(int(port), host, _ANSWER_S)
    except (OSError, OverflowError, UnicodeError) as error:
        return f"{server}: {reason_of(error)}"
    return ""


def _place(server: str) -> tuple[str, str]:
    """As the Kafka client reads it: with a protocol in front, or without a port."""
    server = server.rpartition("://")[2]
    host, colon, port = server.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = server, _KAFKA_PORT
    return host.strip("[]"), port


# So many questions in a row must have had no answer. All of them fit into the time after which a part hangs: each has
# a quarter of it, and the first comes a sixth of it after the last answer.
_ASKS = 3

_DEADLINE, _PAUSE = 1 / 4, 1 / 6

# A part that answers no at once must not be asked in a busy loop.
_REPROACH_S = 0.5


class LivenessWatch:
    """Asks in a thread of its own, for a question may take its whole deadline; all else is done by its owner's thread.

    `limit_s` of the owner's own time without an answer is too long.
    """

    def __init__(self, name: str, question: Question, limit_s: float, at: float) -> None:
        self._question = question
        self._limit_s = limit_s
        self._silence = Silence(limit_s, at, _ASKS)
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.why = ""
        """What the last question came to; empty when it was answered."""
        pause_s = limit_s * _PAUSE
        self._service = Service(f"watch-{name}", self._ask, delay_s=pause_s, backoff=Backoff(pause_s, pause_s))
        self._service.start()

    def look(self, at: float) -> float:
        """For how long it has been silent, 0 while it answers. `at` is the owner's own time."""
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
        """Whether it has been silent for too long, as of the last look."""
        return self._silence.is_too_long(at)

    def end(self) -> None:
        """Ask no more. Does not wait for the question that is being asked."""
        self._service.stop()

    def _ask(self) -> float:
        try:
            why = self._question(self._limit_s * _DEADLINE)
        except Exception:
            # We could not ask, which says nothing about the part.
            self._answers.put("")
            raise
        self._answers.put(why)
        return min(_REPROACH_S, self._limit_s * _PAUSE) if why else self._limit_s * _PAUSE
