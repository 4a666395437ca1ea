"""History of the engine's load: samples of the last minutes in memory, and of the last day in a ring of two files.

The files are in the data directory: they survive restarts, cost nothing while unread, and can be read while the engine
is down. Outcomes of deliveries are in the tables.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator, MutableSequence
from itertools import chain
from pathlib import Path

import msgspec

from arborcast.engine.monitoring.samples import MetricsSample, Peaks, downsampled, with_peaks

logger = logging.getLogger(__name__)

RECENT_S = 600.0

MOST_SAMPLES = 4_000
"""Of a history that is read at once: 50 MB. A day has 17,000."""

_TIME_FIRST = b'{"at":'

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(MetricsSample)
_peaks_decoder = msgspec.json.Decoder(Peaks)


class MetricsHistory:
    """Written by one thread."""

    def __init__(self, folder: Path, keep_s: float) -> None:
        """Each of the two files covers `keep_s`, which is the minimum of the history."""
        self.folder = folder
        self._keep_s = keep_s
        self._file_began: float | None = None
        self._troubled = False
        self._recent: deque[MetricsSample] = deque()

    def add(self, sample: MetricsSample) -> None:
        """Add a sample. A full disk costs the history and one log message, never the engine."""
        add_recent(self._recent, sample)
        try:
            self._write(sample)
            self._troubled = False
        except OSError as error:
            if not self._troubled:
                logger.warning("the history of metrics in %s cannot be written: %s", self.folder, error.strerror)
            self._troubled = True
            self._file_began = None  # begun again: the folder may be deleted, and the last line be cut off

    def recent(self) -> list[MetricsSample]:
        return list(self._recent)

    def _write(self, sample: MetricsSample) -> None:
        current, older = files_in(self.folder)
        if self._file_began is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            first = next(_read(current), None)
            self._file_began = first.at if first else sample.at
            _end_line(current)
        if abs(sample.at - self._file_began) > self._keep_s:
            current.replace(older)
            self._file_began = sample.at
        with current.open("ab") as stream:
            stream.write(_encoder.encode(sample) + b"\n")


def add_recent(samples: deque[MetricsSample], sample: MetricsSample) -> None:
    """Add a sample to those of the last minutes, and remove the older ones."""
    _append(samples, sample)
    while sample.at - samples[0].at > RECENT_S:
        samples.popleft()


def _append(samples: MutableSequence[MetricsSample], sample: MetricsSample) -> None:
    """Add a sample in the order of time. After a clock was put back it replaces the ones after it: between them, each
    falling counter would count as a restart."""
    while samples and samples[-1].at > sample.at:
        samples.pop()
    samples.append(sample)


def files_in(folder: Path) -> tuple[Path, Path]:
    """The current file, and the previous one."""
    return folder / "history.jsonl", folder / "history.1.jsonl"


def read_history(folder: Path, since: float = 0.0, most: int = MOST_SAMPLES) -> list[MetricsSample]:
    """The samples since a time, oldest first, up to `most`: of more, each is the last of several, with their peaks.
    Unreadable lines are skipped."""
    samples, period, together = list[MetricsSample](), list[MetricsSample](), 1
    for sample in chain.from_iterable(map(_read, reversed(files_in(folder)))):
        if sample.at < since:
            samples.clear()  # the clock was put back
            period.clear()
            continue
        _append(period, sample)
        if len(period) == together:
            _append(samples, with_peaks(period))
            period.clear()
        if len(samples) == most:
            samples, together = downsampled(samples, most // 2), 2 * together
    if period:
        _append(samples, with_peaks(period))
    return samples


def read_downsampled(folder: Path, since: float, until: float, most: int) -> list[MetricsSample]:
    """Up to `most` samples between two times: the last one of each interval, with its peaks. A day has 17,000 samples;
    only the result is decoded and in memory."""
    by_interval: dict[int, bytes] = {}
    peaks: dict[int, Peaks] = {}
    for file in reversed(files_in(folder)):
        with contextlib.suppress(OSError), file.open("rb") as stream:
            for line in stream:
                if not (line.startswith(_TIME_FIRST) and line.endswith(b"}\n")):
                    continue  # half a line: its writer was killed
                try:
                    # The writer puts the time first.
                    at = float(line[len(_TIME_FIRST) :].partition(b",")[0].rstrip(b"}\n"))
                except ValueError:
                    continue
                if since <= at <= until:
                    interval = int((at - since) / (until - since) * most)
                    by_interval[interval] = line
                    with contextlib.suppress(msgspec.DecodeError):
                        peaks[interval] = peaks.get(interval, Peaks()).with_more(_peaks_decoder.decode(line))
    return [
        peaks.get(interval, Peaks()).on(sample)
        for interval, line in sorted(by_interval.items())
        if (sample := _decoded(line)) is not None
    ]


def _read(file: Path) -> Iterator[MetricsSample]:
    try:
        with file.open("rb") as stream:
            yield from filter(None, map(_decoded, stream))
    except OSError:
        return


def _decoded(line: bytes) -> MetricsSample | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None  # half a line: its writer was killed


def _end_line(file: Path) -> None:
    """After a kill in the middle of a line, begin a new one: the next sample would be lost with it."""
    if file.exists() and (content := file.stat().st_size):
        with file.open("rb+") as stream:
            stream.seek(content - 1)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
