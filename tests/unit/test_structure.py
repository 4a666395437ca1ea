"""Rules of the code base: directions of imports, modules for threads, XML and HTTP, names that shadow."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_BASE = {"topic_model", "core"}
_CLIENT = {"client", "wire", *_BASE}
_PARTS = {"ingest", "dispatch", "directory", *_CLIENT}

# Each package, and the others that it may import.
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


def modules_of(*packages: str) -> list[Path]:
    return sorted(file for package in packages or FLOORS for file in (ROOT / package).rglob("*.py"))


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def _nodes_end_with_the_module() -> Iterator[None]:
    """Kept, they are 150 MiB, and half a second of each garbage collection."""
    yield
    nodes_of.cache_clear()


def imported_modules(file: Path) -> Iterator[str]:
    """With the imported names: `a.b.name` for `from a.b import name`."""
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the origin of a name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_packages(file: Path) -> Iterator[str]:
    return (name.removeprefix("arborcast.").partition(".")[0] for name in imported_modules(file))


def imports(pattern: str) -> Callable[[Path], bool]:
    """Whether a file imports something with such a name."""
    return lambda file: any(re.match(pattern, name) for name in imported_modules(file))


def calls(*names: str) -> Callable[[Path], bool]:
    """Whether a file calls a function with one of these names."""

    def holds(file: Path) -> bool:
        called = (node.func for node in nodes_of(file) if isinstance(node, ast.Call))
        return any(getattr(each, "attr", getattr(each, "id", "")) in names for each in called)

    return holds


def contains(pattern: str) -> Callable[[Path], bool]:
    return lambda file: re.search(pattern, file.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_have_one_direction(package: str) -> None:
    for file in modules_of(package):
        ours = {name for name in imported_packages(file) if name in MAY_IMPORT or name == "tests"}
        above = ours - MAY_IMPORT[package] - {package}
        assert not above, f"{named(file)} imports {sorted(above)}"


def test_imports_have_no_cycle() -> None:
    """For imports at the top of a file; those inside a function make the start fast."""
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in modules_of()
    }
    graph: dict[str, set[str]] = {}
    for name, file in files.items():
        module = nodes_of(file)[0]
        assert isinstance(module, ast.Module)
        top = [node for node in module.body if isinstance(node, ast.ImportFrom)]
        modules = [((node.module or "").removeprefix("arborcast."), alias.name) for node in top for alias in node.names]
        graph[name] = {f"{at}.{below}" if f"{at}.{below}" in files else at for at, below in modules} & files.keys()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# Modules that start threads beside core.threads. Nothing may be added.
THREADS = {
    "client/client.py",  # the pool of requests-futures
    "client/http_server.py",  # a thread that `start` starts
    "engine/terminal.py",  # a timer that is cancelled
    "jobs/dispatch_stream.py",  # a pool before the first import of the product
    "core/threads.py",
}

# The modules that send HTTP requests, and those that limit them. All other modules use `core.http_client`.
HTTP = {
    *("client/client.py", "client/transport.py", "core/http_client.py", "core/security/checked_connections.py"),
    *("dispatch/delivery/transport/curl.py", "dispatch/delivery/transport/futures.py", "engine/embedded/questions.py"),
}

# Files, forbidden operations, the exceptions, and the alternative.
RULES: dict[str, tuple[tuple[str, ...], Callable[[Path], bool], set[str], str]] = {
    "threads": (
        (),
        calls("Thread", "Timer", "ThreadPoolExecutor", "_start_new_thread", "start_new_thread"),
        THREADS,
        "use Service, start_thread or pool of core.threads",
    ),
    "http": (
        (),
        imports(r"(pycurl|http\.client|urllib\.request|urllib3|requests|requests_futures|aiohttp|httpx)\b"),
        HTTP,
        "without core.http_client a call has no address policy, no time limit or no size limit",
    ),
    "xml": ((), calls("XMLParser"), {"core/xml.py"}, "use core.xml"),
    "entities": (
        (),
        lambda file: any(
            isinstance(node, ast.Call)
            and re.fullmatch(r"etree\.(fromstring|XML|parse)", ast.unparse(node.func))
            and len(node.args) + len(node.keywords) < 2
            for node in nodes_of(file)
        ),
        set(),
        "the default parser of lxml reads entities; give it one of core.xml",
    ),
    "kafka": (
        (),
        lambda file: "eventlog" not in file.parts and imports(r"kafka\b(?!\.errors\b)")(file),
        set(),
        "use core.eventlog",
    ),
    "purity": (
        ("topic_model",),
        imports(r"(kafka|requests|socket|ssl|pathlib|os|tempfile|sqlite3|pyspark|threading)\b"),
        {"topic_model/snapshot/base.py"},  # maps a file
        "what has the topic model reads and writes for it",
    ),
    "processes of the console": (
        ("console",),
        contains(
            r"\b(?:subprocess|multiprocessing|create_subprocess_\w+|os\.(?:exec|fork|p?open|posix_|spawn|system)\w*"
            r"|arborcast\.cli\b)"
        ),
        set(),
        "call a function of admin",
    ),
    "output of admin": (
        ("admin",),
        imports(r"(typer|click|rich|arborcast\.engine\.terminal)\b"),
        set(),
        "return values",
    ),
    "benchmarks": (("benchmarks",), imports(r"tests\.(?!support\.)"), set(), "of tests they use tests.support"),
    "leases": (
        (),
        lambda file: imports(r".*\.(JOB_)?LEASE_LOG$")(file) and calls("LogWriter", "LogFollower", "LogCursor")(file),
        set(),
        "a lease is one of core.eventlog",
    ),
    # Notifications have a separate path, without threads.
    "appending": (("ingest",), calls("append_encoded"), set(), "use LoggedState"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_holds_outside_its_exceptions(rule: str) -> None:
    packages, breaks, exceptions, remedy = RULES[rule]
    assert {named(file) for file in modules_of(*packages) if breaks(file)} == exceptions, remedy


def test_no_file_in_jobs_shadows_a_package() -> None:
    """spark-submit puts jobs/ first on the import path: jobs/kafka.py would be found instead of kafka."""
    used = {name for file in modules_of(*MAY_IMPORT) for name in imported_packages(file)}
    for entry in (ROOT / "jobs").iterdir():
        if entry.suffix == ".py" or entry.is_dir():
            assert entry.stem not in used - {"__init__"}, f"jobs/{entry.name} is found when {entry.stem} is meant"


def test_dotted_names_in_backticks_exist() -> None:
    written = re.compile(rf"`(?:arborcast\.)?((?:{'|'.join(FLOORS)})(?:\.\w+)+)`")
    for file in modules_of():
        for dotted in {*written.findall(file.read_text(encoding="utf-8"))} - {"engine.tar"}:
            try:
                pkgutil.resolve_name(f"arborcast.{dotted}")
            except (ImportError, AttributeError):
                pytest.fail(f"{named(file)} names `{dotted}`")


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The attributes that `__init__` sets."""
    return {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for target in ast.walk(method)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and ast.unparse(target.value) == "self"
    }


def test_classes_have_few_attributes() -> None:
    found = {
        f"{named(file)}: {node.name}"
        for file in modules_of()
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef) and len(attributes_of(node)) > 15
    }
    assert not found, "more than 15 attributes: move some to another class"
