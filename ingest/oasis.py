"""The WSDL and schema files that OASIS published, as a jar carries them: neither ours nor changed.

Their references to one another are bare file names, so whoever serves them side by side need not rewrite anything.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path, PurePosixPath

from topic_model.errors import InfrastructureError

_SUFFIXES = frozenset({".wsdl", ".xsd"})

# Further down lies XML Schema's own schema, which nobody needs.
_DEPTH = len(PurePosixPath("org/apache/cxf/wsn/wsdl/b-2.xsd").parts)

# Apache CXF's own service, at an address that leads nowhere.
_NOT_PUBLISHED = "wsn.wsdl"

# Readers in Java fetch this DTD from a server that answers after a minute, if at all; it says nothing that they need.
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>\[]*>\s*")


class PublishedDocuments:
    """The documents in a jar, by their file names. They are read once and kept: 130 kB in all."""

    def __init__(self, jar: Path) -> None:
        """Raises InfrastructureError when the jar cannot be read, or is another one."""
        try:
            with zipfile.ZipFile(jar) as archive:
                self._documents = {
                    path.name: _DOCTYPE.sub(b"", archive.read(str(path)), count=1)
                    for path in map(PurePosixPath, archive.namelist())
                    if path.suffix in _SUFFIXES and len(path.parts) == _DEPTH and path.name != _NOT_PUBLISHED
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise InfrastructureError(f"the published WSDL cannot be read from {jar}: {error}") from error
        if "b-2.xsd" not in self._documents:
            raise InfrastructureError(f"{jar} holds no b-2.xsd: it is not the jar of the published WSDL")

    def __getitem__(self, name: str) -> bytes:
        """A document; KeyError when there is none of that name."""
        return self._documents[name]

    def get(self, name: str) -> bytes | None:
        """A document; None when there is none of that name."""
        return self._documents.get(name)

    def names(self) -> list[str]:
        """All file names."""
        return sorted(self._documents)
