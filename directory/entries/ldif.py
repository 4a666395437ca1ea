"""LDIF (RFC 2849) for content: entries, base64, folded lines, comments.

Change records (`changetype:`) and values by URL (`attr:< file:...`) are refused; unknown attribute options stay
unchanged. `parse` returns or raises LdifError for any bytes. It stores the text of each record, so an edited file is
written back with its comments and unknown attributes.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from arborcast.directory.entries.dn import format_dn, parse_dn
from arborcast.directory.entries.entries import Entry
from arborcast.directory.entries.mapping import NAMES
from arborcast.directory.errors import DnError, LdifError

# An entry has some 200 bytes; these limits allow a million topics.
MAX_FILE_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 20
MAX_VALUES_PER_ENTRY = 10_000

_FOLD_AT = 76
_ATTRIBUTE = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]*|[0-9]+(?:\.[0-9]+)*)(?:;[A-Za-z0-9-]+)*")
# Characters that RFC 2849 allows without encoding.
_SAFE = re.compile(rb"(?:[\x21-\x39\x3b\x3d-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")


@dataclass(frozen=True, slots=True)
class Block:
    """One record of a file: its text (with preceding comments) and its entry; None for a block of comments."""

    text: bytes
    entry: Entry | None


def parse(data: bytes) -> list[Block]:
    """The records of a file, in order. Raises LdifError with the number of the first wrong line."""
    if len(data) > MAX_FILE_BYTES:
        raise LdifError(f"the file has {len(data)} bytes, at most {MAX_FILE_BYTES} are allowed", 1)
    blocks: list[Block] = []
    first = True
    for number, lines in _split_blocks(data.removeprefix(codecs.BOM_UTF8)):
        block = _parse_block(number, lines, first=first)
        blocks.append(block)
        first = first and block.entry is None
    return blocks


def _split_blocks(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, lines) of each run of non-empty lines."""
    lines: list[bytes] = []
    start = 1
    for number, line in enumerate(data.replace(b"\r\n", b"\n").split(b"\n"), 1):
        if line:
            if not lines:
                start = number
            lines.append(line)
        elif lines:
            yield start, lines
            lines = []
    if lines:
        yield start, lines


def _unfold(start: int, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number, logical line) without comments, which may be folded too."""
    current: list[bytes] = []
    number = start
    for offset, line in enumerate(lines):
        if line.startswith(b" "):
            if not current:
                raise LdifError("a continuation line without a line before it", start + offset)
            current.append(line[1:])
            continue
        yield from _logical(number, current)
        current, number = [line], start + offset
    yield from _logical(number, current)


def _logical(number: int, parts: list[bytes]) -> Iterator[tuple[int, bytes]]:
    if not parts or parts[0].startswith(b"#"):
        return
    line = b"".join(parts)
    if len(line) > MAX_LINE_BYTES:
        raise LdifError(f"a value has {len(line)} bytes, at most {MAX_LINE_BYTES} are allowed", number)
    yield number, line


def _parse_block(start: int, lines: list[bytes], *, first: bool) -> Block:
    text = b"\n".join(lines) + b"\n"
    logical = list(_unfold(start, lines))
    if first and logical and logical[0][1].startswith(b"version:"):
        number, line = logical.pop(0)
        if line[8:].strip() != b"1":
            version = line[8:].strip().decode(errors="replace")
            raise LdifError(f"LDIF version {version!r} is not supported, only version 1", number)
    if not logical:
        return Block(text, None)
    number, line = logical[0]
    name, value = _split_line(number, line)
    if name != "dn":
        raise LdifError(f"a record must begin with dn:, this one begins with {name}:", number)
    try:
        dn = parse_dn(value.decode())
    except UnicodeDecodeError:
        raise LdifError("the dn is not UTF-8", number) from None
    except DnError as error:
        raise LdifError(str(error), number) from error
    if len(logical) > MAX_VALUES_PER_ENTRY:
        raise LdifError(f"an entry has {len(logical)} values, at most {MAX_VALUES_PER_ENTRY} are allowed", number)
    collected: dict[str, list[bytes]] = {}
    for number, line in logical[1:]:
        name, value = _split_line(number, line)
        if name in ("changetype", "control"):
            raise LdifError(
                f"{name}: this is a change record; a topic file has entries, changes are for ldapmodify", number
            )
        if name == "dn":
            raise LdifError("a second dn: within one record (is an empty line missing before it?)", number)
        collected.setdefault(name, []).append(value)
    return Block(text, Entry.of(dn, {name: tuple(values) for name, values in collected.items()}))


def _split_line(number: int, line: bytes) -> tuple[str, bytes]:
    """(attribute in lower case, value decoded)"""
    raw_name, colon, rest = line.partition(b":")
    name = raw_name.decode("ascii", errors="replace")
    if not colon or _ATTRIBUTE.fullmatch(name) is None:
        raise LdifError(f"{line[:80].decode(errors='replace')!r} is not of the form attribute: value", number)
    if rest.startswith(b":"):
        try:
            return name.lower(), base64.b64decode(rest[1:].strip(b" "), validate=True)
        except (binascii.Error, ValueError):
            raise LdifError(f"the value of {name} is not base64", number) from None
    if rest.startswith(b"<"):
        raise LdifError(f"{name}:< takes its value from a URL; put the value itself into the file", number)
    return name.lower(), rest.lstrip(b" ")


def render(entry: Entry, comments: bytes = b"") -> Block:
    """The record of an entry, after these comments."""
    lines = [comments + _line("dn", format_dn(entry.dn).encode())]
    for name, values in entry.attributes.items():
        lines.extend(_line(NAMES.get(name, name), value) for value in values)
    return Block(b"".join(lines), entry)


def comments_of(text: bytes) -> bytes:
    """The comment and version lines at the beginning of a record's text."""
    lines: list[bytes] = []
    for line in text.split(b"\n"):
        folded = lines and lines[-1].startswith(b"#") and line[:1] == b" "
        if not line.startswith((b"#", b"version:")) and not folded:
            break
        lines.append(line + b"\n")
    return b"".join(lines)


def write(blocks: Iterable[Block]) -> bytes:
    return b"\n".join(block.text for block in blocks)


def _line(name: str, value: bytes) -> bytes:
    if _SAFE.fullmatch(value) is not None:
        line = name.encode() + b": " + value if value else name.encode() + b":"
    else:
        line = name.encode() + b":: " + base64.b64encode(value)
    if len(line) <= _FOLD_AT:
        return line + b"\n"
    parts = [line[:_FOLD_AT]]
    parts.extend(line[at : at + _FOLD_AT - 1] for at in range(_FOLD_AT, len(line), _FOLD_AT - 1))
    return b"\n ".join(parts) + b"\n"
