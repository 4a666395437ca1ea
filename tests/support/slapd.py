"""A real OpenLDAP server for tests: unprivileged, on loopback, with TLS, in a private directory.

`python -m tests.support.slapd` finds the program, or unpacks Debian's package into the cache.

The fixture `slapd` starts one for the whole run; `fresh_slapd` starts one that a test may kill.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import arborcast.directory
from arborcast.directory.settings import DirectorySettings
from arborcast.engine.processes.processes import free_port
from tests.support import debian
from tests.support.certificates import make_certificates
from tests.support.debian import DebianProgram, provision_main, required
from tests.support.once_per_run import State, once_per_run
from tests.support.process import LoggedProcess

SUFFIX = "dc=arborcast"
BASE_DN = f"ou=topics,{SUFFIX}"
ADMIN_DN = f"cn=admin,{SUFFIX}"
ADMIN_PASSWORD = "correct horse"  # noqa: S105 - a server on loopback, removed after the test
ENGINE_DN = f"cn=engine,{SUFFIX}"
ENGINE_PASSWORD = "battery staple"  # noqa: S105
CLIENT_NAME = "client"

_SCHEMA = Path(arborcast.directory.__file__).parent / "arborcast.schema"

MODULES = ("back_mdb", "syncprov")


def _binaries(root: Path) -> list[Path]:
    modules = root / "usr/lib/ldap"
    if not _has_modules(modules):
        return []
    files = (file for name in MODULES for file in modules.glob(f"{name}*.so*"))
    return [root / "usr/sbin/slapd", *(file for file in files if not file.is_symlink())]


def _has_modules(directory: Path) -> bool:
    return all(any(directory.glob(f"{name}.*")) for name in MODULES)


SLAPD = DebianProgram(
    "slapd",
    ("slapd",),
    _binaries,
    # Debian's slapd also has back-ends for Perl and SQL with large libraries, which are not needed.
    never=re.compile(r"^(libc6|libperl.*|libodbc.*|.*-perl|perl.*)$"),
    rounds=4,  # libwrap0 -> libnsl2 -> libtirpc3 is the longest chain
)


@dataclass(frozen=True)
class SlapdInstall:
    """The paths of one slapd's parts. `libraries` is for LD_LIBRARY_PATH, empty for a system-wide slapd."""

    slapd: Path
    modules: Path | None
    schema: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment to start it in."""
        return debian.environment(self.libraries)


def find() -> SlapdInstall | None:
    """A slapd that starts: the system's, else the one in the cache. No network."""
    return _system() or _unpacked(SLAPD.root)


def provision(say: Callable[[str], None] = print) -> SlapdInstall:
    """`find`, else download and unpack. Raises Unavailable."""
    found = find() or _at(SLAPD.unpack(say))
    say(f"slapd: {found.slapd}")
    return found


def _system() -> SlapdInstall | None:
    slapd = shutil.which("slapd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/libexec"]))
    if slapd is None:
        return None
    schema = next((p for p in map(Path, ("/etc/ldap/schema", "/etc/openldap/schema")) if p.is_dir()), None)
    if schema is None:
        return None
    candidates = [Path("/usr/lib/ldap"), Path("/usr/lib64/openldap"), Path("/usr/lib/openldap")]
    modules = next((p for p in candidates if _has_modules(p)), None)
    return SlapdInstall(Path(slapd), modules, schema)


def _unpacked(root: Path) -> SlapdInstall | None:
    return _at(root) if SLAPD.starts(root) else None


def _at(root: Path) -> SlapdInstall:
    return SlapdInstall(root / "usr/sbin/slapd", root / "usr/lib/ldap", root / "etc/ldap/schema", SLAPD.libraries(root))


