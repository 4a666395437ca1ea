"""Each promise of README and docs/reliability.md has a model or a table of examples, and a test from end to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    promise: str
    stated: str
    model: str
    end_to_end: str


ROWS = [
    Row(*(cell.strip(" `") for cell in line.strip("|").split("|")))
    for line in (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").partition("\n## ")[0].splitlines()
    if line.startswith("| ") and "`" in line
]


def test_each_promise_has_a_row() -> None:
    promises = re.findall(r"^- \*\*([\w ]+)\.\*\*", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert "Durable" in promises
    assert [row.promise for row in ROWS if "README" in row.stated] == promises
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    sections = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in re.findall(r"^## (.+)$", text, re.M)]
    stated = [found[1] for row in ROWS if (found := re.search(r"reliability\.md#([\w-]+)", row.stated))]
    assert stated == sections


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.promise)
def test_the_tests_of_a_promise_exist(row: Row) -> None:
    assert re.match(r"tests/(unit|world|conformance)/", row.model), row.model
    assert (ROOT / row.model).is_file(), row.model
    file, _, name = row.end_to_end.partition("::")
    assert re.match(r"tests/(integration|chaos|cluster|conformance)/", file), file
    defined = re.findall(r"^ *def (\w+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert name in defined, f"{row.end_to_end}: no such test"
