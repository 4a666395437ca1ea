"""The dashboard and the alert rules name only metrics and labels that the code has."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from arborcast.cli import reference
from arborcast.cli.reference import DOCS

_METRIC = r"(?:arborcast|process|jvm)_[a-z_]+"

# Labels that Prometheus, several workers, or the embedded engine add to what a process shows.
_ADDED = {"le", "job", "instance", "component", "worker"}

PANELS = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())["panels"]
(ALERTS,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
EXPRESSIONS = {target["expr"] for panel in PANELS for target in panel.get("targets", ())} | {
    rule["expr"] for rule in ALERTS["rules"]
}
DESCRIBED = [one for described in reference.catalogue().values() for one in described]


@pytest.mark.parametrize("expression", sorted(EXPRESSIONS))
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    used = set(re.findall(rf"\b{_METRIC}\b", expression))
    assert used
    assert used <= reference.metric_names()
    labels = {
        one.name + suffix: {*one.labels} | _ADDED for one in DESCRIBED for suffix in ("", "_bucket", "_sum", "_count")
    }
    for name, selector in re.findall(rf"({_METRIC})\{{([^}}]*)\}}", expression):
        assert set(re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)", selector)) <= labels[name]
    for grouped, name in re.findall(rf"by \(([a-z_, ]+)\) \((?:rate\(|increase\()?({_METRIC})", expression):
        assert set(grouped.split(", ")) <= labels[name]
    kinds = {one.name: one.kind for one in DESCRIBED}
    for name in re.findall(rf"(?:rate|increase)\(({_METRIC})", expression):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(base) == "histogram" or kinds.get(name) == "counter", "only counters have rates"


def test_alert_rules() -> None:
    text = (DOCS / "alerts.md").read_text()
    names = [rule["alert"] for rule in ALERTS["rules"]]
    explained = re.findall(r"^\| `(Arborcast\w+)` \| \S.* \| \S.* \|$", text, re.MULTILINE)
    assert explained == names, "each has a row of docs/alerts.md: its meaning, and an action"
    assert set(re.findall(r"Arborcast(?:[A-Z][a-z]+)+", text)) <= set(names)
    for rule in ALERTS["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


def test_names_of_metrics_have_their_unit() -> None:
    for process, described in reference.catalogue().items():
        assert len({one.name for one in described}) == len(described), process
        for one in described:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", one.name)
            # Java's own are named as Prometheus' client for Java names them; those of collections are a summary.
            ends = ("_total", "_seconds_count", "_seconds_sum") if one.name.startswith("jvm_") else ("_total",)
            assert one.kind != "counter" or one.name.endswith(ends)
            assert one.kind != "histogram" or one.name.endswith("_seconds")
