"""Each failure (outage, user error, missing right, full disk) is one sentence with an action, for every command.

Commands share functions (`settings_of`, `kafka_of`, `ShellClient`, the metrics of `top` and `report`, the last
`except` arms of `main`). The failures of each are tested with one command; a test of the source text proves that all
commands use these functions.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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
from tests.support.receiver import Receiver
from tests.support.served_app import served

pytestmark = pytest.mark.slow

LIBRARY = re.compile(r"Errno|Traceback|urllib3|HTTP\w*Connection|Max retries|Unable to|codec|object at 0x|\w+Error\b")


def _every(command: Any) -> Iterator[Any]:
    """The command and its visible subcommands."""
    below = getattr(command, "commands", None)
    if below is None:
        yield command
    for each in (below or {}).values():
        if not each.hidden:
            yield from _every(each)


def test_all_commands_use_the_same_functions() -> None:
    # Each may be called in one module alone.
    entries = {"load_settings(": "common.py", "connection.kafka_of(": "common.py", "return ShellClient(": "messages.py"}
    for file in Path(app_package.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8") if file.name != "reference.py" else ""
        assert all(file.name == place for call, place in entries.items() if call in text), file
    without = {
        each.name
        for each in _every(typer.main.get_command(app))
        if not {"--config", "--home"} <= {option for parameter in each.params for option in parameter.opts}
    }
    assert without == {"fetch", "init", "key", "schema"}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A stopped engine without a data directory, beside a file."""
    (tmp_path / "x.xml").write_text("<x/>")
    (tmp_path / "cut.xml").write_text("<x>\n<y></x>")
    (tmp_path / "dtd.xml").write_text("<!DOCTYPE x><x/>")
    (tmp_path / "latin").write_text("<x>é</x>", encoding="latin-1")
    return Engine(tmp_path / "home")


def complaint_of(engine: Engine, command: str, status: int | None = None, **env: str) -> str:
    """The error of the command, which must be one line of plain words. Settings before the command are environment
    variables, as in a shell; the port belongs to no other engine of this machine."""
    words = shlex.split(command.format(folder=engine.home.parent))
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        env[f"ARBORCAST_{name}"] = value
    done = engine.run_here(*words, input="password1\n", check=False, env={"ARBORCAST_GATEWAY_PORT": "9", **env})
    assert done.returncode == status if status else done.returncode, (done.stdout, done.stderr)
    complaint = " ".join((done.stderr or done.stdout.strip().splitlines()[-1]).replace("│", " ").split())
    assert complaint
    assert not LIBRARY.search(complaint), complaint
    return complaint


KAFKA = "STACK_BROKER=external KAFKA_BOOTSTRAP_SERVERS"

NO_SERVER = "http://127.0.0.1:9"

