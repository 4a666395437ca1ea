"""`arborcast access`: whether those who have subscriptions may still have them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.errors import ConfigError
from core.printable import one_line
from jobs.cli.common import ConfigOption, HomeOption, JsonOption, kafka_of, settings_of
from jobs.terminal import console, print_json

if TYPE_CHECKING:
    from ingest.access.policy import ReviewFinding
    from jobs.settings.loading import Settings


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(help="Who may do what, against what is there.", no_args_is_help=True)
    # A group of one command would be that command.
    group.callback()(lambda: None)
    group.command("check")(check)
    app.add_typer(group, name="access")


def check(
    end: Annotated[bool, typer.Option("--end", help="End those of which it is certain.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List subscriptions whose owners might not make them today. The exit status is 1 when any are left.

    Rights are checked when a subscription is made; what is taken away later is found here.
    """
    from ingest.access.policy import review
    from jobs.cli.topics_work import read_table

    settings = settings_of(config, home)
    find, policy, others = _rights(settings)
    kafka = kafka_of(config, home)
    table = read_table(kafka)
    found = list(review(table.subscriptions(), find, policy, others_know_users=others))
    ended = [finding for finding in found if finding.certain] if end else []
    if ended:
        from contextlib import closing

        from topic_model.records.control import ending
        from topic_model.records.control_log import ControlLog

        at_ms = int(time.time() * 1000)
        records = [record for each in ended for record in ending(each.subscription.id, "removed", at_ms)]
        with closing(ControlLog(kafka)) as log:
            log.append(records)
    if json:
        print_json([_facts(finding, ended=finding in ended) for finding in found])
    else:
        _show(found, ended)
    if len(found) > len(ended):
        raise typer.Exit(1)


def _rights(settings: Settings) -> tuple[Any, Any, bool]:
    from ingest.access.policy import DEFAULT, read_policy
    from jobs.gateway.parts import user_source

    access = settings.access
    methods = access.chosen()
    if not methods:
        raise ConfigError("access.methods is not set: nobody has to say who it is, and everybody may do everything")
    policy = DEFAULT
    if access.policy_file:
        try:
            policy = read_policy(Path(access.policy_file).read_text(encoding="utf-8"), access.policy_file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the policy file {access.policy_file} cannot be read: {error}") from error
    others = "bearer" in methods or ("certificate" in methods and access.certificate_users == "any")
    if set(methods) == {"bearer"}:
        # All users are the issuer's; there is no file of ours to look into.
        return (lambda _name: None), policy, others
    return user_source(settings).find, policy, others


def _facts(finding: ReviewFinding, *, ended: bool) -> dict[str, Any]:
    subscription = finding.subscription
    return {
        "id": subscription.id,
        "owner": subscription.owner,
        "topics": [each.text for each in subscription.topics],
        "endpoint": subscription.consumer.address,
        "reason": finding.reason,
        "certain": finding.certain,
        "ended": ended,
    }


def _show(found: list[ReviewFinding], ended: list[ReviewFinding]) -> None:
    out = console()
    if not found:
        out.print("every subscription belongs to somebody who might make it today", highlight=False)
        return
    from rich.markup import escape

    for finding in found:
        subscription = finding.subscription
        topics = " and ".join(each.text for each in subscription.topics) or "everything"
        state = "ended" if finding in ended else "there" if finding.certain else "there, not certain"
        line = f"{subscription.id}  {subscription.owner or 'nobody'}  {topics}  {finding.reason}  ({state})"
        out.print(escape(one_line(line)), highlight=False, soft_wrap=True)
    if not ended and any(finding.certain for finding in found):
        out.print("end those of which it is certain with --end", highlight=False)
