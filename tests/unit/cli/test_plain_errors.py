"""Whatever is away, wrong, not allowed or full: every command says so in one plain sentence, and what to do."""

from __future__ import annotations

import errno
import http.server
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

from arborcast.cli import app, shell_client
from arborcast.core.security import keyring
from arborcast.engine.embedded import questions
from arborcast.engine.embedded.home import Home
from tests.support.command import Engine
from tests.support.guarded_gateway import Clock, guarded
from tests.support.served_app import served

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"
ID = "0" * 32

# Each command, with what it must be given. `{url}` is the gateway's address, `{folder}` a folder, `{file}` a file.
CLIENT = {
    "subscribe": "a --to http://127.0.0.1:9/",
    "unsubscribe": "{url}/wsn/subscriptions/x",
    "triggers add": "t --on a --publish b --same",
    "triggers remove": "t",
    "rotate-secret": "{url}/wsn/subscriptions/x",
    "publish": "a {file}",
    "listen": "a --count 1",
}
LOGS = {
    "trace": ID,
    "why": f"-s x -m {ID}",
    "audit": "",
    "replay": "--since 1h --subscription x",
    "backup": "{folder}/backup",
    "restore": "{folder}/backup",
    "topics list": "",
    "topics tree": "",
    "topics add": "a",
    "topics remove": "a",
    "topics move": "a b",
    "topics rename": "a b",
    "topics import": "{folder}/topics.json",
    "topics export": "--format json",
    "topics find": "1.4.A",
    "topics match": "a",
    "topics who": "a",
    "subscriptions list": "",
    "subscriptions resume": "x",
    "triggers list": "",
    "federation links": "",
    "access check": "",
    "waiting list": "",
    "queues list": "",
    "queues show": "x",
    "dead-letters list": "",
    "dead-letters show": ID,
    "dead-letters redrive": "--yes",
    "dead-letters purge": "--yes",
    "keys reseal": "",
    "keys remove": "k2",
}
METRICS = {"top": "--once", "report": "-o {folder}/report.html"}
FILES = {
    "users add": "somebody --stdin",
    "users remove": "somebody",
    "users list": "",
    "users check": "somebody --stdin",
    "keys new": "",
    "keys list": "",
}
# They work without an engine, or say that there is none in words of their own.
OTHERS = {
    "up": "",
    "down": "",
    "status": "",
    "doctor": "",
    "fetch": "",
    "init": "",
    "bundle": "",
    "config show": "",
    "config spark": "",
    "federation key": "{folder}/federation.key",
    "federation members": "",
    "federation topology": "",
    "topics problems": "",
}

LIBRARY = re.compile(r"Errno|Traceback|urllib3|HTTP\w*Connection|Max retries|Unable to|codec|object at 0x|\w+Error\b")


def _commands(command: Any, path: str = "") -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path
        return
    for name, each in below.items():
        if not each.hidden:
            yield from _commands(each, f"{path} {name}".strip())


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "home")


def complaint_of(engine: Engine, command: str, arguments: str, *more: str, **env: str) -> str:
    """What the command says, which must be a sentence that anybody can read."""
    folder = engine.home.parent
    (folder / "x.xml").write_text("<x/>")
    (folder / "topics.json").write_text('{"version": 1, "topics": []}')
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


def test_every_command_is_in_the_tables() -> None:
    assert {*CLIENT, *LOGS, *METRICS, *FILES, *OTHERS} == {*_commands(typer.main.get_command(app))}


@pytest.mark.parametrize("command", [*CLIENT, *LOGS, *METRICS])
def test_without_an_engine(engine: Engine, command: str) -> None:
    engine.home.mkdir()
    keyring.add_key(engine.home / "secrets.keys", "k1")
    told = complaint_of(
        engine, command, {**CLIENT, **LOGS, **METRICS}[command], ARBORCAST_ACCESS_METHODS="bearer", **BEARER
    )
    assert re.search(r"no engine (runs|at)|there is no history", told), told
    assert "arborcast up" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("command", CLIENT)
