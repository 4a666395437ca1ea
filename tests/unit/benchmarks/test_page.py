"""The benchmark page: what it says comes from results, and the page in the repository is what its results say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.page import page
from benchmarks.page.parts import PARTS, Part, chosen
from benchmarks.page.render import render, shown, write_page
from benchmarks.page.results import ROOT, Cell, Result, Table, load, read, save, tables_of
from benchmarks.page.targets import TARGETS, answers

DOCS = ROOT / "docs"


def result(part: str, *tables: Table, **more: Any) -> Result:
    facts: dict[str, Any] = {
        "command": f"python -m benchmarks.dispatch.{part}",
        "quick": False,
        "date": "2026-01-02 03:04 UTC",
        "commit": "0123456789ab",
        "machine": {"cores": "2", "processor": "a processor", "memory": "24 GiB", "system": "Linux 6"},
        "versions": {"Python": "3.11.7"},
        "load_before": 0.25,
        "load_after": 2.5,
        "seconds": 12.0,
    }
    return Result(part=part, tables=list(tables), **{**facts, **more})


def throughput(delivered: float, lost: int = 0) -> Result:
    row: dict[str, Cell] = {"case": "16 publishers, 800 bytes", "delivered/s": delivered, "lost": lost, "twice": 0}
    return result("throughput", Table("one subscriber", [row], "publishers send\nwhen they have their answer"))


def line_of(text: str, words: str) -> str:
    return next(line for line in text.splitlines() if words in line)


def test_the_page_in_the_repository_is_what_its_results_say() -> None:
    text, pictures = render(load(DOCS / "benchmarks" / "results"))
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == text, "run: make benchmark-page ARGS=--render"
    stored = {file.stem: file.read_text(encoding="utf-8") for file in (DOCS / "benchmarks/pictures").glob("*.svg")}
    assert stored == pictures, "run: make benchmark-page ARGS=--render"


def test_every_stored_result_belongs_to_a_part() -> None:
    assert set(load(DOCS / "benchmarks" / "results")) <= {part.name for part in PARTS}


def test_without_results_nothing_is_claimed() -> None:
    text, pictures = render({})
    assert pictures == {}
    assert "**not met**" not in text
    assert "| met |" not in text
    for target in TARGETS:
        assert "not measured yet" in line_of(text, target.asked)
    for part in PARTS:
        assert f"### {part.title}: `{part.command(False)}`" in text


@pytest.mark.parametrize(("delivered", "verdict"), [(3_500.0, "| met |"), (2_900.0, "| **not met** |")])
def test_asked_beside_seen(delivered: float, verdict: str) -> None:
    line = line_of(render({"throughput": throughput(delivered)})[0], "16 publishers, 1 subscriber, 800 bytes")
    assert f"| at least 3,000 /s | {delivered:,.0f} /s {verdict}" in line


def test_one_lost_message_is_not_hidden() -> None:
    line = line_of(
        render({"throughput": throughput(9_000.0, lost=1)})[0], "lost, twice or out of order in the runs above"
    )
    assert "| 1 | **not met** |" in line


def test_a_quick_run_is_no_verdict() -> None:
    text, _ = render({"throughput": replace(throughput(9_000.0), quick=True)})
    assert "quick run, says nothing" in line_of(text, "16 publishers, 1 subscriber, 800 bytes")
    assert "A quick run" in text


def test_the_machine_and_the_circumstances_of_each_part_are_named() -> None:
    text, _ = render({"throughput": throughput(3_500.0)})
    assert "2 cores, a processor, 24 GiB" in text
    assert "2026-01-02 03:04 UTC, commit 0123456789ab, load 0.2 before and 2.5 after, 12 s." in text
    assert "*one subscriber* (publishers send when they have their answer)" in text


def test_a_failure_stands_beside_the_figures_of_before() -> None:
    text, _ = render({"throughput": replace(throughput(3_500.0), failure="ended with status 1")})
    assert "The last attempt failed: ended with status 1." in text
    assert "3,500" in text


def test_ratio_between_rows() -> None:
    rows: list[dict[str, Cell]] = [
        {"beside it": "nothing", "p99 ms": 200.0},
        {"beside it": "100 changes of subscriptions a second", "p99 ms": 250},
    ]
    found = {
        each.target.asked: each for each in answers({"churn": result("churn", Table("500/s to one subscriber", rows))})
    }
    (change,) = (each for asked, each in found.items() if asked.startswith("subscription changes"))
    assert change.seen == pytest.approx(1.25)
    assert change.met is True


def test_side_by_side_is_against_the_better_mode_of_the_other() -> None:
    rows: list[dict[str, Cell]] = [
        {"case": "8x50", "system": "Arborcast", "delivered/s": 30_000.0},
        {"case": "8x50", "system": "CXF", "delivered/s": 2_000.0},
        {"case": "8x50", "system": "CXF, URLConnection", "delivered/s": 2_500.0},
        {"case": "-", "system": "Camel: failed, no jar", "delivered/s": None},
    ]
    table = Table("throughput, SOAP in and SOAP out", rows)
    text, pictures = render({"peers": result("peers", table)})
    assert "| 12 x | met |" in line_of(text, "8 publishers, 50 subscribers: times the WS-Notification")
    assert "Camel: failed" in text
    drawn = ElementTree.fromstring(pictures["peers-throughput"])  # noqa: S314 -- our own
    assert "30k" in {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}


def test_pictures_are_of_curves_too() -> None:
    rows: list[dict[str, Cell]] = [{"offered/s": rate, "p50 ms": 80 + rate / 50, "p99 ms": 200.0} for rate in (50, 500)]
    results = {"scaling": result("scaling", Table("notifications a second, one subscriber", rows))}
    first, second = render(results)[1]["rate"], render(results)[1]["rate"]
    assert first == second
    assert len(list(ElementTree.fromstring(first).iter("{http://www.w3.org/2000/svg}circle"))) == 4  # noqa: S314


def test_results_survive_being_kept(tmp_path: Path) -> None:
    kept = throughput(3_500.25)
    save(tmp_path, kept)
    assert load(tmp_path) == {"throughput": kept}
    assert read((tmp_path / "throughput.json").read_text(encoding="utf-8")) == kept


def test_writing_removes_pictures_of_results_that_are_gone(tmp_path: Path) -> None:
    stale = tmp_path / "benchmarks" / "pictures" / "old.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("<svg/>")
    write_page(tmp_path)
    assert not stale.exists()
    assert (tmp_path / "benchmarks.md").read_text(encoding="utf-8") == render({})[0]


def test_figures_of_any_benchmark_become_tables() -> None:
    harness = {"benchmark": "a", "tables": [{"title": "t", "note": "n", "rows": [{"x": 1.23456}]}]}
    assert tables_of(harness, "A") == [Table("t", [{"x": 1.235}], "n")]
    assert [table.title for table in tables_of([harness, harness], "A")] == ["t", "t"]
    assert tables_of([{"rate": 5}, {"rate": 6}], "B") == [Table("B", [{"rate": 5}, {"rate": 6}])]
    mixed = {"lost": 0, "stalls_s": [1.0, 2.0], "idle": {"all": {"mib": 3}}, "lone": {"p50_ms": 4}}
    assert tables_of(mixed, "C") == [
        Table("C", [{"lost": 0}]),
        Table("C: stalls_s", [{"stalls_s": 1.0}, {"stalls_s": 2.0}]),
        Table("C: idle", [{"what": "all", "mib": 3}]),
        Table("C: lone", [{"p50_ms": 4}]),
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0, "0"), (80_000, "80,000"), ("a", "a"), (2.0, "2")]
)
def test_numbers_as_people_read_them(value: Cell, text: str) -> None:
    assert value is not None
    assert shown(value) == text


def test_parts_are_benchmarks_that_exist() -> None:
    names = [part.name for part in PARTS]
    assert len(names) == len(set(names))
    for part in PARTS:
        assert ROOT.joinpath("benchmarks", *part.module.split(".")).with_suffix(".py").exists(), part.name
    assert [part.name for part in chosen(["peers", "scaling"])] == ["peers", "scaling"]
    with pytest.raises(KeyError):
        chosen(["nothing of that name"])


def test_targets_name_parts_that_exist() -> None:
    assert {target.part for target in TARGETS} <= {part.name for part in PARTS}


class TestRunning:
    """The runner with commands of our own instead of benchmarks."""

    @pytest.fixture
    def docs(self, tmp_path: Path) -> Path:
        return tmp_path / "docs"

    def run(self, docs: Path, script: str, limit_s: float = 30.0) -> bool:
        part = Part("stages", "dispatch.stages", "Dispatch", "A", limit_s=limit_s)
        return page.measure(part, False, docs, python=("-c", script))

    WRITES = "import json, sys; open(sys.argv[1], 'w').write(json.dumps([{'x': 7}]))"

    def test_what_came_out_is_kept_with_its_circumstances(self, docs: Path) -> None:
        assert self.run(docs, self.WRITES)
        kept = json.loads((docs / "benchmarks/results/stages.json").read_text(encoding="utf-8"))
        assert kept["tables"] == [{"title": "A", "rows": [{"x": 7}], "note": ""}]
        assert kept["machine"]["cores"]
        assert kept["versions"]["Python"]

    def test_a_failure_keeps_what_was_there(self, docs: Path) -> None:
        assert self.run(docs, self.WRITES)
        assert not self.run(docs, "import sys; sys.exit(3)")
        kept = load(docs / "benchmarks" / "results")["stages"]
        assert kept.rows("A") == [{"x": 7}]
        assert kept.failure.startswith("ended with status 3")

    def test_half_a_run_is_kept_when_there_was_none(self, docs: Path) -> None:
        assert not self.run(docs, self.WRITES + "; sys.exit(1)")
        assert load(docs / "benchmarks" / "results")["stages"].rows("A") == [{"x": 7}]

    def test_what_does_not_end_is_ended(self, docs: Path) -> None:
        assert not self.run(docs, "import time; time.sleep(600)", limit_s=0.5)
        assert "did not end" in load(docs / "benchmarks" / "results")["stages"].failure

    def test_other_parts_stay_as_they_are(self, docs: Path) -> None:
        folder = docs / "benchmarks" / "results"
        save(folder, throughput(3_500.0))
        before = (folder / "throughput.json").read_bytes()
        assert self.run(docs, self.WRITES)
        assert (folder / "throughput.json").read_bytes() == before
