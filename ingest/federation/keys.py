"""The shared secret of a federation: signing and verification.

Signatures are those of pushes (`core.security.signatures`). The id of a request contains its method and path, so it is
invalid for another one.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from arborcast.core.errors import ConfigError, SecretError, SignatureError
from arborcast.core.files import WatchedFile, readable_by_others
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, check, key_of, sign

logger = logging.getLogger(__name__)


def parse_secrets(text: str, where: str) -> tuple[bytes, ...]:
    """The keys in a file, one on each line; lines that begin with # are for people. Raises ConfigError, which never
    quotes a secret."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(key_of(line))
            except SecretError as error:
                raise ConfigError(f"{where}, line {number}: {error}") from None
    if not keys:
        raise ConfigError(f"{where} has no secret; create one with: arborcast federation key")
    return tuple(keys)


class SharedKeys:
    """The secrets in a file, read again when it has changed. Raises ConfigError for one that cannot be read."""

    def __init__(self, file: str, now: Callable[[], float] = time.time) -> None:
        self._file = WatchedFile(Path(file), parse_secrets)
        with suppress(OSError):
            if readable_by_others(Path(file).stat()):
                logger.warning("others than its owner may read the secrets of the federation in %s", file)
        self._now = now

    @property
    def current(self) -> bytes:
        """The one that signs."""
        return self._file.value[0]

    def signed(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """The headers of a request with this body."""
        return self._headers(f"{method} {path} {uuid.uuid4().hex}", body)

    def answered(self, request: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The headers of the answer to a request with these headers."""
        return self._headers(f"answer {request.get(ID_HEADER, '')}", body)

    def check_request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raises SignatureError unless the request is signed with the secret; names of headers in lower case."""
        self.check_push(headers, body)
        if not headers[ID_HEADER].startswith(f"{method} {path} "):
            raise SignatureError("the request was signed for another address")

    def check_answer(self, request: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> None:
        """Raises SignatureError unless this is the answer to that request."""
        self.check_push(headers, body)
        if headers[ID_HEADER] != f"answer {request[ID_HEADER]}":
            raise SignatureError("this is the answer to another request")

    def check_push(self, headers: Mapping[str, str], body: bytes) -> None:
        """Raises SignatureError unless this was signed recently with the secret."""
        check(self._file.value, headers, body, self._now())

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        timestamp = int(self._now())
        return {
            ID_HEADER: message_id,
            TIMESTAMP_HEADER: str(timestamp),
            SIGNATURE_HEADER: sign([self.current], message_id, timestamp, body),
        }
