"""The dashboard and the alert rules ask only for what the code shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from arborcast.cli import reference
from arborcast.cli.reference import DOCS

_NAME = re.compile(r"\b(?:arborcast|process|jvm)_[a-z_]+\b")
_SELECTOR = re.compile(r"((?:arborcast|process|jvm)_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!=|!~|=)")
_BY = re.compile(r"by \(([a-z_, ]+)\) \((?:rate\(|increase\()?((?:arborcast|process|jvm)_[a-z_]+)")

# Labels that Prometheus, several workers, or the embedded engine add to what a process shows.
_ADDED = {"le", "job", "instance", "component", "worker"}


def expressions() -> Iterator[str]:
    for panel in json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for group in yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def labels() -> dict[str, set[str]]:
    return {
        one.name + suffix: set(one.labels) | _ADDED
        for described in reference.catalogue().values()
        for one in described
        for suffix in ("", "_bucket", "_sum", "_count")
    }


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_names_what_there_is(expression: str) -> None:
    used = set(_NAME.findall(expression))
    assert used, "it looks at nothing of ours"
    assert used <= reference.metric_names()
    known = labels()
    for name, selector in _SELECTOR.findall(expression):
        assert set(_LABEL.findall(selector)) <= known[name]
    for grouped, name in _BY.findall(expression):
        assert set(grouped.split(", ")) <= known[name]
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_rates_are_taken_of_counters_only() -> None:
    kinds = {one.name: one.kind for described in reference.catalogue().values() for one in described}
    for expression in expressions():
        for name in re.findall(r"(?:rate|increase)\(((?:arborcast|process|jvm)_[a-z_]+)", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert kinds.get(base) == "histogram" or kinds.get(name) == "counter", expression


def test_every_alert_is_explained_and_no_other() -> None:
    text = (DOCS / "alerts.md").read_text()
    explained = re.findall(r"^\| `(Arborcast\w+)` \| \S.* \| \S.* \|$", text, re.MULTILINE)
    (group,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert explained == names, "each has a row of docs/alerts.md: its meaning, and an action"
    assert set(re.findall(r"Arborcast(?:[A-Z][a-z]+)+", text)) <= set(names), "no other alert is spoken of"


def test_rules_are_what_prometheus_reads() -> None:
    (group,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


def test_every_metric_has_a_page_entry_and_a_unit_or_is_a_count() -> None:
    names = [one.name for described in reference.catalogue().values() for one in described]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    for described in reference.catalogue().values():
        assert len({one.name for one in described}) == len(described)
        for one in described:
            # Java's own are named as Prometheus' client for Java names them; those of collections are a summary.
            ends = ("_total", "_seconds_count", "_seconds_sum") if one.name.startswith("jvm_") else ("_total",)
            assert one.kind != "counter" or one.name.endswith(ends)
            assert one.kind != "histogram" or one.name.endswith("_seconds")