MQTT = "MQTT_URL=mqtt://127.0.0.1"


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("upp", 2, "No such command 'upp'"),
        ("--home x status", 2, "--home belongs after the command, for instance: arborcast status --home"),
        ("--config=x up", 2, "--config belongs after the command"),
        (f"unsubscribe \udcff --url {NO_SERVER}", 2, "the argument '\\udcff' is not UTF-8: write it in UTF-8"),
        ("up --detach --demo", 2, "choose one"),
        ("up --kafka-port x", 2, "valid integer"),
        ("up --kafka-port 70000", 2, "stack.kafka_port = 70000"),
        # Settings that a gateway would refuse only after Kafka's start.
        ("GATEWAY_HOST=0.0.0.0 up", 2, "is reachable from the network without authentication"),
        ("GATEWAY_MAX_BODY_BYTES=8388608 up", 2, "8388608 is too small for gateway.max_body_bytes = 8388608"),
        ("FRAMED_PORT=1 FRAMED_MAX_FRAME_BYTES=8388608 up", 2, "is too small for framed.max_frame_bytes = 8388608"),
        (f"{MQTT} up", 2, "mqtt.url requires mqtt.rules_file"),
        (f"{MQTT} MQTT_RULES_FILE=a ACCESS_METHODS=basic up", 2, "mqtt.act_as must name the user"),
        (f"{MQTT} MQTT_RULES_FILE=/no/a up", 2, "$ARBORCAST_MQTT_RULES_FILE: mqtt.rules_file = '/no/a' cannot be read"),
        ("TLS_CERTIFICATE_FILE=/no/a SECRETS_CLIENT_CERTIFICATES=/no/b up", 2, "tls.certificate_file = '/no/a' cannot"),
        ("TLS_CERTIFICATE_FILE=/no/a SECRETS_CLIENT_CERTIFICATES=/no/b up", 2, "secrets.client_certificates = '/no/b'"),
        (f"publish a//. {{folder}}/x.xml --url {NO_SERVER}", 2, "selects several topics"),
        (f"publish a {{folder}}/x.xml --valid-until soon --url {NO_SERVER}", 2, "--valid-until is a time"),
        (f"publish a {{folder}}/x.xml --valid-until 9999-12-31T23:59-14:00 --url {NO_SERVER}", 2, "--valid-until is a"),
        # An unset variable of a script: without the condition all would be deleted, pushed or erased.
        ("dead-letters purge --yes --subscription ''", 2, "'--subscription': it is empty"),
        ("waiting retry --yes --endpoint ''", 2, "'--endpoint': it is empty"),
        ("erase --yes --before 1d --topic ' '", 2, "'--topic': it is empty"),
        ("operations --limit 9999999999999999999", 2, "less than or equal to 1000000000"),
        ("dead-letters purge --yes --limit 9999999999999999999", 2, "less than or equal to 1000000000"),
        ("erase --yes --notification 019aca", 2, "'019aca' is not the id of a notification"),
        ("publish a /dev/null", 1, "/dev/null is empty: one XML element is needed"),
        ("publish a {folder}/cut.xml", 1, "/cut.xml is not well-formed XML: "),
        ("publish a {folder}/cut.xml", 1, ", line 2, column "),
        ("publish a {folder}/dtd.xml", 1, "a document type declaration is not allowed in "),
        ("triggers add t --on a --publish b --payload {folder}/cut.xml", 1, ", line 2, column "),
        ("triggers add t --on a --publish b --payload '<x'", 1, "--payload is not well-formed XML: "),
        ("triggers add t --on a --publish b", 2, "name the payload: --payload XML (or FILE), or --same"),
        ("users remove nope", 1, "there is no user nope"),
        ("publish a /nowhere/file.xml", 1, "/nowhere/file.xml cannot be read"),
        ("publish a <x/>", 1, "a file is meant here, or - for standard input"),
        ("publish a {folder}/x.xml -n p", 2, "a prefix and a URI are needed"),
        (f"listen a||b --url {NO_SERVER}", 2, "position"),
        (f"unsubscribe {NO_SERVER}/x", 1, "no process listens there"),
        (f"publish a {{folder}}/latin --url {NO_SERVER}", 1, "the payload is not text in UTF-8 (at byte 3)"),
        ("status --config {folder}", 2, "that is a folder, not a file"),
        ("status --config {folder}/latin", 2, "it is not text in UTF-8"),
        # Invalid addresses.
        ("publish a {folder}/x.xml --url http://no-such-host.invalid:1", 1, "there is no host with that name"),
        ("publish a {folder}/x.xml --url localhost:9", 1, "such as http://host:port"),
        ("publish a {folder}/x.xml --url htp://x", 1, "such as http://host:port"),
        (f"{KAFKA}=127.0.0.1:9 topics list", 1, "Kafka cannot be reached: 127.0.0.1:9: no process listens there"),
        (f"{KAFKA}=127.0.0.1:9 topics list", 1, "is it running, and is kafka.bootstrap_servers right?"),
        (
            f"{KAFKA}=127.0.0.1:9,no-such.invalid topics list",
            1,
            "; no-such.invalid: there is no host with that name",
        ),
        (f"{KAFKA}=127.0.0.1:x topics list", 1, "127.0.0.1:x is not host:port"),
        (f"{KAFKA}=PLAINTEXT://[::1]:9 topics list", 1, "PLAINTEXT://[::1]:9: "),
    ],
)
def test_invalid_commands(engine: Engine, command: str, status: int, message: str) -> None:
    assert message in complaint_of(engine, command, status)
    assert not engine.home.exists(), "a refused command creates no files"


