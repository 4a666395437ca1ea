"""IRIs as URIs.

References are IRIs (WS-Addressing 1.0), such as `http://bücher.example/é`. Before an address is stored, checked or
compared it is converted to ASCII, so that it has one spelling.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

from arborcast.core.printable import is_printable

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*+://)([^/?#]*+)(.*+)", re.DOTALL)

_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")

_ASCII = "".join(map(chr, range(128)))


def to_uri(iri: str) -> str:
    """The URI of an IRI (RFC 3987, 3.1): the host in punycode, the rest percent-encoded. ASCII and unconvertible text
    stay unchanged; `AddressPolicy.check_url` refuses the latter."""
    if iri.isascii() or not is_printable(iri):
        return iri
    parts = _PARTS.fullmatch(iri)
    if parts is None:
        return iri
    scheme, authority, rest = parts.groups()
    user, at, place = authority.rpartition("@")
    host, colon, port = place.partition(":")
    return f"{scheme}{user}{at}{ascii_host(host)}{colon}{port}{quote(rest, safe=_ASCII)}"


def without_password(text: str) -> str:
    """The text with its addresses without user and password."""
    return _USER_INFO.sub("…@", text)


def ascii_host(host: str) -> str:
    """A host name in ASCII, by IDNA 2008; invalid labels stay unchanged. Only capital letters are mapped: full-width
    digits or dots would otherwise become an address."""
    return host if host.isascii() else ".".join(map(_label, host.split(".")))


def _label(label: str) -> str:
    if label.isascii():
        return label
    import idna  # large tables, needed for few addresses

    try:
        return idna.alabel(unicodedata.normalize("NFC", label.lower())).decode()
    except idna.IDNAError:
        return label
