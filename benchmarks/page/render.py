"""The page from results: text from the template, figures and pictures only from what was measured.

The template has marks on lines of their own: `<<asked>>`, `<<machine>>`, `<<section NAME>>` (the tables of all parts
in that section), `<<part NAME>>`, `<<picture NAME>>`, `<<model>>`. Rendering the same results gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.page import charts
from benchmarks.page.capacity_model import constants_from, sized_table
from benchmarks.page.parts import PARTS, SECTIONS, Part
from benchmarks.page.results import Cell, Result, Table
from benchmarks.page.results import load as load_results
from benchmarks.page.targets import answers

TEMPLATE = Path(__file__).with_name("page.md")

_MARK = re.compile(r"^<<(?P<kind>[a-z]+)(?: (?P<name>[^>]+))?>>$", re.MULTILINE)


def write_page(docs: Path) -> None:
    """Write benchmarks.md and its pictures in this folder from the results below it."""
    page, pictures = render(load_results(docs / "benchmarks" / "results"))
    folder = docs / "benchmarks" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pictures.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    for stale in folder.glob("*.svg"):
        if stale.stem not in pictures:
            stale.unlink()
    (docs / "benchmarks.md").write_text(page, encoding="utf-8")


def render(results: Mapping[str, Result]) -> tuple[str, dict[str, str]]:
    """The page and its pictures by name. Raises KeyError when the template names what there is not."""
    pictures = charts.drawn(results)
    by_name = {part.name: part for part in PARTS}

    def filled(mark: re.Match[str]) -> str:
        name = mark["name"] or ""
        match mark["kind"]:
            case "machine":
                return _machine(results)
            case "asked":
                return _asked(results)
            case "model":
                return _markdown(Table("", sized_table(constants_from(results))))
            case "picture":
                return f"![{charts.TITLES[name]}](benchmarks/pictures/{name}.svg)" if name in pictures else _NOTHING
            case "part":
                return _part(by_name[name], results.get(name))
            case "section":
                if name not in SECTIONS:
                    raise KeyError(name)
                parts = [part for part in PARTS if part.section == name]
                return "\n\n".join(_part(part, results.get(part.name)) for part in parts)
        raise KeyError(mark[0])

    return _MARK.sub(filled, TEMPLATE.read_text(encoding="utf-8")), pictures


_NOTHING = "*Not measured yet.*"


def _machine(results: Mapping[str, Result]) -> str:
    if not results:
        return _NOTHING
    newest = max(results.values(), key=lambda result: result.date)
    machine = newest.machine
    versions = ", ".join(f"{name} {version}" for name, version in newest.versions.items())
    rows: list[dict[str, Cell]] = [
        {"what": "machine", "": f"{machine['cores']} cores, {machine['processor']}, {machine['memory']}"},
        {"what": "system", "": machine["system"]},
        {"what": "versions", "": versions},
        {"what": "measured", "": _span([result.date for result in results.values()])},
        {"what": "load average at the start of the parts", "": _loads(list(results.values()))},
    ]
    others = sorted({str(result.machine) for result in results.values()} - {str(machine)})
    if others:
        rows.append({"what": "other machines", "": "; ".join(others)})
    return _markdown(Table("", rows))


def _span(dates: list[str]) -> str:
    return min(dates) if min(dates) == max(dates) else f"{min(dates)} to {max(dates)}"


def _loads(results: list[Result]) -> str:
    loads = [result.load_before for result in results]
    return f"{min(loads):.1f} to {max(loads):.1f}"


def _asked(results: Mapping[str, Result]) -> str:
    rows: list[dict[str, Cell]] = []
    for answer in answers(results):
        target = answer.target
        bound = ""
        if target.least is not None:
            bound = f"at least {shown(target.least)} {target.unit}".rstrip()
        elif target.most is not None:
            bound = f"at most {shown(target.most)} {target.unit}".rstrip()
        seen = "not measured yet" if answer.seen is None else f"{shown(answer.seen)} {target.unit}".rstrip()
        verdict = {True: "met", False: "**not met**", None: ""}[answer.met]
        if answer.quick and answer.seen is not None:
            verdict = "quick run, says nothing"
        rows.append({"": target.area, "what": target.asked, "asked": bound, "seen": seen, " ": verdict})
    return _markdown(Table("", rows))


def _part(part: Part, result: Result | None) -> str:
    lines = [f"### {part.title}: `{part.command(False)}`", ""]
    if result is None:
        return "\n".join([*lines, _NOTHING])
    load = f"load {result.load_before:.1f} before and {result.load_after:.1f} after"
    lines.append(f"{result.date}, commit {result.commit}, {load}, {result.seconds:.0f} s.")
    if result.quick:
        lines.append("**A quick run: it shows that this part runs; its figures say nothing.**")
    if result.failure:
        lines.append(f"**The last attempt failed: {result.failure}.**")
    for table in result.tables:
        lines += ["", f"*{table.title}*" + (f" ({_one_line(table.note)})" if table.note else ""), "", _markdown(table)]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(table: Table) -> str:
    if not table.rows:
        return _NOTHING
    columns = list(dict.fromkeys(name for row in table.rows for name in row))
    numbers = {name: all(isinstance(row.get(name), int | float | None) for row in table.rows) for name in columns}
    head = "| " + " | ".join(columns) + " |"
    rule = "|" + "|".join("---:" if numbers[name] else "---" for name in columns) + "|"
    body = ["| " + " | ".join(_escaped(row.get(name)) for name in columns) + " |" for row in table.rows]
    return "\n".join([head, rule, *body])


def _escaped(cell: Cell) -> str:
    return "" if cell is None else shown(cell).replace("|", "\\|")


def shown(cell: str | int | float) -> str:
    """A cell as people read it."""
    if isinstance(cell, bool | str):
        return str(cell)
    if isinstance(cell, float) and not cell.is_integer():
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,.0f}"
