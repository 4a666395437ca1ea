"""Client certificates that the operator has put into a folder, and the hosts that they may be shown to.

NAME.pem      the certificate, its chain, and its key without a password
NAME.hosts    host names, one on a line: without it anybody who may subscribe could have our certificate shown to
              any server, and so act there in our name
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from topic_model.errors import SecretError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def find_certificate(folder: str, name: str, url: str) -> str:
    """The file of the certificate `name`, if it may be shown to this URL. Raises SecretError."""
    if not folder:
        raise SecretError("there are no client certificates here (secrets.client_certificates is not set)")
    if not NAME.fullmatch(name):
        raise SecretError("a client certificate's name has up to 64 letters, digits, - and _")
    place = urlsplit(url)
    if place.scheme != "https":
        raise SecretError("a client certificate can only be shown to an https address")
    file = Path(folder) / f"{name}.pem"
    try:
        hosts = file.with_suffix(".hosts").read_text(encoding="utf-8").lower().split()
    except (OSError, UnicodeDecodeError):
        hosts = []
    if (place.hostname or "") not in hosts or not file.is_file():
        # One answer for both: a stranger learns nothing about which there are.
        raise SecretError(f"there is no client certificate {name!r} for the host {place.hostname!r}")
    return str(file)
