"""IRIs, which may hold all letters, as the URIs that HTTP and DNS know.

References are IRIs (WS-Addressing 1.0), so people may write `http://bücher.example/é`. Before an address is stored,
judged or compared it is written in ASCII, so that there is one spelling of it everywhere.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

from arborcast.core.printable import is_printable

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*+://)([^/?#]*+)(.*+)", re.DOTALL)

_ASCII = "".join(map(chr, range(128)))


def to_uri(iri: str) -> str:
    """The URI that an IRI stands for (RFC 3987, 3.1): the host in punycode, all else percent-encoded. ASCII stays as it
    is, and so does what cannot be converted: `AddressPolicy.check_url` refuses it."""
    if iri.isascii() or not is_printable(iri):
        return iri
    parts = _PARTS.fullmatch(iri)
    if parts is None:
        return iri
    scheme, authority, rest = parts.groups()
    user, at, place = authority.rpartition("@")
    host, colon, port = place.partition(":")
    return f"{scheme}{user}{at}{ascii_host(host)}{colon}{port}{quote(rest, safe=_ASCII)}"


def ascii_host(host: str) -> str:
    """A host name in ASCII, by IDNA 2008; labels that this does not know stay as they are.

    Nothing is mapped but capital letters: full-width digits, or a full stop that only looks like one, would make an
    address out of what nobody reads as one.
    """
    return host if host.isascii() else ".".join(map(_label, host.split(".")))


def _label(label: str) -> str:
    if label.isascii():
        return label
    import idna  # its tables are large, and few addresses need them

    try:
        return idna.alabel(unicodedata.normalize("NFC", label.lower())).decode()
    except idna.IDNAError:
        return label
