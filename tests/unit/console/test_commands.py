"""Commands that are run for pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from arborcast.console.commands import CommandAnswer, CommandFailed, Commands
from tests.support.console_answers import Asked, answering

LIST = ("queues", "list")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return answering(monkeypatch, {LIST: [1], ("audit",): CommandFailed("no")})


def run(tmp_path: Path, work: Callable[[Commands], Awaitable[None]]) -> None:
    async def running() -> None:
        await work(Commands(tmp_path, None))

    asyncio.run(running())


def test_who_asks_the_same_at_a_time_shares_a_run(tmp_path: Path, asked: Asked) -> None:
    async def work(commands: Commands) -> None:
        some = await asyncio.gather(*(commands.lately(*LIST, age_s=0) for _ in range(5)))
        assert {each.at for each in some} == {some[0].at}
        assert some[0].value == [1]
        assert len(asked) == 1
        await commands.lately(*LIST, options={"limit": "3"}, age_s=0)
        assert len(asked) == 2

    run(tmp_path, work)


def test_an_answer_is_good_for_a_while_and_until_something_is_changed(tmp_path: Path, asked: Asked) -> None:
    async def work(commands: Commands) -> None:
        first = await commands.lately(*LIST, age_s=1_000)
        assert await commands.lately(*LIST, age_s=1_000) is first
        commands.forget()
        assert await commands.lately(*LIST, age_s=1_000) is not first
        assert len(asked) == 2

    run(tmp_path, work)


@pytest.mark.usefixtures("asked")
def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    async def work(commands: Commands) -> None:
        said = await commands.lately("audit", age_s=0)
        assert (said.value, said.wrong) == (None, "no")

    run(tmp_path, work)


def test_who_leaves_takes_nothing_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = asyncio.Event()

    async def ask(_self: Commands, *_words: str, **_rest: object) -> int:
        await may_end.wait()
        return 1

    monkeypatch.setattr(Commands, "ask", ask)

    async def work(commands: Commands) -> None:
        one, other = (asyncio.ensure_future(commands.lately(*LIST, age_s=0)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        may_end.set()
        assert (await other).value == 1

    run(tmp_path, work)


@pytest.mark.usefixtures("asked")
def test_not_everything_is_remembered(tmp_path: Path) -> None:
    async def work(commands: Commands) -> None:
        for number in range(300):
            await commands.lately(*LIST, options={"limit": str(number)}, age_s=1_000)
        assert len(commands._lately) < 200

    run(tmp_path, work)


def test_a_page_that_stays_open_asks_less_of_what_takes_long() -> None:
    assert CommandAnswer(None, "", 0.0, took_s=2.0).rest_s == pytest.approx(20)


def test_so_many_questions_wait_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of pages that were left: a viewer has as many different questions as there are numbers."""
    may_end = asyncio.Event()
    begun = 0

    async def ask(_self: Commands, *_words: str, **_rest: object) -> int:
        nonlocal begun
        begun += 1
        await may_end.wait()
        return 1

    monkeypatch.setattr(Commands, "ask", ask)

    async def work(commands: Commands) -> None:
        pages = [
            asyncio.ensure_future(commands.lately(*LIST, options={"limit": str(number)}, age_s=0))
            for number in range(300)
        ]
        await asyncio.sleep(0)
        for page in pages[:20]:
            page.cancel()
        refused = await commands.lately(*LIST, options={"limit": "more"}, age_s=0)
        assert "ask again" in refused.wrong
        assert begun < 100
        may_end.set()
        await asyncio.gather(*pages, return_exceptions=True)
        assert (await commands.lately(*LIST, options={"limit": "more"}, age_s=0)).value == 1

    run(tmp_path, work)