@dataclass
class Slapd:
    """One server. `url` is plain LDAP (StartTLS possible), `tls_url` LDAPS, `ipc_url` the Unix socket."""

    install: SlapdInstall
    home: Path
    port: int
    tls_port: int
    tls: bool
    process: LoggedProcess | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"

    @property
    def ipc_url(self) -> str:
        return "ldapi://" + urllib.parse.quote(str(self.home / "ldapi"), safe="")

    @property
    def ca_file(self) -> str:
        return str(self.home / "ca.pem")

    def settings(self, **changes: object) -> DirectorySettings:
        """Settings of a user with the server's usual size limits, lifted for paged reads only."""
        values: dict[str, object] = {
            "kind": "ldap",
            "url": self.url,
            "base_dn": BASE_DN,
            "bind": "simple",
            "bind_dn": ENGINE_DN,
            "password": ENGINE_PASSWORD,
            "poll_interval_s": 0.05,
        }
        return DirectorySettings(**(values | changes))  # type: ignore[arg-type]  # a builder for tests

    def start(self) -> None:
        """Start, and return when it answers."""
        urls = [self.url, self.ipc_url] + ([self.tls_url] if self.tls else [])
        command = [str(self.install.slapd), "-d", "0", "-f", str(self.home / "slapd.conf"), "-h", " ".join(urls)]
        self.process = LoggedProcess(command, self.home / "slapd.out", env=self.install.environment())
        self.process.start()
        self.process.wait_for(self._answers, "slapd answers")

    def stop(self) -> None:
        """Terminate it as an administrator does; returns after its exit."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def kill(self) -> None:
        """Kill it, as a power failure does."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def restart(self) -> None:
        """`stop`, then `start` on the same port with the same data."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """Empty the database (the server is restarted)."""
        self.kill()
        shutil.rmtree(self.home / "data")
        (self.home / "data").mkdir()
        self.start()
        self.seed()

    def seed(self) -> None:
        """An administrator's preparations: the suffix and the engine's account, without the base."""
        with self.admin() as connection:
            connection.add(SUFFIX, ["dcObject", "organization"], {"dc": "arborcast", "o": "tests"})
            classes = ["organizationalRole", "simpleSecurityObject"]
            connection.add(ENGINE_DN, classes, {"cn": "engine", "userPassword": ENGINE_PASSWORD})

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """A connection as the administrator, for manual edits. Failed requests raise."""
        import ldap3

        server = ldap3.Server(self.url, get_info=ldap3.NONE)
        connection = ldap3.Connection(
            server, ADMIN_DN, ADMIN_PASSWORD, auto_bind=True, check_names=False, raise_exceptions=True
        )
        try:
            yield connection
        finally:
            connection.unbind()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def create(install: SlapdInstall, home: Path) -> Slapd:
    """Configuration, certificates and an empty database below `home`; not started yet."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "data").mkdir()
    tls = shutil.which("openssl") is not None
    if tls:
        make_certificates(home)
    server = Slapd(install, home, free_port(), free_port(), tls)
    (home / "slapd.conf").write_text(_configuration(install, home, tls))
    return server


def _configuration(install: SlapdInstall, home: Path, tls: bool) -> str:
    lines = [f"include {install.schema}/core.schema", f"include {_SCHEMA}"]
    if install.modules is not None:
        lines += [f"modulepath {install.modules}", "moduleload back_mdb", "moduleload syncprov"]
    if tls:
        lines += [
            f"TLSCACertificateFile {home}/ca.pem",
            f"TLSCertificateFile {home}/server.pem",
            f"TLSCertificateKeyFile {home}/server.key",
            "TLSVerifyClient try",
        ]
    peer = rf"gidNumber={os.getgid()}\\+uidNumber={os.getuid()}"
    lines += [
        f"pidfile {home}/slapd.pid",
        # Clients of the Unix socket, or with the engine's client certificate, are the engine.
        f'authz-regexp "{peer},cn=peercred,cn=external,cn=auth" "{ENGINE_DN}"',
        f'authz-regexp "cn={CLIENT_NAME}" "{ENGINE_DN}"',
        "database mdb",
        f'suffix "{SUFFIX}"',
        f'rootdn "{ADMIN_DN}"',
        f'rootpw "{ADMIN_PASSWORD}"',
        f"directory {home}/data",
        "maxsize 1073741824",
        # Test data: without fsync the tests are ten times as fast.
        "dbnosync",
        "index objectClass,entryUUID,entryCSN eq",
        # The usual limit is 500; smaller here so that tests reach it with fewer entries.
        "sizelimit 100",
        f'limits dn.exact="{ENGINE_DN}" size.soft=100 size.hard=100 size.prtotal=unlimited',
        f'access to attrs=userPassword by anonymous auth by dn.exact="{ENGINE_DN}" none',
        f'access to * by dn.exact="{ENGINE_DN}" write by * read',
        "overlay syncprov",
        "syncprov-checkpoint 100 1",
        "syncprov-sessionlog 1000",
    ]
    return "\n".join(lines) + "\n"


def require_slapd() -> SlapdInstall:
    """The install, or skip the test with a line in the summary; with CI=true a missing server fails the run."""
    return required(provision, "NO SLAPD, so nothing was tested against a real LDAP server")


@pytest.fixture(scope="session")
def slapd_install() -> SlapdInstall:
    """The install of slapd."""
    return require_slapd()


@pytest.fixture(scope="session")
def slapd(slapd_install: SlapdInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    """A running server that all tests share; each uses a separate base and leaves the server running."""

    def start(folder: Path) -> tuple[State, Callable[[], None]]:
        # Not in pytest's folders: the path of a Unix socket has at most 107 bytes.
        short = tempfile.TemporaryDirectory(prefix="slapd-")
        server = create(slapd_install, Path(short.name) / "s")

        def stop() -> None:
            server.kill()
            short.cleanup()

        server.start()
        server.seed()
        state = {"home": str(server.home), "port": server.port, "tls_port": server.tls_port, "tls": server.tls}
        return state, stop

    with once_per_run(tmp_path_factory, "slapd", start) as state:
        yield Slapd(slapd_install, Path(state["home"]), state["port"], state["tls_port"], state["tls"])


@pytest.fixture
def fresh_slapd(slapd_install: SlapdInstall) -> Iterator[Slapd]:
    """A running server for one test, to stop, kill and wipe."""
    with tempfile.TemporaryDirectory(prefix="slapd-") as home:
        server = create(slapd_install, Path(home) / "s")
        server.start()
        server.seed()
        yield server
        server.kill()


if __name__ == "__main__":
    sys.exit(provision_main("slapd", "the LDAP", provision))
