"""Each failure (away, wrong, not allowed, full) is one plain sentence with an action, for every command.

The commands share five entries: `settings_of`, `kafka_of`, `ShellClient`, the metrics of `top` and `report`, and the
last `except` arms of `main`. Each entry has its failures here, with one command in front of it; that every command goes
through these entries is a matter of the source text.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

import arborcast.cli as app_package
from arborcast.cli import app, shell_client
from arborcast.core.security import keyring
from arborcast.engine.embedded.engine import Tools
from arborcast.engine.embedded.home import Home
from arborcast.engine.install.java import JavaRuntime
from tests.support.command import Engine
from tests.support.guarded_gateway import Clock, guarded
from tests.support.served_app import served

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"

# One command for each way in, with what it must be given: `{url}` is the gateway's address, `{folder}` a folder.
SETTINGS, KAFKA, METRICS = ("status", ""), ("topics list", ""), ("top", "--once")
CLIENT = ("publish", "a {folder}/x.xml")

CLI = Path(app_package.__file__).parent

LIBRARY = re.compile(r"Errno|Traceback|urllib3|HTTP\w*Connection|Max retries|Unable to|codec|object at 0x|\w+Error\b")


# What may be called in one module of cli/ alone.
ENTRIES = {"load_settings(": "common.py", "connection.kafka_of(": "common.py", "return ShellClient(": "messages.py"}

# Commands that take neither a settings file nor a data directory.
WITHOUT_SETTINGS = {"fetch", "init", "key", "schema"}


def commands(command: Any) -> Iterator[Any]:
    """Every command that people can call."""
    below = getattr(command, "commands", None)
    if below is None:
        yield command
    for each in (below or {}).values():
        if not each.hidden:
            yield from commands(each)


def takes_settings(function: ast.FunctionDef) -> bool:
    return {"config", "home"} <= {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}


def passed_on(function: ast.FunctionDef) -> set[str]:
    """The functions that are called with `config` and `home`; fails where they are used in another way."""
    names, counted = set(), 0
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        given = [each.id for each in call.args if isinstance(each, ast.Name) and each.id in ("config", "home")]
        if given:
            names.add(ast.unparse(call.func))
            counted += len(given)
    used = [each for each in ast.walk(function) if isinstance(each, ast.Name) and each.id in ("config", "home")]
    assert len(used) == counted, f"{function.name} reads settings by itself: use common.settings_of"
    return names


def test_every_command_goes_through_the_same_entries() -> None:
    files = {file: file.read_text(encoding="utf-8") for file in CLI.rglob("*.py") if file.name != "reference.py"}
    functions = [
        each
        for text in files.values()
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.FunctionDef) and takes_settings(each)
    ]
    names = {each.name for each in functions}
    for function in functions:
        if function.name != "settings_of":
            passed = passed_on(function)
            assert passed, f"{function.name} ignores its settings"
            assert passed <= names, function.name
    for file, text in files.items():
        assert all(file.name == place for call, place in ENTRIES.items() if call in text), file.name
    every = list(commands(typer.main.get_command(app)))
    assert {each.callback.__name__ for each in every if each.name not in WITHOUT_SETTINGS} <= names


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "home")


def complaint_of(engine: Engine, command: str, arguments: str, *more: str, **env: str) -> str:
    """What the command says, which must be a sentence that anybody can read."""
    folder = engine.home.parent
    (folder / "x.xml").write_text("<x/>")
    url = env.get("ARBORCAST_GATEWAY_PUBLIC_URL", NOBODY)
    words = arguments.format(url=url, folder=folder, file=folder / "x.xml").split()
    # Never another engine of this machine.
    env = {"ARBORCAST_GATEWAY_PORT": "9", **env}
    done = engine.run_here(*command.split(), *words, *more, input="password1\n", check=False, env=env)
    told = done.stderr.strip() if command != "top" or done.stderr else done.stdout.strip().splitlines()[-1]
    assert done.returncode != 0, (command, done.stdout)
    assert not LIBRARY.search(told), told
    assert told
    return told


@pytest.mark.parametrize(
    ("command", "arguments"),
    [CLIENT, KAFKA, METRICS, ("audit", ""), ("backup", "{folder}/backup"), ("report", "-o {folder}/report.html")],
)
def test_without_an_engine(engine: Engine, command: str, arguments: str) -> None:
    engine.home.mkdir()
    told = complaint_of(engine, command, arguments)
    assert re.search(r"no engine (runs|at)|there is no history", told), told
    assert "arborcast up" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("command", "arguments"), [CLIENT, ("unsubscribe", "x")])
def test_a_stopped_engine_is_not_taken_for_another_on_its_port(engine: Engine, command: str, arguments: str) -> None:
    engine.home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        told = complaint_of(engine, command, arguments, ARBORCAST_GATEWAY_PORT=str(other.getsockname()[1]))
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert f"no engine runs in {engine.home}" in told
    assert "--url" in told


@pytest.mark.parametrize("ran", [True, False])
def test_a_gateway_that_is_no_engines_is_where_the_settings_say(engine: Engine, ran: bool) -> None:
    engine.home.mkdir()
    if ran:
        state_file = Home(engine.home).state_file
        state_file.parent.mkdir(parents=True, exist_ok=True)
        state_file.touch()
    told = complaint_of(engine, *CLIENT, ARBORCAST_STACK_BROKER="external")
    assert ("no engine runs in" if ran else "no engine at http://127.0.0.1:9") in told


@contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """A port where something answers everybody so; with None, it takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                connection.recv(65_536)
                connection.sendall(answer)
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for each in kept:
            each.close()


