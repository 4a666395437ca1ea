"""The house rules that a machine can hold: import directions, names that shadow, documents in step with the code."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from arborcast.cli.reference import PAGES

ROOT = Path(__file__).parents[2]

_BASE = {"topic_model", "core"}
_CLIENT = {"client", "wire", *_BASE}
_PARTS = {"ingest", "dispatch", "directory", *_CLIENT}

# Each package, and those that it may import beside itself.
FLOORS: dict[str, set[str]] = {
    "core": set(),
    "topic_model": {"core"},
    "wire": _BASE,
    "client": {"wire", *_BASE},
    "directory": _BASE,
    "ingest": {"directory", *_CLIENT},
    "dispatch": {"directory", *_BASE},
    "engine": _PARTS,
    "admin": {"engine", *_PARTS},
    "analysis": {"engine", *_PARTS},
    "cli": {"admin", "analysis", "engine", *_PARTS},
    "console": {"admin", "engine", *_PARTS},
    "jobs": {"engine", *_PARTS},
}
MAY_IMPORT = {**FLOORS, "benchmarks": {"tests", *FLOORS}}


def modules_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported_modules(file: Path) -> Iterator[str]:
    """With what is imported from them: `a.b.name` for `from a.b import name`."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where a thing comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(file: Path) -> str:
    return ".".join(("arborcast", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imported_at_the_top(file: Path) -> Iterator[str]:
    """The module itself for `from module import name`, or `module.name` where that is a module."""
    for node in tree_of(file).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                path = ROOT / below.removeprefix("arborcast.").replace(".", "/")
                is_module = path.with_suffix(".py").exists() or (path / "__init__.py").exists()
                yield below if is_module else node.module


def imported_packages(file: Path) -> Iterator[str]:
    return (name.removeprefix("arborcast.").partition(".")[0] for name in imported_modules(file))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    for file in modules_of(package):
        ours = {name for name in imported_packages(file) if name in MAY_IMPORT or name == "tests"}
        above = ours - MAY_IMPORT[package] - {package}
        assert not above, f"{file.relative_to(ROOT)} imports {sorted(above)}"


def test_no_circle() -> None:
    """Of imports at the top of a file; inside a function they are there to keep a start fast."""
    files = {name_of(file): file for package in FLOORS for file in modules_of(package)}
    graph = {name: {found for found in imported_at_the_top(file) if found in files} for name, file in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_what_is_pure_stays_pure() -> None:
    """Neither Kafka nor HTTP nor files: whoever uses the topic model reads and writes for it."""
    impure = {"kafka", "requests", "socket", "ssl", "pathlib", "os", "tempfile", "sqlite3", "pyspark", "threading"}
    maps_a_file = ROOT / "topic_model" / "snapshot" / "base.py"
    for file in modules_of("topic_model"):
        if file != maps_a_file:
            assert not {*imported_packages(file)} & impure, file.relative_to(ROOT)
    for package in FLOORS:
        for file in modules_of(package):
            if "eventlog" not in file.parts:
                names = {name for name in imported_modules(file) if name.split(".")[0] == "kafka"}
                assert names <= {"kafka.errors"}, f"{file.relative_to(ROOT)}: use core.eventlog"


# The modules that call out by HTTP, and those that set limits on it. All other modules use `core.http_client`.
_HTTP = {
    "client/client.py",
    "client/transport.py",
    "core/http_client.py",
    "core/security/checked_connections.py",
    "dispatch/delivery/transport/curl.py",
    "dispatch/delivery/transport/futures.py",
    "engine/embedded/questions.py",
}


def test_http_calls_leave_by_the_listed_modules() -> None:
    """Else a call has no address policy, no time limit or no size limit."""
    libraries = r"(pycurl|http\.client|urllib\.request|urllib3|requests|requests_futures|aiohttp|httpx)\b"
    calling = {
        str(file.relative_to(ROOT))
        for package in FLOORS
        for file in modules_of(package)
        if any(re.match(libraries, name) for name in imported_modules(file))
    }
    assert calling == _HTTP


_PROCESS = re.compile(
    r"\b(?:subprocess|multiprocessing|create_subprocess_\w+|os\.(?:exec|fork|p?open|posix_|spawn|system)\w*)"
)


def test_the_console_asks_in_its_own_process() -> None:
    """No interpreter is started for a page, and no output of the command line is parsed."""
    for file in modules_of("console"):
        text = file.read_text(encoding="utf-8")
        assert not _PROCESS.search(text), f"{file.relative_to(ROOT)} starts a process: call a function of admin"
        assert not re.search(r"\barborcast\.cli\b", text), f"{file.relative_to(ROOT)} names the command line"


def test_admin_returns_values_and_shows_nothing() -> None:
    for file in modules_of("admin"):
        shows = {
            name
            for name in imported_modules(file)
            if re.match(r"(typer|click|rich|arborcast\.engine\.terminal)\b", name)
        }
        assert not shows, f"{file.relative_to(ROOT)} imports {sorted(shows)}"


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


_NAMED = re.compile(rf"`(?:arborcast\.)?((?:{'|'.join(FLOORS)})(?:\.\w+)+)`")


def _is_defined(dotted: str) -> bool:
    """Whether a module, or a name in one, has this dotted name."""
    file, names = ROOT, dotted.split(".")
    while names and (file / names[0] / "__init__.py").exists():
        file /= names.pop(0)
    if names and (file / f"{names[0]}.py").exists():
        body = tree_of(file / f"{names.pop(0)}.py").body
    else:
        body = tree_of(file / "__init__.py").body
    # Members of classes are not looked up.
    return not names or any(names[0] in _names_of(node) for node in body)


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("package", FLOORS)
def test_dotted_names_in_backticks_are_there(package: str) -> None:
    for file in modules_of(package):
        for dotted in _NAMED.findall(file.read_text(encoding="utf-8")):
            assert dotted in {"engine.tar"} or _is_defined(dotted), f"{file.relative_to(ROOT)} names `{dotted}`"


# Modules that start threads beside core.threads. To be emptied: nothing may be added. client/ works without an engine.
THREADS = {
    "client/client.py",
    "client/framed.py",
    "client/futures.py",
    "client/http_server.py",
    "client/queues/replies.py",
    "engine/terminal.py",  # a timer that is cancelled
    "jobs/dispatch_stream.py",  # a pool from before the first import of the product
}

_MOST_ATTRIBUTES = 15


def calls_in(file: Path, names: set[str]) -> bool:
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names
        for node in ast.walk(tree_of(file))
    )


def test_threads_are_started_in_one_module() -> None:
    starters = {"Thread", "Timer", "ThreadPoolExecutor", "_start_new_thread", "start_new_thread"}
    found = {
        str(file.relative_to(ROOT)) for package in FLOORS for file in modules_of(package) if calls_in(file, starters)
    }
    assert not found - THREADS - {"core/threads.py"}, "use Service, start_thread or pool of core.threads"
    assert not THREADS - found, "take these out of THREADS"


def test_xml_is_read_by_one_kind_of_parser() -> None:
    for package in FLOORS:
        for file in modules_of(package):
            name = str(file.relative_to(ROOT))
            assert name == "core/xml.py" or not calls_in(file, {"XMLParser"}), f"{name}: use core.xml"
            default = [
                node
                for node in ast.walk(tree_of(file))
                if isinstance(node, ast.Call)
                and re.fullmatch(r"etree\.(fromstring|XML|parse)", ast.unparse(node.func))
                and len(node.args) + len(node.keywords) < 2
            ]
            assert not default, f"{name}: the default parser of lxml reads entities; give it one of core.xml"


def test_a_lease_is_one_of_core_eventlog() -> None:
    """No other module follows the logs of leases or writes to them."""
    for package in FLOORS:
        for file in modules_of(package):
            if {"LEASE_LOG", "JOB_LEASE_LOG"} & {name.rpartition(".")[2] for name in imported_modules(file)}:
                assert not calls_in(file, {"LogWriter", "LogFollower", "LogCursor"}), file.relative_to(ROOT)


def test_a_gateway_appends_and_waits_in_one_class() -> None:
    """`LoggedState`; notifications have a way of their own, without threads."""
    for file in modules_of("ingest"):
        if file != ROOT / "ingest" / "state" / "log_view.py":
            assert not calls_in(file, {"append_encoded"}), f"{file.relative_to(ROOT)}: use LoggedState"


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Those that `__init__` sets."""
    return {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for target in ast.walk(method)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def test_classes_have_few_attributes() -> None:
    found = {
        f"{name_of(file).removeprefix('arborcast.')}.{node.name}"
        for package in FLOORS
        for file in modules_of(package)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ClassDef) and len(attributes_of(node)) > _MOST_ATTRIBUTES
    }
    assert not found, f"more than {_MOST_ATTRIBUTES} attributes: give some of them to a class of their own"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_pages_are_what_the_code_says(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "run `make docs`"


def test_packages_are_importable_by_name() -> None:
    for package in MAY_IMPORT:
        assert importlib.util.find_spec(f"arborcast.{package}" if package in FLOORS else package) is not None
