"""Triggers: publications of the engine itself when a notification matches."""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple

import msgspec

from arborcast.admin.subscriptions import conditions_of, expression_of
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.suspensions import State


class ListedTrigger(msgspec.Struct, frozen=True):
    """A trigger. `payload` is None if it publishes the payload of the matching notification."""

    trigger: str
    id: str
    state: State | Literal["no topic"]
    expression: str
    only_if: str
    publishes: str
    payload: str | None
    owner: str
    created_ms: int


class TriggerList(NamedTuple):
    """Triggers by name, and the number of the others."""

    triggers: tuple[ListedTrigger, ...]
    more: int


def one(control: ControlView, name: str) -> dict[str, str | None] | None:
    """The action of the trigger of this name; None without one."""
    for each in listed(control, sys.maxsize).triggers:
        if each.trigger == name:
            return {"on": each.expression, "publishes": each.publishes, "payload": each.payload}
    return None


def listed(control: ControlView, limit: int) -> TriggerList:
    """The first triggers of the list."""
    ordered = sorted(
        filter(None, (control.table.get(each.id) for each in control.table.triggers)),
        key=lambda each: each.consumer.address,
    )
    found = (
        ListedTrigger(
            trigger=each.trigger.name,
            id=each.id,
            # Without its topic it cannot publish.
            state="no topic" if each.trigger.target is None else control.suspensions.state_of(each),
            expression=expression_of(each),
            only_if=conditions_of(each),
            publishes=each.trigger.topic,
            payload=each.trigger.payload or None,
            owner=each.owner,
            created_ms=each.created_ms,
        )
        for each in ordered[:limit]
        if each.trigger is not None
    )
    shown = tuple(found)
    return TriggerList(shown, len(ordered) - len(shown))
