"""Other systems that push over HTTP, as processes: their jars, starting them, subscribing with them.

python -m benchmarks.peers.others pin       write jars.sha256 again, after a change of jars.xml
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

from arborcast.core.progress import no_progress
from arborcast.engine.install import jars, java
from arborcast.engine.install.jars import default_cache
from arborcast.engine.processes import processes
from tests.support import soap_messages as soap
from tests.support.process import LoggedProcess

_FOLDER = Path(__file__).parent
_PINS = _FOLDER / "jars.sha256"

SETS = ("cxf", "camel")


def jar_folder(which: str) -> Path:
    """The folder with the pinned jars of this set, fetched when it is not in the cache. Raises RuntimeError."""
    pinned = _pinned(which)
    digest = hashlib.sha256("\n".join(f"{pinned[name]}  {name}" for name in sorted(pinned)).encode()).hexdigest()
    place = default_cache() / "jars" / f"measured-{which}-{digest[:12]}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".measured-{which}-", dir=place.parent))
        try:
            _retrieve(which, draft, default_cache() / "ivy", len(pinned))
            _verify(draft, pinned)
            draft.rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    _verify(place, pinned)
    return place


def _pinned(which: str) -> dict[str, str]:
    lines = [line.partition("  ") for line in _PINS.read_text(encoding="utf-8").splitlines()]
    return {name.partition("/")[2]: digest for digest, _, name in lines if name.startswith(f"{which}/")}


def _retrieve(which: str, into: Path, cache: Path, expected: int) -> None:
    runtime = java.find_java().executable
    outcome = jars.retrieve(_FOLDER / "jars.xml", which, into, cache, runtime, expected, no_progress)
    if outcome.problem:
        raise RuntimeError(f"could not fetch {outcome.jar or which}: {outcome.problem}")


def _verify(place: Path, pinned: dict[str, str]) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.glob("*.jar")}
    if wrong := sorted({*found.items()} ^ {*pinned.items()}):
        raise RuntimeError(f"{wrong[0][0]} in {place} is not what {_PINS.name} says; remove the folder, or: pin")


class Other(LoggedProcess):
    """A process of another system; it is started at once."""

    def __init__(self, folder: Path, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        super().__init__(command, folder / "other.log", cwd=folder, env=environment)
        self.start()


class CxfBroker(Other):
    """Apache CXF's standalone WS-Notification service, everything in memory."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = processes.free_port()
        self._broker = f"http://127.0.0.1:{self.port}/wsn/NotificationBroker"
        command = [str(java.find_java().executable), "-Xmx1g", *options, "-cp", f"{jar_folder('cxf')}/*"]
        command += ["org.apache.cxf.wsn.services.Service", "-rootUrl", f"http://127.0.0.1:{self.port}/wsn"]
        # No port for ActiveMQ, no files on disk.
        command += ["-brokerUrl", "vm://measured?broker.persistent=false&broker.useJmx=false", "-jmxEnable", "false"]
        super().__init__(folder, command)
        self.wait_for(lambda: _answers(f"{self._broker}?wsdl"), "the broker answers")

    def subscribe(self, url: str, topic: str) -> None:
        """One subscription to a topic in the dialect Simple, the only one that it supports."""
        body = soap.envelope(soap.subscribe(url, soap.topic_expression(f"t:{topic}", "Simple")))
        request = urllib.request.Request(self._broker, body, {"Content-Type": "text/xml; charset=utf-8"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            answer = response.read()
        if b"SubscribeResponse" not in answer:
            raise RuntimeError(f"no subscription: {answer[:500]!r}")


class CamelRoutes(Other):
    """One route for each subscriber: a consumer group on a Kafka topic, and an HTTP client behind it."""

    def __init__(self, folder: Path, servers: str, topic: str, urls: Sequence[str], consumers: int) -> None:
        (folder / "routes.xml").write_text(_routes(servers, topic, urls, consumers), encoding="utf-8")
        command = [str(java.find_java().executable), "-Xmx1g", "-cp", f"{jar_folder('camel')}/*"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "org.apache.camel.main.Main"]
        super().__init__(folder, command, {"CAMEL_MAIN_ROUTES_INCLUDE_PATTERN": f"file:{folder / 'routes.xml'}"})


def _routes(servers: str, topic: str, urls: Sequence[str], consumers: int) -> str:
    routes = []
    for number, url in enumerate(urls):
        # Offsets are committed behind answered messages, and failures are retried: at least once, in order.
        source = (
            f"kafka:{topic}?brokers={servers}&groupId={topic}-{number}&consumersCount={consumers}"
            "&autoOffsetReset=earliest&breakOnFirstError=true&autoCommitIntervalMs=1000"
        )
        target = f"{url}?httpMethod=POST&connectionsPerRoute={consumers * 2}&maxTotalConnections=1000"
        routes.append(
            f"<route><from uri={quoteattr(source)}/><removeHeaders pattern='*'/><to uri={quoteattr(target)}/></route>"
        )
    return f'<routes xmlns="http://camel.apache.org/schema/spring">{"".join(routes)}</routes>'


@contextmanager
def running(start: Callable[[Path], Other]) -> Iterator[Other]:
    """Started in a new folder, killed at the end."""
    with tempfile.TemporaryDirectory(prefix="arborcast-other-", ignore_cleanup_errors=True) as name:
        other = start(Path(name))
        try:
            yield other
        finally:
            other.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _pin() -> None:
    lines = []
    with tempfile.TemporaryDirectory() as name:
        for which in SETS:
            into = Path(name) / which
            into.mkdir()
            _retrieve(which, into, Path(name) / "ivy", 50)
            there = sorted(into.glob("*.jar"))
            lines += [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {which}/{jar.name}" for jar in there]
    _PINS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["pin"]:
        sys.exit(__doc__)
    _pin()