def test_a_stopped_engine_is_not_taken_for_another_on_its_port(engine: Engine, command: str) -> None:
    engine.home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        arguments = CLIENT[command].replace("{url}/wsn/subscriptions/", "")  # by its id
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
    told = complaint_of(engine, "publish", CLIENT["publish"], ARBORCAST_STACK_BROKER="external")
    assert ("no engine runs in" if ran else "no engine at http://127.0.0.1:9") in told


BEARER = {"ARBORCAST_ACCESS_JWT_AUDIENCE": "a", "ARBORCAST_ACCESS_JWT_ISSUER": "i", "ARBORCAST_ACCESS_JWKS_FILE": "x"}


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


@pytest.mark.parametrize("command", CLIENT)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (HTML, "is it the address of a broker?"),
        (b"SSH-2.0-x\r\n", "what answers there does not speak HTTP"),
        (b"", "it closed the connection without an answer"),
        (None, "it took the request, and said nothing for 0.1 s"),
    ],
)
def test_at_an_address_where_something_else_is(
    engine: Engine, command: str, answer: bytes | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(shell_client, "TIMEOUT_S", (1.0, 0.1))
    with answering(answer) as port:
        url = f"http://127.0.0.1:{port}"
        assert told in complaint_of(engine, command, CLIENT[command], ARBORCAST_GATEWAY_PUBLIC_URL=url)


@pytest.mark.parametrize("command", CLIENT)
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://no-such-host.invalid:1", "there is no host of that name"),
        ("https://127.0.0.1:{plain}", "it does not speak TLS"),
        ("localhost:9", "it looks like http://host:port"),
        ("htp://x", "it looks like http://host:port"),
    ],
)
def test_at_an_address_that_cannot_be(engine: Engine, command: str, url: str, told: str) -> None:
    with answering(HTML) as plain:
        url = url.format(plain=plain)
        named = "{url}" in CLIENT[command]
        if named and "://" not in url:
            return  # it would be the id of a subscription
        arguments = CLIENT[command].replace("{url}", url)
        assert told in complaint_of(engine, command, arguments, *([] if named else ["--url", url]))


def test_somebody_who_waits_is_told_for_what(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_client, "TIMEOUT_S", (1.0, 0.5))
    monkeypatch.setattr(shell_client, "QUIET_S", 0.05)
    with answering(None) as port:
        said = complaint_of(engine, "publish", CLIENT["publish"], "--url", f"http://127.0.0.1:{port}")
    first, last = said.splitlines()
    assert "has not answered yet; waiting for up to 0.5 s" in first
    assert "no engine at" in last


@pytest.mark.parametrize("command", METRICS)
@pytest.mark.parametrize("answer", [HTML, b"SSH-2.0-x\r\n", b""])
def test_metrics_of_something_else(engine: Engine, command: str, answer: bytes) -> None:
    with answering(answer) as port:
        complaint_of(engine, command, METRICS[command], "--url", f"http://127.0.0.1:{port}")


def kafka_at(*servers: str) -> dict[str, str]:
    return {"ARBORCAST_STACK_BROKER": "external", "ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": ",".join(servers)}


@pytest.mark.parametrize("command", LOGS)
def test_where_nobody_is_kafka(engine: Engine, command: str) -> None:
    engine.home.mkdir()
    keyring.add_key(engine.home / "secrets.keys", "k1")
    said = complaint_of(
        engine, command, LOGS[command], ARBORCAST_ACCESS_METHODS="bearer", **BEARER, **kafka_at("127.0.0.1:9")
    )
    assert "Kafka cannot be reached: 127.0.0.1:9: nobody listens there" in said
    assert "is it up, and does kafka.bootstrap_servers say where?" in said


