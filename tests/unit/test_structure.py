"""The house rules that a machine can hold: import directions, names that shadow, documents in step with the code."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.reference import PAGES

ROOT = Path(__file__).parents[2]

# jobs -> ingest, dispatch -> directory -> topic_model -> core
FLOORS = {
    "core": {"core"},
    "topic_model": {"topic_model", "core"},
    "directory": {"directory", "topic_model", "core"},
    "ingest": {"ingest", "directory", "topic_model", "core"},
    "dispatch": {"dispatch", "directory", "topic_model", "core"},
    "jobs": {"jobs", "ingest", "dispatch", "directory", "topic_model", "core"},
}
MAY_IMPORT = {**FLOORS, "benchmarks": {"benchmarks", "tests", *FLOORS}}


def modules_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported_modules(file: Path) -> Iterator[str]:
    """With what is imported from them: `a.b.name` for `from a.b import name`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where a thing comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_packages(file: Path) -> Iterator[str]:
    return (name.partition(".")[0] for name in imported_modules(file))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    for file in modules_of(package):
        ours = {name for name in imported_packages(file) if name in MAY_IMPORT or name == "tests"}
        assert ours <= MAY_IMPORT[package], f"{file.relative_to(ROOT)} imports {sorted(ours - MAY_IMPORT[package])}"


def test_benchmarks_take_from_tests_only_what_supports_them() -> None:
    for file in modules_of("benchmarks"):
        others = [name for name in imported_modules(file) if re.match(r"tests\.(?!support\.)", name)]
        assert not others, f"{file.relative_to(ROOT)} imports {others}"


def test_no_file_in_jobs_shadows_a_package() -> None:
    """spark-submit puts jobs/ first on the import path: jobs/kafka.py would be found instead of kafka."""
    used = {name for package in MAY_IMPORT for file in modules_of(package) for name in imported_packages(file)}
    for entry in (ROOT / "jobs").iterdir():
        if entry.suffix == ".py" or entry.is_dir():
            assert entry.stem not in used - {"__init__"}, f"jobs/{entry.name} is found when {entry.stem} is meant"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_pages_are_what_the_code_says(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "run `make docs`"


def test_packages_are_importable_by_name() -> None:
    for package in MAY_IMPORT:
        assert importlib.util.find_spec(package) is not None
