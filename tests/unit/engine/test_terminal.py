"""Untrusted text has no effect on the terminal or the page of an operator. Progress on a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

import arborcast.admin.control_log
import arborcast.admin.doctor
import arborcast.cli.dead_letters
import arborcast.cli.waiting
import arborcast.dispatch.operations.audit
import arborcast.engine.terminal
from arborcast.admin.doctor import Check
from arborcast.cli import app, messages, top_frame
from arborcast.cli import main as command
from arborcast.client.received import ReceivedMessage
from arborcast.core.errors import ArborcastError
from arborcast.core.printable import is_printable
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.dispatch.operations.audit.report import Problem, Report
from arborcast.dispatch.operations.waiting import Wait
from arborcast.dispatch.tables import NOTIFICATIONS
from arborcast.engine import terminal
from arborcast.engine.monitoring.report import page
from arborcast.engine.monitoring.samples import MetricsSample
from arborcast.engine.monitoring.watching import EngineView, EngineWatch
from arborcast.engine.terminal import ProgressShown
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, SubscriptionSuspended, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.command import Shell
from tests.support.listed_logs import ListedLogs
from tests.support.table_rows import NOON, attempt, fill, record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

# Sets the clipboard, paints in two ways, and reverses the writing direction; then a word to search for.
NAME = "\x1b]52;c;aGk=\x07\x1b[8m\x9b31m\u202edrow\u2066NEEDLE"
# And a forged line. No topic's path has a second line.
ODD = f"{NAME}\nFORGED: all is well"
TOPIC = TopicPath(f"{{urn:{NAME}}}a/b")
ENDPOINT = f"http://e/{ODD}"


def subscription() -> Subscription:
    return Subscription(
        id="s1",
        consumer=EndpointReference(ENDPOINT),
        address=f"http://broker/{ODD}",
        topics=(TopicFilter(ODD, ODD, "//."),),
        owner=ODD,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with a delivery with such texts in every field."""
    folder = tmp_path_factory.mktemp("home")
    odd: dict[str, Any] = {"error": "client-error", "detail": ODD, "status": 400, "endpoint": ENDPOINT}
    record(folder, attempt("n1", "s1", "dead", 60, **odd))
    facts = {"notification": "n1", "topic": TOPIC, "logged_at": NOON, "payload": ODD.encode(), "publisher": ODD}
    fill(folder, NOTIFICATIONS, [facts])
    return folder


