"""Calls of admin functions in threads, with shared results."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from unittest.mock import Mock

import pytest

from arborcast.console import questions as module
from arborcast.console.questions import Answer, QuestionRefused, Questions
from arborcast.core import liveness
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings

KAFKA = KafkaSettings(prefix="test")


@pytest.fixture
def questions() -> Questions:
    return Questions(lambda: KAFKA)


def counting() -> Mock:
    """A function that returns its argument."""
    return Mock(side_effect=lambda number: number)


class Blocking:
    """A function that returns when it is released."""

    def __init__(self) -> None:
        self.calls = self.running = self.most_running = 0
        self._changed = threading.Condition()
        self._released = False

    def __call__(self, number: int = 0) -> int:
        with self._changed:
            self.calls += 1
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self._changed.wait_for(lambda: self._released)
            self.running -= 1
        return number

    def release(self) -> None:
        with self._changed:
            self._released = True
            self._changed.notify_all()


async def test_equal_calls_share_a_run_and_its_result(questions: Questions) -> None:
    """Until the result is too old or something has changed."""
    function = counting()
    some = await asyncio.gather(*(questions.recent(function, 1, age_s=0) for _ in range(5)))
    assert ({each.at for each in some}, some[0].value) == ({some[0].at}, 1)
    assert function.call_count == 1
    assert await questions.recent(function, 1, age_s=1_000) is some[-1]
    assert await questions.recent(function, 1, age_s=0) is not some[-1]
    questions.forget()
    await questions.recent(function, 1, age_s=1_000)
    assert function.call_count == 3
    await questions.recent(function, 3, age_s=1_000)
    assert function.call_count == 4


async def test_a_call_started_before_a_change_is_not_shared_after_it(questions: Questions) -> None:
    function = Blocking()
    before = asyncio.ensure_future(questions.recent(function, 1, age_s=1_000))
    await asyncio.sleep(0)
    questions.forget()
    after = asyncio.ensure_future(questions.recent(function, 1, age_s=1_000))
    await asyncio.sleep(0)
    function.release()
    await asyncio.gather(before, after)
    assert function.calls == 2


async def test_the_text_of_an_error_is_the_answer(questions: Questions) -> None:
    def refuse() -> None:
        raise ConfigError("error: no such topic")

    def break_down() -> None:
        raise KeyError("a secret")

    refused = await questions.recent(refuse, age_s=0)
    assert (refused.value, refused.wrong) == (None, "error: no such topic")
    with pytest.raises(ConfigError, match="no such topic"):
        await questions.ask(refuse)
    broken = await questions.recent(break_down, age_s=0)
    assert ("console's log" in broken.wrong, "secret" in broken.wrong) == (True, False)
    answer = await questions.recent(open, "/nowhere/at-all", age_s=0)
    assert answer.wrong == "/nowhere/at-all cannot be read or written: there is no such file or folder"


async def test_a_closed_page_does_not_cancel_a_shared_call(questions: Questions) -> None:
    function = Blocking()
    one, other = (asyncio.ensure_future(questions.recent(function, 1, age_s=0)) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    function.release()
    assert (await other).value == 1
    assert function.calls == 1


async def test_reference_cycles_of_a_call_are_freed_with_its_result(questions: Questions) -> None:
    """A client of Kafka is such a cycle, and the collector is rarely due in a process with many objects."""

    class Client:
        def __init__(self) -> None:
            self.itself = self

    left: list[weakref.ref[Client]] = []

    def call() -> None:
        left.append(weakref.ref(Client()))

    gc.disable()
    try:
        await questions.ask(call)
        assert left[0]() is None
    finally:
        gc.enable()


async def test_results_are_bounded_slow_ones_kept_longer(questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 5)
    for number in range(15):
        await questions.recent(counting(), number, age_s=1_000)
    assert len(questions._recent) == 6
    assert Answer(None, "", 0.0, took_s=2.0).rest_s == pytest.approx(20)


async def test_two_run_at_a_time_and_few_wait(questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of closed pages."""
    monkeypatch.setattr(module, "_MOST_AT_WORK", 5)
    function = Blocking()
    pages = [asyncio.ensure_future(questions.recent(function, number, age_s=0)) for number in range(30)]
    while function.running < 2:
        await asyncio.sleep(0.01)
    for page in pages[:4]:
        page.cancel()
    assert "try again" in (await questions.recent(function, 1_000, age_s=0)).wrong
    with pytest.raises(QuestionRefused, match="try again"):
        await questions.ask(function, 1_000)
    function.release()
    await asyncio.gather(*pages, return_exceptions=True)
    assert function.most_running == 2
    assert function.calls == 5
    assert await questions.ask(function, 1_000) == 1_000


async def test_at_the_time_limit_the_thread_is_free(questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads read without an end, as from a log of any length; then further calls are answered."""
    monkeypatch.setattr(module, "_LIMIT_S", 0.1)
    ended: list[int] = []

    def read_forever(number: int) -> None:
        try:
            while True:
                liveness.beat()
                time.sleep(0.001)
        finally:
            ended.append(number)

    some = await asyncio.gather(*(questions.recent(read_forever, number, age_s=0) for number in range(2)))
    assert ["no answer within 0.1 s" in each.wrong for each in some] == [True, True]
    monkeypatch.setattr(module, "_LIMIT_S", 120.0)
    assert await questions.ask(counting(), 7) == 7
    assert ended


async def test_a_queued_call_ends_at_the_time_limit(questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    blocking, waiting = Blocking(), counting()
    busy = [asyncio.ensure_future(questions.ask(blocking, number)) for number in range(2)]
    while blocking.running < 2:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(module, "_LIMIT_S", 0.05)
    with pytest.raises(QuestionRefused, match="no answer within"):
        await questions.ask(waiting, 1)
    blocking.release()
    await asyncio.gather(*busy)
    monkeypatch.setattr(module, "_LIMIT_S", 120.0)
    assert await questions.ask(waiting, 2) == 2
    assert waiting.call_count == 1


@pytest.mark.slow
def test_results_from_tables_load_no_pandas() -> None:
    """Arrow imports it if it can: that takes 20 MiB."""
    program = (
        "import sys; from arborcast.console.__main__ import main; main(['--config', '/missing.toml']);"
        "from arborcast.dispatch.operations import slo; sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
