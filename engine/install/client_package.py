"""Makes the package `arborcast_client` of `ingest.client`: the client alone, for where no engine is.

    python -m arborcast.engine.install.client_package FOLDER    writes FOLDER/arborcast_client

There is one source. The package holds `ingest.client`, whose modules come to lie in it directly, and below `_engine`
those modules of ours that it imports, so that nobody's environment gets packages named `core` or `ingest`. Only the
imports are written anew. client/setup.py runs this, so it needs nothing but the standard library.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "arborcast_client"

CLIENT = "arborcast.ingest.client"

_OURS = "arborcast"

# Imports stand at the beginning of a line, maybe in a function; docstrings name other modules of the client.
_IMPORT = re.compile(r"^([ \t]*(?:from|import) )arborcast(?=[. ])", re.MULTILINE)
_CLIENT = re.compile(rf"\b{re.escape(CLIENT)}\b")


def modules(root: Path) -> list[str]:
    """What of the tree in `root` the package is made of: all of the client, and what that imports, also late."""
    files = _file(root, CLIENT).parent.rglob("[!_]*.py")
    waiting = [CLIENT, *(".".join(file.relative_to(root).with_suffix("").parts) for file in files)]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [".".join(name.split(".")[:steps]) for steps in range(2, name.count(".") + 1)]
            waiting += (each for each in _imported(root, name) if each.partition(".")[0] == _OURS)
    return sorted(found)


def foreign(root: Path) -> set[str]:
    """The packages of others that the client needs; the standard library is not among them."""
    tops = {each.partition(".")[0] for name in modules(root) for each in _imported(root, name)}
    return tops - {_OURS, *sys.stdlib_module_names}


def write(root: Path, folder: Path) -> None:
    """Write the package into `folder`, in the place of an earlier one."""
    target = folder / PACKAGE
    shutil.rmtree(target, ignore_errors=True)
    for name in modules(root):
        source = _file(root, name)
        path = target.joinpath(*_new_name(name).split(".")[1:])
        path = path / "__init__.py" if source.name == "__init__.py" else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_rewritten(source.read_text(encoding="utf-8")), encoding="utf-8")
    (target / "_engine" / "__init__.py").write_text(
        '"""Modules of Arborcast that the client stands on: not for others to import, they move without notice."""\n',
        encoding="utf-8",
    )
    (target / "py.typed").touch()


def _new_name(name: str) -> str:
    below = name.removeprefix(CLIENT)
    return PACKAGE + below if below != name else f"{PACKAGE}._engine{name.removeprefix(_OURS)}"


def _rewritten(text: str) -> str:
    return _IMPORT.sub(rf"\1{PACKAGE}._engine", _CLIENT.sub(PACKAGE, text))


def _imported(root: Path, name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(_file(root, name).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if _exists(root, below) else node.module


def _exists(root: Path, name: str) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _file(root: Path, name: str) -> Path:
    path = root.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    write(Path(__file__).parents[3], Path(sys.argv[1]))
