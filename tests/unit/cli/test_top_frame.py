from __future__ import annotations

import io
import json
import os
import pty
import sys
import termios
import unicodedata
from itertools import repeat
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.cli import app, top_frame, watching
from arborcast.cli.top_frame import frame
from arborcast.console.screens.engine.feed import _shown
from arborcast.core.errors import ConfigError
from arborcast.core.telemetry.metrics import Registry
from arborcast.engine.monitoring.attention import tiles
from arborcast.engine.monitoring.samples import NO_BOUND, MetricsSample, ProcessFigures
from arborcast.engine.monitoring.summary import Summary, document, first_view
from arborcast.engine.monitoring.watching import EngineView, EngineWatch, base_url
from arborcast.engine.processes.errors import StackError

AWAY = Mock(side_effect=OSError("no route"))
NAMES = ("dispatch-jvm", "dispatch-workers", "dispatch-driver", "kafka", "gateway", "supervisor", "console")


def busy_engine(count: int = 120) -> EngineView:
    """Ten minutes of 1,000/s, each to three subscribers, of which one is slow."""
    samples = []
    for number in range(count):
        done = number * 5_000.0
        samples.append(
            MetricsSample(
                at=1_767_225_600.0 + number * 5,
                parts={"kafka": True, "gateway": True, "dispatch": True},
                accepted=done,
                attempts={"delivered": 2 * done, "parked": done},
                delivery=((0.05, done), (0.1, 2 * done), (NO_BOUND, 2 * done)),
                append=((0.005, done), (NO_BOUND, done)),
                lag_records=12,
                lag_seconds=0.2,
                waiting={"parked": 51_234, "due": 17},
                subscriptions=3,
                processes={
                    name: ProcessFigures(number * 5 * 0.3, (index + 1) * 1e8, 20, 300)
                    for index, name in enumerate(NAMES)
                },
            )
        )
    slow = {"endpoint": f"http://{'slow.' * 20}example/", "pushes": 12, "failed": 3, "mean_s": 2.5, "longest": 15.0}
    quick = {"endpoint": "http://quick.example/", "pushes": 120_000, "failed": 0, "mean_s": 0.002, "longest": 0.1}
    return EngineView(samples, [slow, quick])


def line(lines: list[str], start: str) -> str:
    (found,) = [one for one in lines if one.startswith(start)]
    return found


def test_problems_and_work_queues() -> None:
    samples = busy_engine(3).samples
    last = samples[-1]

    def shown(**changes: Any) -> list[str]:
        return frame(EngineView([*samples, msgspec.structs.replace(last, **changes)]), "x")

    assert "NOT READY: kafka" in shown(parts={"kafka": False, "gateway": True})[0]
    assert "refused" in frame(EngineView(problem="http://h:1: refused"), "x")[2]
    assert "SUSPENDED 2   subscriptions 3" in line(shown(suspended=2), "SUSPENDED")
    queues = shown(requests={"waiting": 12, "executing": 3}, servers={"idle": 0, "busy": 3, "sick": 1})
    for words in ("requests 12 waiting", "3 executing", "workers 3 busy, 1 sick"):
        assert words in "\n".join(queues)
    assert "servers" not in "\n".join(shown())


def test_an_endpoint_cannot_write_to_the_terminal() -> None:
    evil = {"endpoint": "http://\x1b[2J\u202eevil/", "pushes": 1, "failed": 0, "mean_s": 1.0, "longest": 1.0}
    text = "\n".join(frame(EngineView(busy_engine(3).samples, [evil]), "x", 80, 30))
    assert "http://?[2J?evil/" in text
    assert all(character == "\n" or unicodedata.category(character)[0] != "C" for character in text)


def test_q_exits_and_restores_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(terminal)
        os.write(ours, b"xQ")
        top_frame.forever(EngineWatch(["h:1"], fetch=AWAY), "h:1", io.TextIOWrapper(io.BytesIO()), 600.0)
        assert termios.tcgetattr(terminal) == before
    os.close(ours)


