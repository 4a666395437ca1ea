"""Java's options for archives of classes (application class-data sharing, of every Java since 13)."""

from __future__ import annotations

from pathlib import Path

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def sharing(classes: Path | None, archive_to: Path | None = None) -> tuple[str, ...]:
    """The options of a JVM that reads an archive, or writes one at its exit. Java ignores an archive that does not fit,
    without a message."""
    if archive_to is not None:
        return (f"-XX:ArchiveClassesAtExit={archive_to}", *_QUIET)
    return (f"-XX:SharedArchiveFile={classes}", "-Xshare:auto", *_QUIET) if classes is not None else ()