HTML = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 9\r\nConnection: close\r\n\r\n<p>no</p>"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (HTML, "is it the address of a broker?"),
        (b"SSH-2.0-x\r\n", "the server there does not speak HTTP"),
        (b"", "it closed the connection without an answer"),
        (None, "it accepted the request and did not answer for 0.1 s"),
    ],
)
def test_at_an_address_where_something_else_is(
    engine: Engine, answer: bytes | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(shell_client, "TIMEOUT_S", (1.0, 0.1))
    with answering(answer) as port:
        url = f"http://127.0.0.1:{port}"
        assert told in complaint_of(engine, *CLIENT, ARBORCAST_GATEWAY_PUBLIC_URL=url)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://no-such-host.invalid:1", "there is no host with that name"),
        ("https://127.0.0.1:{plain}", "it does not speak TLS"),
        ("localhost:9", "such as http://host:port"),
        ("htp://x", "such as http://host:port"),
    ],
)
def test_at_an_address_that_cannot_be(engine: Engine, url: str, told: str) -> None:
    with answering(HTML) as plain:
        assert told in complaint_of(engine, *CLIENT, "--url", url.format(plain=plain))


def kafka_at(*servers: str) -> dict[str, str]:
    return {"ARBORCAST_STACK_BROKER": "external", "ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": ",".join(servers)}


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        (["127.0.0.1:9"], "Kafka cannot be reached: 127.0.0.1:9: no process listens there"),
        (["127.0.0.1:9"], "is it running, and is kafka.bootstrap_servers right?"),
        (["127.0.0.1:9", "no-such-host.invalid"], "there; no-such-host.invalid: there is no host with that name"),
        (["127.0.0.1:x"], "127.0.0.1:x is not host:port"),
        (["PLAINTEXT://[::1]:9"], "PLAINTEXT://[::1]:9: "),
    ],
)
def test_kafka_away(engine: Engine, servers: list[str], told: str) -> None:
    assert told in complaint_of(engine, *KAFKA, **kafka_at(*servers))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "that is a folder, not a file"),
        (b"[gateway\n", "is not valid TOML"),
        (b"\xff\xfe", "it is not text in UTF-8"),
        (b"[gateway]\nprt = 1\n", "there is no setting gateway.prt; did you mean gateway.port?"),
    ],
)
def test_wrong_settings(engine: Engine, content: bytes | None, told: str) -> None:
    file = engine.home.parent / "a.toml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    assert told in complaint_of(engine, *SETTINGS, "--config", str(file))


