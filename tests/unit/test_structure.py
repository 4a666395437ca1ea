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

MAY_IMPORT = {
    "topic_model": {"topic_model"},
    "ingest": {"ingest", "topic_model"},
    "dispatch": {"dispatch", "topic_model"},
    "jobs": {"jobs", "ingest", "dispatch", "topic_model"},
    "benchmarks": {"benchmarks", "tests", "jobs", "ingest", "dispatch", "topic_model"},
}


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


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_module_says_what_it_is_for(package: str) -> None:
    for file in modules_of(package):
        assert ast.get_docstring(ast.parse(file.read_text())), f"{file.relative_to(ROOT)} has no docstring"


PACKAGES = [init.parent for package in MAY_IMPORT for init in sorted((ROOT / package).rglob("__init__.py"))]

# Every package may have them, and what is in them is clear.
CUSTOMARY = {"__init__", "__main__", "errors", "settings"}

# With so many modules nobody finds their way without a list.
WITHOUT_A_LIST = 5


def listed_in(docstring: str) -> set[str]:
    """The names in the left column of a docstring's list: `tail, held/     what they are for`."""
    names: set[str] = set()
    for line in docstring.splitlines():
        left, _, right = line.strip().partition("  ")
        left_names = left.replace("/", "").replace(",", " ").split()
        if right and all(name.isidentifier() and name.islower() for name in left_names):
            names.update(left_names)
    return names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: ".".join(package.relative_to(ROOT).parts))
def test_a_package_lists_its_modules(package: Path) -> None:
    modules = {file.stem for file in package.glob("*.py")}
    modules |= {folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()}
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    listed = listed_in(docstring)
    assert listed <= modules, f"{sorted(listed - modules)} of the list are not there"
    if listed or len(modules - CUSTOMARY) > WITHOUT_A_LIST:
        missing = modules - CUSTOMARY - set(re.findall(r"\w+", docstring))
        assert not missing, f"its docstring says nothing of {sorted(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_pages_are_what_the_code_says(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "run `make docs`"


def test_packages_are_importable_by_name() -> None:
    for package in MAY_IMPORT:
        assert importlib.util.find_spec(package) is not None
