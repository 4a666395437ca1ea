"""Sets the time of each entry of a Java trust store (JKS), so that an image built again has the same bytes.

python3 trust_store.py FILE SECONDS    since the epoch; Debian's password is changeit
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

_PASSWORD = "changeit"  # noqa: S105 -- Debian's and Java's own: it protects no secret


def main(file: Path, seconds: int) -> None:
    """Write the file again. It consists of a head, its entries, and a digest of all before."""
    data = bytearray(file.read_bytes()[:-20])
    magic, version, count = struct.unpack_from(">III", data)
    if (magic, version) != (0xFEEDFEED, 2):
        sys.exit(f"{file} is no JKS of version 2")
    at = 12
    for _ in range(count):
        tag, alias = struct.unpack_from(">IH", data, at)
        if tag != 2:
            sys.exit(f"{file} has an entry that is no certificate")
        at += 6 + alias
        struct.pack_into(">q", data, at, 1000 * seconds)
        (kind,) = struct.unpack_from(">H", data, at + 8)
        at += 10 + kind
        (size,) = struct.unpack_from(">I", data, at)
        at += 4 + size
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + data)  # noqa: S324 -- as the format has it
    file.write_bytes(data + digest.digest())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