def test_several_processes_without_a_monitor_are_added_up() -> None:
    clock = iter((100.0, 110.0))
    accepted = iter((10, 20, 30, 60, 40, 60))

    def fetch(url: str) -> bytes:
        if not url.endswith("/metrics"):
            raise FileNotFoundError(url)
        registry = Registry()
        registry.counter("arborcast_gateway_accepted_total", "A.").add(by=next(accepted))
        registry.counted("process_cpu_seconds_total", "C.", lambda: 1.0)
        return registry.text().encode()

    watch = EngineWatch(["http://one:1/metrics", "two:2"], fetch, lambda: next(clock))
    watch.look()
    seen = watch.look()
    assert [sample.accepted for sample in seen.samples] == [30, 90]
    assert set(seen.samples[-1].processes) == {"one:1", "two:2"}
    clock = iter((110.0 - 86_400,))
    assert len(watch.look().samples) == 1, "the clock was put back, so the others are of the future"
    out = io.StringIO()
    assert top_frame.once(EngineWatch(["one:1"], fetch=AWAY), "one:1", out) is False
    assert "no route" in out.getvalue()


def test_notations_of_addresses() -> None:
    assert base_url("localhost:9464") == "http://localhost:9464"
    assert base_url("https://x/arborcast/metrics") == "https://x/arborcast"
    for wrong in ("ftp://x", "http://", "::", "http://x:port"):
        with pytest.raises(ConfigError, match="http://host:port"):
            base_url(wrong)


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (200, 60)])
def test_important_figures_are_not_cut_off(width: int, height: int) -> None:
    seen = busy_engine()
    last = seen.samples[-1]
    troubled = msgspec.structs.replace(
        last,
        at=last.at + 5,
        parts={"kafka": True, "gateway": True, "dispatch": False},
        breakers={"open": 12.0},
        in_flight={"batch": 250.0, "redelivery": 14.0},
        waiting={"parked": 1_234_567, "due": 99_999},
        refused={"InvalidRequest": 88_888.0},
    )
    lines = frame(
        EngineView([*seen.samples, troubled], seen.endpoints, "no answer"), "/srv/" + "long/" * 40, width, height
    )
    assert len(lines) <= height
    assert all(len(one) <= width for one in lines)
    assert "NOT READY: dispatch" in lines[0]
    assert lines[0].endswith("00:10:00 UTC")
    assert lines[1] == "! no answer"
    assert "264" in line(lines, "pushes in flight")
    facts = "   ".join(one for one in lines if one.startswith(("subscriptions", "given up", "refused", "breakers")))
    assert facts == (
        "subscriptions 3   waiting for retry 1.2 M   due now 100.0 k   given up 0   refused 88.9 k   breakers open 12"
    )
    assert line(lines, "process ").split() == ["process", "cpu", "memory", "threads", "files"]
    shown = [one for one in lines if one.startswith(NAMES)]
    assert all(one.endswith("300") for one in shown)
    assert len(shown) >= (len(NAMES) if height > 20 else len(NAMES) - 2)
    if height > 24:
        assert line(lines, "http://quick").endswith("100 ms")


def test_an_ascii_terminal() -> None:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="ascii")
    pages = {"http://h:1/recent.json": msgspec.json.encode(list(busy_engine().samples)), "http://h:1/status.json": b""}
    top_frame.once(EngineWatch(["h:1"], pages.__getitem__), "x", out)
    out.flush()
    shown = written.getvalue().decode("ascii")
    assert "accepted /s" in shown
    assert "?" not in shown


def test_an_engine_is_found_again_at_another_port() -> None:
    """Ports change with each start."""
    pages = {"http://one:1/recent.json": msgspec.json.encode(list(busy_engine(3).samples))}
    addresses = iter(("one:1", "one:1", None, "two:2"))

    def fetch(url: str) -> bytes:
        if url.endswith("/recent.json") and url not in pages:
            raise ConnectionRefusedError(111, "Connection refused")
        if url in pages:
            return pages[url]
        raise FileNotFoundError(url)

    def find() -> str:
        address = next(addresses)
        if address is None:
            raise StackError("no engine runs in /srv")
        return address

    watch = EngineWatch(fetch=fetch, find=find)
    assert (len(watch.look().samples), watch.look().problem) == (3, "")
    pages.clear()
    ended = watch.look()
    assert (len(ended.samples), ended.problem) == (3, "no engine runs in /srv")
    pages["http://two:2/recent.json"] = msgspec.json.encode(list(busy_engine(4).samples))
    again = watch.look()
    assert (len(again.samples), again.problem) == (4, "")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "no process listens there"),
        (TimeoutError("timed out"), "no answer in time"),
        (UnicodeError("label empty or too long"), "not a host name"),
        (OSError("http://h:1/metrics answered 500"), "answered 500"),
        (b"<html>welcome</html>", "is not Arborcast"),
        (FileNotFoundError("http://h:1/metrics is not there"), "is not there"),
    ],
)
def test_the_error_for_a_wrong_address_names_its_server(answer: Exception | bytes, problem: str) -> None:
    seen = EngineWatch(["h:1"], Mock(side_effect=repeat(answer))).look()
    assert not seen.samples
    assert seen.problem.startswith("http://h:1: ")
    assert problem in seen.problem