@pytest.mark.parametrize(
    "command",
    [
        "publish a {folder}/x.xml",
        "topics list",
        "top --once",
        "audit",
        "backup {folder}/b",
        "report -o {folder}/r.html",
    ],
)
def test_without_an_engine(engine: Engine, command: str) -> None:
    engine.home.mkdir()
    assert re.search(r"(no engine (runs|at)|there is no history).*arborcast up", complaint_of(engine, command))


@pytest.mark.parametrize("command", ["publish a {folder}/x.xml", "unsubscribe x"])
def test_another_server_on_the_port_is_not_the_engine(engine: Engine, command: str) -> None:
    engine.home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        complaint = complaint_of(engine, command, ARBORCAST_GATEWAY_PORT=str(other.getsockname()[1]))
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert f"no engine runs in {engine.home}" in complaint
    assert "--url" in complaint


def test_an_external_gateway_is_at_the_address_in_the_settings(engine: Engine) -> None:
    engine.home.mkdir()
    assert f"no engine at {NO_SERVER}" in complaint_of(engine, "STACK_BROKER=external publish a {folder}/x.xml")
    state_file = Home(engine.home).state_file
    state_file.parent.mkdir(parents=True, exist_ok=True)
    state_file.touch()
    assert "no engine runs in" in complaint_of(engine, "STACK_BROKER=external publish a {folder}/x.xml")