@pytest.fixture
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stopped engine with a topic, a suspended subscription, and deliveries with such texts."""
    notification = Notification("n1", TOPIC, ODD.encode(), 0, ODD.encode(), ODD, ODD)
    letter = DeadLetter("s1", ENDPOINT, notification, "dead", 0, 3, "client-error", ODD, 400, "p1", ODD.encode())
    last = Attempt("n1", "s1", TOPIC, ENDPOINT, 3, "p1", "parked", 0, 0, 1.0, "client-error", ODD, 400)
    wait = Wait(Delivery("s1", Place(0, 0, 0)), "n1", TOPIC, 0, 0, Tries(3, 3), last)
    control = ControlView()
    for each in (
        TopicRecord(TopicPath("a/b"), code=ODD, message_types=(ODD,)),
        SubscriptionRecord(subscription()),
        SubscriptionSuspended("s1", since_ms=0, reason=ODD, at_ms=0),
    ):
        control.apply(each)
    problem = Problem("missing", ODD, ODD, 1, 0, TOPIC)
    audited = Report(0, 0, notifications=1, matches=1, problems=[problem], unbalanced=1, notes=[ODD])
    ListedLogs(monkeypatch).bury(wait.delivery, letter)
    monkeypatch.setattr("arborcast.admin.dead_letters.letters", lambda *_: iter([(None, letter)]))
    monkeypatch.setattr("arborcast.dispatch.operations.waiting.Waiting.oldest", lambda *_, **__: ([wait], 0, Counter()))
    monkeypatch.setattr("arborcast.dispatch.operations.waiting.Waiting.with_last", lambda _, waits, *__: (waits, True))
    monkeypatch.setattr(arborcast.admin.control_log, "read_control", lambda *_: control)
    monkeypatch.setattr(arborcast.admin.control_log, "read_tree", lambda *_: control.table.topics)
    monkeypatch.setattr(arborcast.dispatch.operations.audit, "audit", lambda *_, **__: audited)
    monkeypatch.setattr(arborcast.admin.doctor, "doctor", lambda _: [Check("odd", "warn", ODD, ODD)])
    monkeypatch.setattr("arborcast.engine.embedded.questions.unreachable_reason", lambda _: "")
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ARBORCAST_KAFKA_REQUEST_TIMEOUT_S", "1")
    return home


COMMANDS = [
    ["waiting", "list"],
    ["dead-letters", "list"],
    ["dead-letters", "show", "n1"],
    ["subscriptions", "list"],
    ["topics", "list"],
    ["topics", "subscriptions", "a/b"],
    ["trace", "n1"],
    ["why", "-s", "s1", "-m", "n1"],
    ["audit"],
    ["doctor"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_prints_control_characters(engine: Path, arguments: list[str]) -> None:
    command = [*arguments, "--home", str(engine)]
    plain = CliRunner().invoke(app, command, env={"COLUMNS": "1000"}).output
    assert "\\u202edrow" in plain, "escaped, not left out"
    if arguments != ["dead-letters", "show", "n1"]:  # which ends with the unchanged payload
        assert not re.search(r"^\s*FORGED", plain, re.MULTILINE)
    colours = {"COLUMNS": "1000", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    coloured = CliRunner().invoke(app, command, env=colours).output
    for output in (plain, re.sub(r"\x1b\[(?!8m)[0-9;]*m", "", coloured)):
        assert "NEEDLE" in output, output
        assert is_printable(output)


def test_json_is_printable_and_exact(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = CliRunner().invoke(app, ["trace", "n1", "--json", "--home", str(engine)]).output
    assert json.loads(printed)["topic"] == TOPIC
    message = ReceivedMessage(ODD.encode(), TOPIC, None, ODD, 2, ODD)
    messages.print_message(message, json=True)
    line = capsys.readouterr().out
    assert json.loads(line)["payload"] == ODD
    messages.print_message(message, json=False)
    for each in (printed, line, capsys.readouterr().out):
        assert is_printable(each)
        assert "NEEDLE" in each


def test_errors_tracebacks_and_warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no log is set up, as in `listen`."""
    monkeypatch.setattr(logging, "lastResort", logging._StderrHandler(logging.WARNING))  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("arborcast.cli._only", lambda _: Mock(side_effect=ArborcastError(f"answered {ODD}")))
    with pytest.raises(SystemExit):
        command()
    terminal.print_error(f"answered {ODD}")
    terminal.guard()
    assert logging.lastResort is not None
    logging.lastResort.handle(logging.makeLogRecord({"msg": "refused: %s", "args": (ODD,), "levelno": logging.WARNING}))
    try:
        raise ValueError(ODD)
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    printed = capsys.readouterr().err
    assert printed.replace("\n", "").count("NEEDLE") >= 4
    assert "Traceback (most recent call last)" in printed
    assert is_printable(printed)


