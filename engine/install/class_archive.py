"""Archives of the classes that Spark's and Kafka's JVMs load: to read and check them is half of the cost of a start.

Made once, with the jars: Kafka and the job are started, and Java writes the loaded classes when they stop (application
class-data sharing, of every Java since 13). Later starts map these files. An archive fits one Java and the jars that it
was made of; Java checks that, and ignores an archive that does not fit.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from arborcast.core.progress import Progress, no_progress
from arborcast.engine.embedded import engine
from arborcast.engine.embedded.engine import Tools
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.parts import Part, PartSpec
from arborcast.engine.embedded.state import PartState
from arborcast.engine.processes import logfiles
from arborcast.engine.processes.errors import StackError
from arborcast.engine.settings.loading import load_settings
from arborcast.engine.settings.stack import StackSettings

Report = Callable[[str], None]

# Timeout: a slow machine under load takes minutes.
_START_S = 600.0
_STOP_S = 600.0

_STEP_S = 0.1

# Time without a start after which an archive is deleted. Environments of one user share a cache.
_UNUSED_S = 30 * 24 * 3_600

# Longer than a run: a temporary folder of this age is that of a killed one, with up to some hundred MiB.
_ABANDONED_S = 2 * (_START_S + _STOP_S) + 600

_FOLDER = ".classes-"


def make(tools: Tools, cache: Path, report: Report, progress: Progress = no_progress) -> bool:
    """Make the archives for this Java and these jars if one is missing; returns whether they exist.

    An engine starts more slowly without them: failures are reported, never raised.
    """
    if tools.classes.keys() == {*engine.JVMS}:
        report(f"class archives: exist, {', '.join(map(str, tools.classes.values()))}")
        return True
    report("class archives: starting Kafka and the job once, to keep their loaded classes for later starts")
    progress("making the archives of classes")
    try:
        (cache / "java").mkdir(parents=True, exist_ok=True)
        for left in _older_than(_ABANDONED_S, (cache / "java").glob(f"{_FOLDER}*")):
            shutil.rmtree(left, ignore_errors=True)
        # On the cache's own file system, so that a finished archive can be moved.
        with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=cache / "java") as folder:
            drafts = {part: Path(folder) / f"{part}.jsa" for part in engine.JVMS}
            _run(dataclasses.replace(tools, archives_to=drafts), Path(folder))
            for part, draft in drafts.items():
                if not draft.is_file():
                    raise StackError(f"Java has not written that of {part}")
                place = engine.class_archive_name(tools, cache, part, draft.stat().st_size)
                with draft.open("rb") as written:
                    os.fsync(written.fileno())
                draft.replace(place)
                report(f"class archive of {part}: made, {place} ({place.stat().st_size // 2**20} MiB)")
            # Each environment has an archive, and each update makes another.
            for old in _older_than(_UNUSED_S, (cache / "java").glob("classes-*.jsa")):
                old.unlink(missing_ok=True)
    except (StackError, OSError) as error:
        report(f"class archives: could not be created, so Kafka and the job will start more slowly: {error}")
        return False
    return True


def _older_than(seconds: float, files: Iterable[Path]) -> Iterator[Path]:
    for each in files:
        with suppress(FileNotFoundError):  # deleted by another process
            if each.stat().st_mtime < time.time() - seconds:
                yield each


def _run(tools: Tools, folder: Path) -> None:
    """Start a broker and the job, and stop them when they are ready. Raises StackError."""
    home = Home(folder / "home")
    home.create()
    try:
        home.settings_file.touch()  # not arborcast.toml of the current folder: this job would write to its tables
        settings = load_settings(
            home.settings_file,
            home.path,
            {"stack.kafka_port": 0, "gateway.port": 0, "metrics.port": 0, "metrics.job_port": 0},
            {},
        )
        settings = engine.effective(settings)
        settings = dataclasses.replace(settings, stack=dataclasses.replace(settings.stack, start_timeout_s=_START_S))
        engine.write_settings(settings, home)
        specs = {spec.name: spec for spec in engine.parts(settings, tools, home)}
        with _running(specs["kafka"], settings.stack) as kafka, _running(specs["dispatch"], settings.stack) as job:
            for part in (job, kafka):
                part.request_stop()
                deadline = time.monotonic() + _STOP_S
                while not part.has_ended():
                    if time.monotonic() > deadline:
                        raise StackError(f"{part.spec.name} did not stop within {_STOP_S:g} s")
                    time.sleep(_STEP_S)
    finally:
        shutil.rmtree(home.path, ignore_errors=True)


@contextmanager
def _running(spec: PartSpec, settings: StackSettings) -> Iterator[Part]:
    """A part that is ready; killed at the end. Raises StackError if it does not become ready."""
    part = Part(spec, settings, lambda line: None)
    try:
        while part.state is not PartState.READY:
            part.step(time.monotonic())
            if part.process.failures:
                raise StackError(
                    f"{spec.name} {part.status.last_exit}; {logfiles.tail(spec.log) or 'it has printed nothing'}"
                )
            time.sleep(_STEP_S)
        yield part
    finally:
        part.kill()
