"""`arborcast slo`: deliveries against their service level objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.documents import document
from arborcast.cli.common import (
    FATES,
    MOST,
    JsonOption,
    SubscriptionOption,
    existing,
    note_omitted,
    settings_of,
)
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_json, print_line

if TYPE_CHECKING:
    from arborcast.dispatch.operations.slo import Objective


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=FATES)(slo)


def slo(
    subscription: SubscriptionOption = "",
    owner: Annotated[
        str | None, typer.Option("--owner", help="Only deliveries to this subscriber's subscriptions.", metavar="NAME")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Maximum number of subscriptions.", min=0, max=MOST)] = 10,
    json: JsonOption = False,
) -> None:
    """Print the share of deliveries in time over 28 days, and the error budget left."""
    from arborcast.admin.slo import measured

    settings = settings_of()
    if settings.origins["tables.path"] == "data directory":
        existing(settings)
    found = measured(settings, limit, subscription, owner)
    objective = {"target": settings.slo.target, "latency_s": settings.slo.latency_s}
    if json:
        worst = [
            {"subscription": each.subscription, "owner": each.owner} | document(each.objective) for each in found.worst
        ]
        print_json(objective | document(found.all) | {"subscriptions": worst, "more": found.more})
        return
    print_line(f"objective: {settings.slo.target:.5g} of deliveries within {settings.slo.latency_s:g} s, over 28 days")
    print_line(in_words(found.all))
    for name, its_owner, each in found.worst:
        print_line(f"{one_line(name)}{f' of {one_line(its_owner)}' if its_owner else ''}: {in_words(each)}")
    note_omitted(found.more)


def in_words(objective: Objective) -> str:
    """One line."""
    apart = f"; {objective.receiver:,} apart, for faults of receivers" if objective.receiver else ""
    if objective.share is None or objective.budget_left is None:
        return f"no deliveries{apart}"
    return (
        f"{objective.share:.3%} in time ({objective.late:,} late, {objective.lost:,} lost), "
        f"{objective.budget_left:.1%} of the error budget left, "
        f"burn rate {objective.burn_1h:.1f} over 1 h, {objective.burn_6h:.1f} over 6 h{apart}"
    )
