from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.stream import HotPath
from arborcast.dispatch.matching.bases import FileBase
from arborcast.dispatch.matching.view import SharedView
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.spark.query_supervisor import StopGate
from tests.support.dispatch_job import job_settings


class Sent:
    """A broadcast of what an earlier run of the batch has settled."""

    destroyed = 0

    def destroy(self) -> None:
        self.destroyed += 1


class View:
    read_s = 0.0

    def listen(self, listener: object) -> None: ...

    def refresh(self, timeout_s: float) -> SharedView:
        return SharedView(FileBase("base"), None, 0)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    broadcast = Sent()
    monkeypatch.setattr(HotPath, "_before", lambda self, frame, batch: broadcast)
    monkeypatch.setattr(HotPath, "_diversions", lambda self: None)
    monkeypatch.setattr(HotPath, "_held", lambda self: frozenset())
    return broadcast


def hot(view: View) -> HotPath:
    return HotPath(
        job_settings(Path("unused"), KafkaSettings()),
        cast(Any, view),
        cast(Any, None),
        StopGate(),
        JobMetrics(),
        lambda reports: None,
    )


def test_what_was_broadcast_for_a_batch_goes_with_it(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HotPath, "_run", lambda self, frame, job: [])

    hot(View()).run_batch(cast(Any, None), 0)

    assert sent.destroyed == 1


def test_also_when_the_batch_fails_in_the_workers(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> NoReturn:
        raise RuntimeError("a worker died for the fourth time")

    monkeypatch.setattr(HotPath, "_run", failed)
    path = hot(View())

    for attempt in range(1, 4):
        with pytest.raises(RuntimeError, match="fourth time"):
            path.run_batch(cast(Any, None), 0)
        assert sent.destroyed == attempt


def test_also_when_it_fails_before_them(sent: Sent) -> None:
    class Away(View):
        def refresh(self, timeout_s: float) -> NoReturn:
            raise InfrastructureError("Kafka is away")

    with pytest.raises(InfrastructureError, match="away"):
        hot(Away()).run_batch(cast(Any, None), 0)

    assert sent.destroyed == 1
