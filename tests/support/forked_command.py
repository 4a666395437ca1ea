"""The `arborcast` command for shell scripts of tests, without the second that imports take: a process with the modules
loaded forks for each call.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import arborcast.admin
import arborcast.cli
from tests.support.process import ROOT
from tests.support.waiting import wait_until

# Sends its descriptors, arguments and environment; exits with the status of the reply.
_SCRIPT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"f"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(100)))
"""


@contextmanager
def forked_command(folder: Path) -> Iterator[Path]:
    """A folder for the PATH with a command of that name; `folder` is empty and its path short."""
    address, command = folder / "socket", folder / "bin" / "arborcast"
    command.parent.mkdir()
    command.write_text(_SCRIPT.format(python=sys.executable, address=str(address)))
    command.chmod(0o700)
    program = f"from {__name__} import serve; serve({str(address)!r})"
    server = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: address.exists() or server.poll() is not None)
        assert server.poll() is None
        yield command.parent
    finally:
        server.kill()
        server.wait(60)


def serve(address: str) -> None:
    """Accept calls at this Unix socket."""
    for package in (arborcast.cli, arborcast.admin):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address + ".new")
        server.listen(16)
        os.rename(address + ".new", address)
        while True:
            connection, _ = server.accept()
            if not os.fork():
                server.close()
                _call(connection)
            connection.close()


def _call(connection: socket.socket) -> None:
    """Run the command in a child of this child, and report its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    given = b"".join(iter(lambda: connection.recv(65_536), b""))
    sys.argv, folder, environment = json.loads(given)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    connection.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    arborcast.cli.main()
    sys.exit(0)
