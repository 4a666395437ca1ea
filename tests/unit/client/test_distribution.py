"""`arborcast-client`: its wheel, in an interpreter that sees nothing of the engine's packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.gateway_process import ROOT
from tests.support.wheels import CLIENT_NEEDS, client_wheel, link_client_needs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return client_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("target")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    link_client_needs(folder)
    return folder


def run(target: Path, code: str) -> str:
    # -I and -S: neither this environment's packages nor PYTHONPATH.
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", f"import sys; sys.path.append({str(target)!r})\n{code}"]
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_imported_without_the_engine(target: Path) -> None:
    said = run(
        target,
        """
import importlib, pkgutil
import arborcast
for module in pkgutil.walk_packages(arborcast.__path__, "arborcast."):
    importlib.import_module(module.name)
assert "arborcast.client.queues.worker" in sys.modules
print(*sorted({name.partition(".")[0] for name in sys.modules}))
""",
    )
    assert not {*said.split()} & {"pyspark", "kafka", "uvicorn", "cryptography"}


def test_the_license_is_named_and_in_the_wheel(target: Path) -> None:
    (info,) = target.glob("arborcast_client-*.dist-info")
    assert "License-Expression: Apache-2.0" in (info / "METADATA").read_text()
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_tables_without_the_engine_name_what_is_missing(target: Path) -> None:
    said = run(
        target,
        """
try:
    from arborcast import tables
except ImportError as error:
    print(error)
""",
    )
    assert said == "arborcast.tables needs the distribution arborcast; only arborcast-client is installed\n"


def test_every_module_that_the_pages_name_is_in_it(target: Path) -> None:
    pages = "\n".join(each.read_text(encoding="utf-8") for each in (ROOT / "docs").glob("*.md"))
    named = {each.rstrip(".") for each in re.findall(r"\barborcast\.client[\w.]*", pages)}
    assert {"arborcast.client.listener", "arborcast.client.queues.worker"} <= named
    imports = re.findall(r"^ *(from arborcast\.client\S* import [\w, ]+)$", pages, re.MULTILINE)
    assert imports
    run(target, "\n".join([*imports, "import pkgutil", *(f"pkgutil.resolve_name({each!r})" for each in sorted(named))]))


def test_what_it_needs_is_what_it_says(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    engine = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {each.partition(">")[0] for each in project["dependencies"]} == {*CLIENT_NEEDS}
    assert {*project["dependencies"], f"arborcast-client=={project['version']}"} <= set(engine["dependencies"])
    assert (project["version"], project["requires-python"]) == (engine["version"], engine["requires-python"])
    # requests comes with requests-futures, idna and urllib3 with requests. Only gateways and jobs seal secrets.
    named = imported(wheel) - {"arborcast", "cryptography", *sys.stdlib_module_names}
    assert named == {"lxml", "msgspec", "requests_futures", "requests", "idna", "urllib3"}


def imported(wheel: Path) -> set[str]:
    """The top-level names of all imports, also of those in functions."""
    with zipfile.ZipFile(wheel) as archive:
        trees = [ast.parse(archive.read(name)) for name in archive.namelist() if name.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}