def test_a_long_table_is_that_of_rich(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 topics rich needed minutes."""
    rows = [("{urn:p}a/b", "", "retain"), ("c[bold]", "1.4", ""), ("a long cell with\x1bcontrols\n", "", "x")]
    printed = []
    for rows_of_rich in (1_000, 1):
        monkeypatch.setattr(terminal, "_STYLED_ROWS", rows_of_rich)
        terminal.print_table(("topic", "code", "facts"), rows)
        printed.append([each.rstrip() for each in capsys.readouterr().out.splitlines()])
    assert printed[0] == printed[1]


def test_a_note_to_a_closed_terminal_does_not_end_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Mock(write=Mock(side_effect=BrokenPipeError)))
    terminal.print_error("stopping the engine")


def test_a_closed_standard_stream_is_opened_to_the_null_device() -> None:
    """Otherwise the next file has its descriptor: a child process does not inherit it, and output goes into it."""
    script = (
        "import os; from arborcast.engine import terminal; terminal.guard(); terminal.print_line('x'); "
        "terminal.print_error('x'); null = os.stat(os.devnull); "
        "exit(not all(os.get_inheritable(n) and os.path.samestat(os.fstat(n), null) for n in range(3)))"
    )
    started = subprocess.run(["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, script], check=False)
    assert started.returncode == 0


def test_documents_are_exact_in_pipes_and_printable_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (False, True):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="utf-8")
        monkeypatch.setattr(stream, "isatty", lambda answer=is_terminal: answer)
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.print_document(ODD.encode())
        assert (raw.getvalue() == ODD.encode()) is not is_terminal
        assert is_printable(raw.getvalue().decode()) is is_terminal
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.print_line("Prüfung")
    assert raw.getvalue() == b"Pr\\xfcfung\n", "letters outside of the terminal's encoding"


def test_a_table_has_letters_outside_of_the_character_set(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.print_table(("topic",), [("Prüfung",)])
    assert raw.getvalue().split() == [b"topic", b"Pr\\xfcfung"]


def test_top_and_report() -> None:
    endpoints = [{"endpoint": ENDPOINT, "pushes": 4, "failed": 1, "mean_s": 2.0, "longest": 3.0}]
    samples = [MetricsSample(at=float(at), errors={ODD: float(at)}, refused={ODD: float(at)}) for at in (0, 5)]
    seen = EngineView(samples, endpoints, ODD)
    drawn = io.StringIO()
    looks = EngineWatch(["http://127.0.0.1:9"])
    looks.look = lambda: seen  # type: ignore[method-assign]
    top_frame.once(looks, ODD, drawn)
    assert "drow" in drawn.getvalue()
    assert is_printable(drawn.getvalue())
    html = page(seen, ODD, 0.0, 10.0)
    assert html.count("NEEDLE") >= 4
    assert is_printable(html)


def test_the_log_of_spark_s_jvm_removes_the_same_characters() -> None:
    text = (ROOT / "dispatch" / "spark" / "log4j2.properties").read_text(encoding="utf-8")
    (pattern,) = re.findall(
        r"^appender\.stderr\.layout\.pattern = %replace\{.+\}\{\[(.+)&&\[\^(.+)\]\]\}\{\?\}$", text, re.M
    )
    left_out, kept = (part.replace("\\\\", "\\") for part in pattern)
    classes = {r"\p{Cc}": r"\x00-\x1f\x7f-\x9f", r"\p{Zl}": r"\u2028", r"\p{Zp}": r"\u2029"}
    for name, members in classes.items():
        left_out = left_out.replace(name, members)
    left_out = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\u{found[1]:0>4}", left_out)
    odd = re.compile(f"[{left_out}]")
    for code in (*range(0x3000), 0xFEFF, 0xFFFD, 0x1F600, 0xE0001):
        character = chr(code)
        expected = odd.match(character) is not None and re.match(f"[{kept}]", character) is None
        assert expected is not is_printable(character), hex(code)


# Modules that print directly.
AROUND = {
    "engine/terminal.py": "the one place",
    "cli/watching.py": "gives the stream to `top`, which draws frames of `figures.printable` lines",
    "core/telemetry/log_format.py": "the one form of log lines, which passes `printable` too",
}

PRINTS = re.compile(
    r"(?<![\w.]) (print|Console|input) \( | sys\.(__)?std(out|err)(?!\.(isatty|flush|fileno)\()"
    r"| (typer|click)\.s?echo | traceback\.print | rich\ import\ [^\n]*print"
    r"| sys\.exit\(str\( | SystemExit\((?!\d*\)) | os\.write\([12],",
    re.VERBOSE,
)


def printing(source: str) -> bool:
    """Whether the code prints in any way; texts and comments are ignored."""
    if not re.search(r"print|Console|input|std(out|err)|echo|SystemExit|sys\.exit|os\.write", source):
        return False  # most modules, without tokenizing them
    texts = (tokenize.STRING, tokenize.COMMENT)
    code = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in texts]
    words = (f" {each.string} " if each.string in ("import", "from") else each.string for each in code)
    return bool(PRINTS.search("".join(words)))


def test_only_the_terminal_module_prints() -> None:
    package = ROOT / "src" / "arborcast"
    found = {str(file.relative_to(package)) for file in package.glob("*/**/*.py") if printing(file.read_text())}
    assert found == AROUND.keys(), "print with arborcast.engine.terminal instead"
    assert (package / "engine" / "terminal.py").samefile(ROOT / "engine" / "terminal.py")


def standard_error(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    """The standard error from now on. Not a fixture: pytest sets its own before the test begins."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


@pytest.mark.parametrize("terminal", [False, True])
def test_short_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    screen = standard_error(monkeypatch, terminal=terminal)
    with ProgressShown() as progress:
        progress("reading", 1, 2)
    assert screen.getvalue() == ""


def test_without_a_terminal_lines_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = standard_error(monkeypatch, terminal=False)
    with ProgressShown(quiet_s=0, line_every_s=0.01) as progress:
        progress("reading the control log", 1_200, 4_000)
        wait_until(lambda: screen.getvalue().count("\n") >= 2, "two lines")
    assert screen.getvalue().splitlines()[0] == "reading the control log: 1,200 of 4,000 (30 %) after 0 s"
    assert "\x1b" not in screen.getvalue()


def test_on_a_terminal_a_bar_is_drawn_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = standard_error(monkeypatch, terminal=True)
    monkeypatch.setattr(arborcast.engine.terminal, "_DRAWN_EVERY_S", 0.01)
    results = sys.stdout
    with ProgressShown(quiet_s=0) as progress:
        progress("reading \x1b[8mthe log", 1_200, 4_000)
        wait_until(lambda: "1,200 of 4,000 (30 %)" in screen.getvalue(), "a bar")
        progress("writing")
        wait_until(lambda: "writing" in screen.getvalue(), "the next stage")
        assert sys.stdout is results, "results may go into a file"
    assert "━" in screen.getvalue()
    assert "\\x1b[8mthe log" in screen.getvalue()
    assert "\x1b[2K" in screen.getvalue().rpartition("writing")[2], "the line is cleared"


def test_a_large_import_is_written_in_batches_with_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[int] = []

    class Log:
        def __init__(self, _kafka: KafkaSettings) -> None: ...

        def append(self, batch: list[ControlRecord]) -> int:
            written.append(len(batch))
            return 0

        def close(self) -> None: ...

    shown: list[tuple[str, int, int]] = []
    monkeypatch.setattr(arborcast.admin.control_log, "ControlLog", Log)
    monkeypatch.setattr(arborcast.admin.control_log, "read_tree", lambda _kafka: TopicTree())
    monkeypatch.setattr("arborcast.engine.embedded.questions.unreachable_reason", lambda _: "")
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    monkeypatch.setattr(ProgressShown, "__call__", lambda _self, *stage: shown.append(stage))
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"version": 1, "topics": [{"path": f"a/t{number}"} for number in range(5_000)]}))
    assert Shell()("topics", "import", str(file)) == "5000 added, 0 changed, 0 removed, 0 skipped\n"
    assert written == [2_000, 2_000, 1_000]
    assert ("comparing topics", 4_999, 5_000) in shown
    assert shown[-3:] == [("writing topics", start, 5_000) for start in (0, 2_000, 4_000)]
