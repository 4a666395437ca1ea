"""`arborcast-client`: its wheel, in an interpreter without the engine's packages."""

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


def test_every_module_and_example_works_without_the_engine(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    link_client_needs(tmp_path)
    (info,) = tmp_path.glob("arborcast_client-*.dist-info")
    assert "License-Expression: Apache-2.0" in (info / "METADATA").read_text()
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()

    pages = "\n".join(each.read_text(encoding="utf-8") for each in (ROOT / "docs").glob("*.md"))
    named = {each.rstrip(".") for each in re.findall(r"\barborcast\.client[\w.]*", pages)}
    assert {"arborcast.client.listener", "arborcast.client.queues.worker"} <= named
    imports = re.findall(r"^ *(from arborcast\.client\S* import [\w, ]+)$", pages, re.MULTILINE)
    assert imports
    # -I and -S: neither this environment's packages nor PYTHONPATH.
    code = f"import sys; sys.path.append({str(tmp_path)!r})\n{IN_THE_WHEEL}\n" + "\n".join(imports)
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", code.replace("NAMES", repr(sorted(named)))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    missing, modules = done.stdout.splitlines()
    assert missing == "arborcast.tables needs the distribution arborcast; only arborcast-client is installed"
    assert not {*modules.split()} & {"pyspark", "kafka", "uvicorn", "cryptography"}


IN_THE_WHEEL = """
import importlib, pkgutil
import arborcast
for module in pkgutil.walk_packages(arborcast.__path__, "arborcast."):
    importlib.import_module(module.name)
assert "arborcast.client.queues.worker" in sys.modules
for name in NAMES:
    pkgutil.resolve_name(name)
try:
    from arborcast import tables
except ImportError as error:
    print(error)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_its_dependencies_are_its_imports(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    engine = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {each.partition(">")[0] for each in project["dependencies"]} == {*CLIENT_NEEDS}
    assert {*project["dependencies"], f"arborcast-client=={project['version']}"} <= set(engine["dependencies"])
    assert (project["version"], project["requires-python"]) == (engine["version"], engine["requires-python"])
    # requests is a dependency of requests-futures, idna and urllib3 of requests. Only gateways and jobs seal secrets.
    with zipfile.ZipFile(wheel) as archive:
        trees = [ast.parse(archive.read(name)) for name in archive.namelist() if name.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in names} - {"arborcast", "cryptography", *sys.stdlib_module_names}
    assert imported == {"lxml", "msgspec", "requests_futures", "requests", "idna", "urllib3"}