def test_a_data_directory_of_another_user(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.home.mkdir()
    # Root may look everywhere.
    monkeypatch.setattr(os, "access", lambda path, _mode, **_named: Path(path) != engine.home)
    told = complaint_of(engine, *SETTINGS)
    assert "this user may not look into the data directory" in told
    assert "be its owner" in told


def test_an_engine_of_another_user(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, opened = Home(engine.home).lock_file, Path.open
    lock.parent.mkdir(parents=True)
    lock.touch()

    def open_or_fail(path: Path, *given: Any, **named: Any) -> Any:
        return (failing(errno.EACCES) if path == lock else opened)(path, *given, **named)

    monkeypatch.setattr(Path, "open", open_or_fail)
    assert "may not ask whether an engine runs" in complaint_of(engine, *SETTINGS)


def test_a_data_directory_that_is_a_file(engine: Engine) -> None:
    engine.home.touch()
    assert "is a file; name a folder" in complaint_of(engine, "up", "")


def failing(number: int) -> Callable[..., Any]:
    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise OSError(number, os.strerror(number), "/somewhere/a")

    return fail


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "the disk is full: make room"),
        (errno.EDQUOT, "disk quota is exceeded"),
        (errno.EACCES, "this user may not read or write it"),
        (errno.EROFS, "the disk is mounted read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_fails(engine: Engine, number: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a command knows its file, and where nobody has thought of it."""
    monkeypatch.setattr("arborcast.core.files.os.open", failing(number))
    assert told in complaint_of(engine, "users add", "somebody --stdin")
    assert told in complaint_of(engine, "keys new", "")
    monkeypatch.setattr(keyring, "add_key", failing(number))
    unforeseen = complaint_of(engine, "keys new", "")
    assert unforeseen.startswith("error: /somewhere/a cannot be read or written: ")
    assert told in unforeseen


def test_a_package_that_is_not_installed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: Any, **_named: Any) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib.axes'", name="matplotlib.axes")

    monkeypatch.setattr(keyring, "add_key", missing)
    told = complaint_of(engine, "keys new", "")
    assert told == "error: the Python package matplotlib is not installed: pip install 'arborcast[notebook]'"


def test_a_payload_that_is_no_text(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "latin.xml").write_bytes("<x>é</x>".encode("latin-1"))
    assert "the payload is not text in UTF-8 (at byte 3)" in complaint_of(
        engine, "publish", "a {folder}/latin.xml --url {url}"
    )


def test_passwords_without_users(engine: Engine) -> None:
    ports = {"ARBORCAST_GATEWAY_PORT": "0", "ARBORCAST_STACK_KAFKA_PORT": "0"}
    told = complaint_of(engine, "up", "", ARBORCAST_ACCESS_METHODS="basic", **ports)
    assert "`arborcast users add NAME` adds one" in told


def test_who_starts_an_engine_is_told_that_its_kafka_is_away(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.engine.embedded.commands.engine.find_tools", failing(errno.EIO))
    told = complaint_of(
        engine, "up", "", ARBORCAST_GATEWAY_PORT="0", ARBORCAST_METRICS_PORT="0", **kafka_at("127.0.0.1:9")
    )
    assert told.startswith("Kafka cannot be reached yet: 127.0.0.1:9: no process listens there. Is it up")


def test_a_start_without_an_archive_of_classes_names_fetch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Tools(JavaRuntime(Path("/opt/java"), "17", "the test"), Path("/opt"), [], [])
    monkeypatch.setattr("arborcast.engine.embedded.commands.engine.find_tools", lambda: tools)
    monkeypatch.setattr("arborcast.engine.embedded.commands.engine.write_settings", failing(errno.EIO))
    ports = {"ARBORCAST_GATEWAY_PORT": "0", "ARBORCAST_STACK_KAFKA_PORT": "0", "ARBORCAST_METRICS_PORT": "0"}
    assert "`arborcast fetch` makes the archive of its classes" in complaint_of(engine, "up", "", **ports)


def test_a_broker_that_asks_who_is_there(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    env = {"NETRC": str(file)}
    with served(guarded(tmp_path, Clock())) as port:
        arguments = ("{urn:t}a/b", str(tmp_path / "x.xml"), "--url", f"http://127.0.0.1:{port}")
        (tmp_path / "x.xml").write_text("<x/>")

        def said() -> str:
            return engine.run_here("publish", *arguments, check=False, env=env).stderr

        line = "a line of ~/.netrc (mode 600): machine 127.0.0.1 login NAME password PASSWORD"
        assert "authentication is required" in said()
        assert line in said()
        file.write_text("default login anna password pa")
        file.chmod(0o600)
        assert "authentication is required" in said(), "what is meant for anybody is not for us to hand out"
        file.write_text("machine 127.0.0.1 login anna password no")
        assert "the credentials are wrong" in said()
        assert line in said()
        file.chmod(0o644)
        assert "others may read it: chmod 600 it" in said()
        file.chmod(0o600)
        file.write_text("machine")
        assert "line " in said()
        file.write_text("machine 127.0.0.1 login anna password pa")
        assert "error" not in said()
