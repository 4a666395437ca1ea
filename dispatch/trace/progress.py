"""Which batch took a notification: Spark writes it down before each batch, in the query's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from dispatch.batch_numbers import RANGE, RANGES
from dispatch.trace.evidence import Batch


def batch_of(checkpoint: str, topic: str, partition: int, offset: int) -> Batch | None:
    """The batch of the record at this offset; None when the checkpoint cannot be looked at from here.

    Spark keeps the last hundred batches: of earlier ones it is known only that they are done.
    """
    folder = Path(checkpoint.removeprefix("file://"))
    if "://" in checkpoint.removeprefix("file://") or not (folder / "offsets").is_dir():
        return None
    numbers = _numbers(folder / "offsets")
    first_number = max(_numbers(folder / RANGES), default=0) * RANGE
    for position, number in enumerate(numbers):
        end = _end(folder / "offsets" / str(number), topic, partition)
        if end is not None and offset < end:
            oldest = position == 0 and number > 0
            return Batch(
                None if oldest else first_number + number, begun=True, done=(folder / "commits" / str(number)).exists()
            )
    return Batch(None, begun=False, done=False)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(each.name) for each in folder.glob("*") if each.name.isdigit())


def _end(file: Path, topic: str, partition: int) -> int | None:
    """Up to before which offset a batch goes."""
    try:
        # A version, the batch's metadata, and one line for each source.
        source = json.loads(file.read_text(encoding="utf-8").splitlines()[2])
        return int(source[topic][str(partition)])
    except (OSError, ValueError, LookupError, TypeError):
        return None
