"""POST /federation and /federation/interest: requests of other engines.

Their signature authenticates them, so neither users nor rates apply.
"""

from __future__ import annotations

import logging
from xml.sax.saxutils import escape

from arborcast.core.errors import InfrastructureError, PeerError, SignatureError
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.federation.receiver import PeerReceiver
from arborcast.ingest.http.asgi import TEXT, Receive, Scope, Send, read_body, send_answer
from arborcast.topic_model.records.peers import INTEREST_PATH, PATH
from arborcast.wire.errors import Compressed, PeerRefused, TooLarge
from arborcast.wire.faults import seconds_until

logger = logging.getLogger(__name__)


class PeerEndpoint:
    """Answers other engines. `fast_in_group` is the default of topics for fast messages to the own group."""

    def __init__(self, receiver: PeerReceiver, limit: int, metrics: Registry, fast_in_group: bool = False) -> None:
        self.fast_in_group = fast_in_group
        self._receiver = receiver
        self._limit = limit
        stored = "Stored notifications of other engines."
        metrics.counted_by("arborcast_federation_received_total", stored, "sender", lambda: receiver.taken)
        metrics.counted_by(
            "arborcast_federation_dropped_total",
            "Not stored: repeat, loop, hops (normal), topic (refused here), unreadable.",
            "reason",
            lambda: receiver.dropped,
        )
        self._answers = metrics.counter("arborcast_federation_answers_total", "Requests of other engines.", ("status",))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; never raises."""
        path = scope["path"]
        status, body, retry_after_s = 200, "", 0
        try:
            if scope["method"] != "POST" or path not in (PATH, INTEREST_PATH):
                status, body = 404, f"other engines POST to {PATH} and {INTEREST_PATH}"
            else:
                data = await read_body(scope["headers"], receive, self._limit)
                if data is None:
                    return
                headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
                await self._receiver.take(path, headers, data)
        except InfrastructureError as error:
            status, body, retry_after_s = 503, str(error), seconds_until(error) or 0
        except PeerError as error:
            status, body = _refusal(error)
        except Exception:
            logger.exception("a push of another engine could not be stored")
            status, body = 500, "internal error"
        self._answers.add(str(status))
        extra = [(b"retry-after", str(retry_after_s).encode())] if retry_after_s else []
        await send_answer(send, status, body.encode(errors="replace"), TEXT, extra)


def _refusal(error: PeerError) -> tuple[int, str]:
    if isinstance(error, SignatureError):
        return 401, str(error)
    if isinstance(error, PeerRefused):
        return 409, str(error)
    # A retry cannot succeed. The link gives the message up and continues.
    status = 413 if isinstance(error, TooLarge) else 415 if isinstance(error, Compressed) else 400
    return status, f"<faultcode>Client</faultcode> {escape(str(error))}"
