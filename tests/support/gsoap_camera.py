"""A foreign camera: gSOAP's server with the WS-Security of gSOAP, from Debian's packages, compiled into the cache.

gSOAP is what the firmware of many cameras uses. Neither its XML nor its digests are ours.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from tests.support.debian import DebianProgram, Unavailable, environment

_SOURCES = Path(__file__).with_name("gsoap")

GSOAP = DebianProgram(
    "gsoap",
    ("gsoap", "libgsoap-dev"),
    lambda root: [each for each in [root / "usr/bin/soapcpp2"] if each.exists()],
    never=re.compile(r"^(libc6|libgcc-s1|libstdc\+\+6|libssl3.*)$"),
    rounds=2,
)

_PLUGINS = ("plugin/wsseapi.cpp", "plugin/smdevp.c", "plugin/mecevp.c", "plugin/wsaapi.c", "custom/struct_timeval.c")


def compiled() -> Path:
    """The program. Raises Unavailable."""
    if shutil.which("g++") is None:
        raise Unavailable("g++ is not on the PATH: install it to test with a camera on gSOAP")
    root = GSOAP.root if GSOAP.starts(GSOAP.root) else GSOAP.unpack(print)
    sources = sorted(_SOURCES.iterdir())
    version = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    folder = GSOAP.cache / f"camera-{version}"
    program = folder / "camera"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(root, folder, program)
    return program


def _compile(root: Path, folder: Path, program: Path) -> None:
    share, libraries = root / "usr/share/gsoap", GSOAP.libraries(root)

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environment(libraries), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable(f"the camera on gSOAP cannot be compiled: {done.stderr[-2000:]}")

    included = f"-I{share / 'import'}:{share}"
    run(root / "usr/bin/soapcpp2", "-S", "-2", "-x", "-L", "-w", included, _SOURCES / "camera.h")
    places = [folder, root / "usr/include", share, share / "plugin", share / "import"]
    sources: list[str | Path] = [
        "soapC.cpp",
        "soapServer.cpp",
        _SOURCES / "camera.cpp",
        *(share / each for each in _PLUGINS),
    ]
    options = ["-O0", "-w", "-DWITH_OPENSSL", "-DWITH_DOM", "-x", "c++"]
    # gSOAP's libraries statically: the program needs none of the cache.
    linked = [*(f"-L{each}" for each in libraries), "-Wl,-Bstatic", "-lgsoapssl++", "-Wl,-Bdynamic"]
    made = folder / "camera.new"
    included_too = [f"-I{each}" for each in places]
    run("g++", *options, *included_too, *sources, "-x", "none", "-o", made, *linked, "-lssl", "-lcrypto", "-lz")
    made.rename(program)


class GsoapCamera:
    """A running one, as a context manager."""

    def __init__(self, port: int, user: str, password: str, lease_s: int) -> None:
        self.url = f"http://127.0.0.1:{port}/onvif/device_service"
        self._command = [str(compiled()), str(port), user, password, str(lease_s)]

    def __enter__(self) -> GsoapCamera:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def happens(self, value: str) -> None:
        """An event; "forget" drops all subscriptions, too."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{value}\n")
        self._process.stdin.flush()

    def renewed(self) -> None:
        """Wait for a renewal."""
        assert self._read() == "renewed\n"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()
