"""What `arborcast subscriptions list` looks like."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import arborcast.admin.control_log
import arborcast.cli.subscriptions
from arborcast.admin.moments import iso
from arborcast.cli import app
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.subscriptions import EndpointReference, Subscription


def listed(monkeypatch: pytest.MonkeyPatch, *names: str, options: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """The lines on standard output, and what stands on standard error."""
    control = ControlView()
    for name in names:
        endpoint = EndpointReference(f"http://{name}/{'long/' * 20 * (name == 'other')}")
        control.apply(
            SubscriptionRecord(
                Subscription(name, endpoint, f"http://b/{name}", (parse_friendly("a//."),), created_ms=5_000)
            )
        )
    if "away" in names:
        control.apply(SubscriptionSuspended("away", "refused", 1_000, 2_000))
    monkeypatch.setattr(arborcast.admin.control_log, "read_control", lambda *_: control)
    monkeypatch.setattr(arborcast.cli.subscriptions, "kafka_of", lambda *_: None)
    done = CliRunner().invoke(app, ["subscriptions", "list", *options], env={"COLUMNS": "60"})
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines(), done.stderr


def test_it_has_a_heading_with_everything_below_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    (heading, away, why, other, well), _ = listed(monkeypatch, "well", "other", "away")
    assert heading.split() == ["subscription", "state", "reliability", "endpoint", "topics"]
    for line, name, state in ((away, "away", "suspended"), (well, "well", "active")):
        assert line.startswith(name)
        assert line.index(state) == heading.index("state")
        assert line.index("adaptive") == heading.index("reliability")
        assert line.index(f"http://{name}/") == heading.index("endpoint")
        assert line.index("a//.") == heading.index("topics")
    assert "suspended since" in why
    assert "refused, failing since" in why
    assert other.endswith("long/" * 20 + "  a//."), "nothing is cut off"


def test_json_has_times_as_text_and_the_number_of_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = listed(monkeypatch, "well", "away", options=("--json", "--limit", "1"))
    found = json.loads("".join(lines))
    assert found["more"] == 1
    (away,) = found["subscriptions"]
    assert away.pop("suspended") == {"at": iso(2_000), "failing_since": iso(1_000), "reason": "refused"}
    assert away == {
        "subscription": "away",
        "state": "suspended",
        "paused": False,
        "reliability": "adaptive",
        "endpoint": "http://away/",
        "expression": "a//.",
        "owner": "",
        "address": "http://b/away",
        "created": iso(5_000),
        "terminates": None,
    }


@pytest.mark.parametrize(("names", "said"), [((), "no subscriptions yet"), (("well",), "no matching subscriptions")])
def test_where_there_is_none_it_says_so(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], said: str) -> None:
    lines, complaint = listed(monkeypatch, *names, options=("--state", "paused"))
    assert lines == []
    assert said in complaint