def test_another_server_at_the_address(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as receiver:
        for url, message in (
            (receiver.url("/status/404"), "is it the address of a broker?"),
            (receiver.url("/garbage"), "the server there does not speak HTTP"),
            (receiver.url("/drop"), "it closed the connection without an answer"),
            (receiver.url("/hang"), "it accepted the request and did not answer for 0.1 s"),
            (receiver.url("/").replace("http:", "https:"), "it does not speak TLS"),
        ):
            monkeypatch.setattr(shell_client, "TIMEOUT_S", (60.0, 0.1 if url.endswith("/hang") else 60.0))
            assert message in complaint_of(engine, f"publish a {{folder}}/x.xml --url {url}")


def test_the_data_directory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.home.touch()
    assert "is a file; name a folder" in complaint_of(engine, "up")
    engine.home.unlink()

    lock, opened = Home(engine.home).lock_file, Path.open
    lock.parent.mkdir(parents=True)
    lock.touch()

    def open_or_fail(path: Path, *given: Any, **named: Any) -> Any:
        return (failing(errno.EACCES) if path == lock else opened)(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_or_fail)
        assert "may not see whether an engine runs" in complaint_of(engine, "status")
    # For root `access` permits everything.
    monkeypatch.setattr(os, "access", lambda path, _mode, **_named: Path(path) != engine.home)
    complaint = complaint_of(engine, "status")
    assert "this user may not look into the data directory" in complaint
    assert "be its owner" in complaint


def failing(number: int) -> Callable[..., Any]:
    return Mock(side_effect=OSError(number, os.strerror(number), "/somewhere/a"))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full: make room"),
        (errno.EDQUOT, "the user's disk quota is exceeded"),
        (errno.EACCES, "this user may not read or write it"),
        (errno.EROFS, "the disk is mounted read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_errors_of_the_disk(engine: Engine, number: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands with and without the name of a file."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", failing(number))
        for command in ("users add anna --stdin", "keys new", "federation key {folder}/k"):
            assert f"/somewhere/a cannot be read or written: {message}" in complaint_of(engine, command, 1)
    monkeypatch.setattr("arborcast.core.files.os.open", failing(number))
    for command in ("users add anna --stdin", "keys new", "federation key {folder}/k", "init {folder}/a.toml"):
        complaint = complaint_of(engine, command, 1)
        assert message in complaint
        assert f"{engine.home.parent}/" in complaint, "the file, and not its draft"
    monkeypatch.setattr(keyring, "add_key", failing(number))
    unforeseen = complaint_of(engine, "keys new")
    assert unforeseen.startswith("error: /somewhere/a cannot be read or written: ")
    assert message in unforeseen
    monkeypatch.setattr(keyring, "add_key", Mock(side_effect=OSError(number, os.strerror(number))))
    assert complaint_of(engine, "keys new").startswith("error: a file or standard output cannot be read or written: ")


def test_a_question_without_an_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.engine.embedded.questions.unreachable_reason", lambda _: "")
    assert complaint_of(engine, f"{KAFKA}=127.0.0.1:9 erase --subject 4711", 2).endswith(" --yes confirms")


@pytest.mark.parametrize("form", ["ldif", "topicset", "json"])
def test_an_unreadable_document_of_topics(engine: Engine, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.engine.embedded.questions.unreachable_reason", lambda _: "")
    complaint = complaint_of(engine, f"{KAFKA}=127.0.0.1:9 topics import {{folder}}/cut.xml --format {form}", 1)
    assert f"/cut.xml, read as {form}: " in complaint


def test_a_missing_package(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'matplotlib.axes'", name="matplotlib.axes")
    monkeypatch.setattr(keyring, "add_key", Mock(side_effect=missing))
    complaint = complaint_of(engine, "keys new")
    assert complaint == "error: the Python package matplotlib is not installed: pip install 'arborcast[notebook]'"


def test_the_start_of_an_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes on an outage of Kafka and on Kafka's class archive; passwords without users."""
    ports = "GATEWAY_PORT=0 METRICS_PORT=0 STACK_KAFKA_PORT=0"
    tools = Tools(JavaRuntime(Path("/opt/java"), "17", "the test"), Path("/opt"), [], [])
    commands = "arborcast.engine.embedded.commands.engine"
    monkeypatch.setattr(f"{commands}.find_tools", failing(errno.EIO))
    assert "`arborcast users add NAME` adds one" in complaint_of(engine, f"{ports} ACCESS_METHODS=basic up")
    complaint = complaint_of(engine, f"{ports} {KAFKA}=127.0.0.1:9 up")
    assert complaint.startswith("Kafka cannot be reached yet: 127.0.0.1:9: no process listens there. Is it up")
    monkeypatch.setattr(f"{commands}.find_tools", lambda: tools)
    monkeypatch.setattr(f"{commands}.write_settings", failing(errno.EIO))
    assert "`arborcast fetch` makes archives of their classes" in complaint_of(engine, f"{ports} up")


def test_credentials_for_a_broker(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    line = "a line of ~/.netrc (mode 600): machine 127.0.0.1 login NAME password PASSWORD"
    with served(guarded(tmp_path, Clock())) as port:

        def complaint(content: str, mode: int = 0o600) -> str:
            file.write_text(content)
            file.chmod(mode)
            command = f"publish '{{{{urn:t}}}}a/b' {{folder}}/x.xml --url http://127.0.0.1:{port}"
            return complaint_of(engine, command, NETRC=str(file))

        for content in ("", "default login anna password pa"):
            required = complaint(content)
            assert "authentication is required" in required, "the default password is not sent"
            assert line in required
        wrong = complaint("machine 127.0.0.1 login anna password no")
        assert "the credentials are wrong" in wrong
        assert line in wrong
        assert "is readable by others: chmod 600 it" in complaint("machine 127.0.0.1 login anna password pa", 0o644)
        assert "line " in complaint("machine")
        file.write_text("machine 127.0.0.1 login anna password pa")
        published = ("publish", "{urn:t}a/b", str(tmp_path / "x.xml"), "--url", f"http://127.0.0.1:{port}")
        engine.run_here(*published, env={"NETRC": str(file)})
