from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.matching.bases import FileBases
from arborcast.dispatch.matching.view import RoutingView
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription


class PlayedControlLog:
    """A follower of a control log to which the test adds."""

    def __init__(self, view: RoutingView) -> None:
        self._view = view
        self._waiting: list[Subscription] = []
        self.position = 0

    def add(self, name: str) -> None:
        self._waiting.append(Subscription(name, EndpointReference("http://here/")))

    def read_to_end(self, timeout_s: float) -> int:
        while self._waiting:
            self._view.apply(SubscriptionRecord(self._waiting.pop(0)), self.position)
            self.position += 1
        return self.position

    def close(self) -> None:
        """Nothing is open."""


def test_updates_that_have_stopped_take_no_steps_from_those_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = RoutingView(KafkaSettings(), cast(Any, None), FileBases(tmp_path / "bases"))
    log = PlayedControlLog(view)
    monkeypatch.setattr(view, "_follower", log)
    stopped, refused = threading.Event(), list[InfrastructureError]()

    def late() -> None:
        try:
            view.advance(1.0, False, stopped=stopped.is_set)
        except InfrastructureError as error:
            refused.append(error)

    with view._lock:  # a batch that starts
        waiting = threading.Thread(target=late)
        waiting.start()
        stopped.set()
        log.add("s")
    waiting.join()
    view.advance(1.0, True)
    log.add("t")
    with pytest.raises(InfrastructureError, match="have stopped"):
        view.advance(1.0, False, stopped=stopped.is_set)
    assert refused
    assert len(view.advance(1.0, False).steps) == 1
    view.close()