@pytest.mark.parametrize(
    ("answer", "told"), [(HTML, "is no Kafka broker"), (b"", "is no Kafka broker"), (None, "no answer in time")]
)
def test_where_something_else_is_than_kafka(
    engine: Engine, answer: bytes | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_ANSWER_S", 0.1)
    with answering(answer) as port:
        assert told in complaint_of(engine, "topics list", "", **kafka_at(f"127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        (["127.0.0.1:9", "no-such-host.invalid"], "there; no-such-host.invalid: there is no host of that name"),
        (["127.0.0.1:x"], "127.0.0.1:x is not host:port"),
        (["PLAINTEXT://[::1]:9"], "PLAINTEXT://[::1]:9: "),
    ],
)
def test_kafka_away(engine: Engine, servers: list[str], told: str) -> None:
    assert told in complaint_of(engine, "topics list", "", **kafka_at(*servers))


EVERY = {**CLIENT, **LOGS, **METRICS, **FILES, **OTHERS}
TAKES_SETTINGS = [each for each in EVERY if each not in ("fetch", "init", "bundle", "federation key")]


@pytest.mark.parametrize("command", TAKES_SETTINGS)
def test_settings_that_are_not_there(engine: Engine, command: str) -> None:
    told = complaint_of(engine, command, EVERY[command], "--config", "/nowhere/a.toml")
    assert "/nowhere/a.toml does not exist: `arborcast init /nowhere/a.toml` writes one" in told


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
    assert told in complaint_of(engine, "status", "", "--config", str(file))


@pytest.mark.parametrize("command", TAKES_SETTINGS)
def test_a_data_directory_of_another_user(engine: Engine, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.home.mkdir()
    # Root may look everywhere.
    monkeypatch.setattr(os, "access", lambda path, _mode, **_named: Path(path) != engine.home)
    told = complaint_of(engine, command, EVERY[command])
    assert "this user may not look into the data directory" in told
    assert "be its owner" in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_engine_of_another_user(engine: Engine) -> None:
    (engine.home / "run").mkdir(parents=True)
    (engine.home / "run" / "lock").touch(mode=0o000)
    assert "may not ask whether an engine runs" in complaint_of(engine, "status", "")


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
        (errno.EDQUOT, "share of the disk is used up"),
        (errno.EACCES, "this user may not read or write it"),
        (errno.EROFS, "the disk is mounted read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_fails(engine: Engine, number: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a command knows its file, and where nobody has thought of it."""
    monkeypatch.setattr("arborcast.core.files.os.open", failing(number))
    assert told in complaint_of(engine, "users add", FILES["users add"])
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
    assert told.startswith("Kafka cannot be reached yet: 127.0.0.1:9: nobody listens there. Is it up")


def test_a_broker_that_asks_who_is_there(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    env = {"NETRC": str(file)}
    with served(guarded(tmp_path, Clock())) as port:
        arguments = ("{urn:t}a/b", str(tmp_path / "x.xml"), "--url", f"http://127.0.0.1:{port}")
        (tmp_path / "x.xml").write_text("<x/>")

        def said() -> str:
            return engine.run_here("publish", *arguments, check=False, env=env).stderr

        line = "a line of ~/.netrc (mode 600): machine 127.0.0.1 login NAME password PASSWORD"
        assert "who are you?" in said()
        assert line in said()
        file.write_text("default login anna password pa")
        file.chmod(0o600)
        assert "who are you?" in said(), "what is meant for anybody is not for us to hand out"
        file.write_text("machine 127.0.0.1 login anna password no")
        assert "these credentials are not right" in said()
        assert line in said()
        file.chmod(0o644)
        assert "others may read it: chmod 600 it" in said()
        file.chmod(0o600)
        file.write_text("machine")
        assert "line " in said()
        file.write_text("machine 127.0.0.1 login anna password pa")
        assert "error" not in said()


def test_a_server_of_plain_pages_is_not_a_broker(engine: Engine) -> None:
    """The whole way, with a real server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        told = complaint_of(
            engine, "publish", CLIENT["publish"], "--url", f"http://127.0.0.1:{server.server_address[1]}"
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "is it the address of a broker?" in told
