from __future__ import annotations

import asyncio

from ingest.state.changes import KeyedLocks


def test_holders_of_one_key_take_turns_and_others_do_not_wait() -> None:
    async def scenario() -> list[str]:
        locks = KeyedLocks()
        order: list[str] = []

        async def work(key: str, name: str) -> None:
            async with locks.hold(key):
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        await asyncio.gather(work("k", "first"), work("k", "second"), work("other", "third"))
        assert len(locks) == 0
        return order

    order = asyncio.run(scenario())
    assert order.index("first ends") < order.index("second begins")
    assert order.index("third begins") < order.index("first ends")


def test_a_lock_is_gone_when_its_holder_fails_or_is_cancelled() -> None:
    async def scenario() -> None:
        locks = KeyedLocks()

        async def hold() -> None:
            async with locks.hold("k"):
                await asyncio.sleep(60)

        holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
        await asyncio.sleep(0)
        assert "k" in locks
        waiter.cancel()
        holder.cancel()
        await asyncio.gather(holder, waiter, return_exceptions=True)
        assert "k" not in locks

    asyncio.run(scenario())
