"""Distinguished names (RFC 4514): parsing, formatting, and a form for comparison.

ldap3's functions are not used, since the file directory must not import ldap3, and since they change names: topic names
are any NCName and namespaces any URI, so commas, equal signs and non-ASCII letters are common in these DNs.
"""

from __future__ import annotations

import re
from functools import lru_cache

from arborcast.directory.errors import DnError

Ava = tuple[str, str]
"""(attribute type in lower case, value)"""

Rdn = tuple[Ava, ...]
"""One or more attribute values that name an entry below its parent, in the order of the text."""

Dn = tuple[Rdn, ...]
"""The entry's own RDN first, the root's last, as in the text of a DN."""

MAX_DN_LENGTH = 16_384

# Other spellings of common types in base DNs.
_SPELLINGS = {
    "2.5.4.3": "cn",
    "commonname": "cn",
    "2.5.4.10": "o",
    "organizationname": "o",
    "2.5.4.11": "ou",
    "organizationalunitname": "ou",
    "0.9.2342.19200300.100.1.25": "dc",
    "domaincomponent": "dc",
}
# Types with case-sensitive values; values of all others are case-insensitive, as in X.520.
_CASE_EXACT = frozenset({"topicname", "topicnamespace", "topiccode"})

_TYPE = re.compile(r" *([A-Za-z][A-Za-z0-9-]*|[0-9]+(?:\.[0-9]+)+) *= *")
_HEX = re.compile(r"#((?:[0-9A-Fa-f]{2})+) *")
# Most values have no special characters; this shortcut reads large listings a fifth faster.
_PLAIN = re.compile(r'[^,;+"\\<>\0]*(?=[,;+]|\Z)')
_ESCAPED_BYTES = re.compile(r"(?:\\[0-9A-Fa-f]{2})+")
_SPECIAL = frozenset(',+"\\<>;=')


def parse_dn(text: str) -> Dn:
    """The values of a DN; the empty text is the root, (). Raises DnError with the position."""
    if len(text) > MAX_DN_LENGTH:
        raise DnError(f"a DN may be {MAX_DN_LENGTH} characters long, this one is {len(text)}")
    if not text.strip(" "):
        return ()
    dn: list[Rdn] = []
    rdn: list[Ava] = []
    position = 0
    while True:
        match = _TYPE.match(text, position)
        if match is None:
            raise DnError(f"{text[:200]!r} is not a DN: an attribute type and = are missing at character {position}")
        kind = match.group(1).lower()
        value, position = _read_value(text, match.end())
        rdn.append((_SPELLINGS.get(kind, kind), value))
        separator = text[position : position + 1]
        if separator != "+":
            dn.append(tuple(rdn))
            rdn = []
        if not separator:
            return tuple(dn)
        position += 1


def _read_value(text: str, start: int) -> tuple[str, int]:
    """The unescaped value from `start`, and the position of the separator after it."""
    encoded = _HEX.match(text, start)
    if encoded is not None:
        end = encoded.end()
        if end < len(text) and text[end] not in ",;+":
            raise DnError(f"{text[:200]!r} is not a DN: {text[end]!r} after a hexadecimal value at character {end}")
        # BER is not decoded, only compared.
        return "#" + encoded.group(1).lower(), end
    plain = _PLAIN.match(text, start)
    if plain is not None:
        return plain.group().rstrip(" "), plain.end()
    parts: list[str] = []
    position = start
    # Unescaped spaces at the end do not belong to the value.
    value_parts = 0
    while position < len(text) and text[position] not in ",;+":
        character = text[position]
        if character == "\\":
            piece, position = _unescape(text, position)
            parts.append(piece)
            value_parts = len(parts)
            continue
        if character in '"<>\0':
            raise DnError(f"{text[:200]!r} is not a DN: {character!r} must be escaped at character {position}")
        parts.append(character)
        position += 1
        if character != " ":
            value_parts = len(parts)
    return "".join(parts[:value_parts]), position


def _unescape(text: str, position: int) -> tuple[str, int]:
    run = _ESCAPED_BYTES.match(text, position)
    if run is not None:
        try:
            return bytes.fromhex(run.group().replace("\\", "")).decode(), run.end()
        except UnicodeDecodeError:
            raise DnError(f"{text[:200]!r} is not a DN: escapes at character {position} are not UTF-8") from None
    following = text[position + 1 : position + 2]
    if following and (following in _SPECIAL or following in " #"):
        return following, position + 2
    raise DnError(f"{text[:200]!r} is not a DN: a lone backslash at character {position}")


def format_dn(dn: Dn) -> str:
    """The text of a DN, escaped; `parse_dn` returns the same values."""
    return ",".join(format_rdn(rdn) for rdn in dn)


def format_rdn(rdn: Rdn) -> str:
    return "+".join(f"{_WRITTEN.get(kind, kind)}={_escape(value)}" for kind, value in rdn)


# Spelling of types for readability; other types are in lower case.
_WRITTEN = {"topicname": "topicName", "topicnamespace": "topicNamespace"}


def _escape(value: str) -> str:
    out: list[str] = []
    last = len(value) - 1
    for index, character in enumerate(value):
        at_edge = (index == 0 and character in " #") or (index == last and character == " ")
        if character in _SPECIAL or at_edge:
            out.append("\\" + character)
        elif character < " " or character == "\x7f":
            # RFC 4514 requires this for NUL only, but a line break in a DN would break log lines.
            out.append(f"\\{ord(character):02x}")
        else:
            out.append(character)
    return "".join(out)


def fold(dn: Dn) -> Dn:
    """A form that is equal for DNs of the same entry: sorted values, folded case for case-insensitive types."""
    return tuple(map(_fold_rdn, dn))


@lru_cache(maxsize=4_096)  # entries have those above in common
def _fold_rdn(rdn: Rdn) -> Rdn:
    return tuple(
        sorted((kind, value if kind in _CASE_EXACT else " ".join(value.casefold().split())) for kind, value in rdn)
    )


def is_below(dn: Dn, base: Dn) -> bool:
    """Whether the entry is strictly below `base`; both folded."""
    return len(dn) > len(base) and dn[len(dn) - len(base) :] == base
