from __future__ import annotations

from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, OK, REFUSED, START_MS, World


def test_lifespan_ends_what_waits_whether_tried_or_not() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
    for number in range(510):
        world.park("s", f"n{number}")

    world.run(DAY_MS + 60_000)

    assert set(world.states().values()) == {"expired"}
    assert {row.error for row in world.buried} <= {"lifespan", "connect"}
    assert len(world.buried) == 510
    assert (world.log, world.redelivery.lanes) == ({}, 0)
    assert world.lanes.for_workers()[0] == frozenset()


def test_what_its_publisher_wants_no_more_ends_and_leaves_no_dead_letter() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
    for number in range(510):
        world.park("s", f"short{number}", valid_until_ms=START_MS + 5_000)
    for number in range(10):
        world.park("s", f"long{number}", valid_until_ms=START_MS + 2 * DAY_MS)
    world.run(5_000)

    assert all(world.states()["s", f"short{number}"] == "expired" for number in range(510))
    assert {row.error for row in world.attempts if row.state == "expired"} <= {"lifespan", "connect"}
    assert any("ended at 2023-11-14T22:13:25.000Z" in row.detail for row in world.attempts if row.state == "expired")
    assert (world.buried, world.store.count) == ([], 10)

    world.run(DAY_MS)

    assert set(world.states().values()) == {"expired"}
    assert {letter.notification.id[:4] for letter in world.buried} == {"long"}
    assert len(world.buried) == 10
    assert (world.log, world.redelivery.lanes) == ({}, 0)


def test_a_clock_that_is_put_back_delays_nobody_for_longer_than_was_promised() -> None:
    world = World()
    for name in ("failing", "away", "strict"):
        world.subscribe(name, order="strict" if name == "strict" else "acceptance")
        world.endpoint(name).answer = lambda ids: BROKEN
        world.park(name, f"{name}1")
    world.endpoint("away").answer = lambda ids: REFUSED
    world.run(30_000)
    probed = len(world.arrived("away"))
    for name in ("failing", "strict"):
        world.endpoint(name).answer = lambda ids: OK

    world.set_clock(-HOUR_MS)
    world.run(1_000)

    assert [world.states()[name, f"{name}1"] for name in ("failing", "strict")] == ["delivered", "delivered"]
    assert len(world.arrived("away")) == probed + 1
    world.endpoint("away").answer = lambda ids: OK
    world.run(61_000)
    assert set(world.states().values()) == {"delivered"}