def watch_of(*views: EngineView) -> EngineWatch:
    looks, watch = iter(views), EngineWatch(["h:1"])
    watch.look = lambda: next(looks)  # type: ignore[method-assign]  # prepared looks
    return watch


def test_all_views_have_the_same_figures() -> None:
    """After ten minutes at 1,000/s a minute that begins at 100/s and ends at 400/s."""
    samples = list(busy_engine().samples)
    before = samples[-1]
    for number in range(1, 13):
        done = before.accepted + number * 500 + max(0, number - 10) * 1_500
        changes = {"at": before.at + number * 5, "accepted": done, "attempts": {"delivered": 2 * done, "parked": done}}
        samples.append(msgspec.structs.replace(before, **changes))
    seen = EngineView(samples)
    assert Summary.current(samples).accepted == pytest.approx(150)
    assert document(seen, "x")["rates"] == pytest.approx({"accepted": 150, "delivered": 300, "attempts": 450})
    assert [each.value for each in tiles(samples)[:2]] == ["150", "300"]
    assert [value for _, value in _shown(seen, "", {}, samples[-1].at).tiles[:2]] == ["150", "300"]
    lines = {each[:20].strip(): each[20:29].strip() for each in frame(seen, "x")}
    assert (lines["accepted /s"], lines["delivered /s"], lines["not delivered /s"]) == ("150", "300", "150")


@pytest.mark.parametrize("gap", [1, 5])
def test_rates_are_right_after_an_outage_or_a_restart(gap: int) -> None:
    samples = list(busy_engine(24).samples)
    for number in range(10, 10 + gap):
        samples[number] = MetricsSample(at=samples[number].at)
    whole = Summary(samples)
    assert (whole.accepted, whole.total("accepted")) == (1_000, 115_000)
    assert whole.totals("attempts") == {"delivered": 230_000, "parked": 115_000}
    assert whole.delivery_median == pytest.approx(0.05)
    counted = [*range(5), *range(1, 6)]
    restarted = [msgspec.structs.replace(each, accepted=5_000.0 * n) for each, n in zip(samples, counted, strict=False)]
    assert Summary(restarted[:10]).total("accepted") == 45_000


def test_json_has_null_for_unknown_figures_and_states_of_parts() -> None:
    shown = document(EngineView([MetricsSample(at=0)]), "x")
    assert (shown["rates"]["accepted"], shown["ready"]) == (None, None)
    assert document(EngineView(problem="away"), "x") == {"engine": "x", "problem": "away"}
    down = msgspec.structs.replace(busy_engine(2).samples[-1], parts={"kafka": False, "gateway": True})
    shown = document(EngineView([down]), "x")
    assert (shown["ready"], shown["parts"]) == (False, {"kafka": False, "gateway": True})


def test_the_command_takes_two_samples_for_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    watch = watch_of(EngineView(busy_engine(1).samples), EngineView(busy_engine(2).samples))
    assert len(first_view(watch, slept.append).samples) == 2
    assert len(slept) == 1
    for seen, status in ((EngineView(busy_engine(3).samples), 0), (EngineView(problem="away"), 1)):
        monkeypatch.setattr(watching, "_watch", lambda *_, seen=seen: (watch_of(seen), "x"))
        result = CliRunner().invoke(app, ["top", "--json"])
        assert (result.exit_code, json.loads(result.stdout)["problem"]) == (status, seen.problem or None)
