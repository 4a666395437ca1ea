"""Differences between the topics and their directory, as an operator sees them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from arborcast.admin.directory import DirectoryProblem, ProblemList, problems
from arborcast.directory.sync.problems import SyncProblem, SyncProblems


def test_problems_of_the_directory_are_those_in_the_data_directory(tmp_path: Path) -> None:
    assert problems(tmp_path) == ProblemList("", 0, ())
    problem = SyncProblem("alias", "cn=x", "an alias", "a/b", 5)
    found = SyncProblems(directory="ldap://d", count=7, problems=(problem,))
    (tmp_path / "directory-problems.json").write_bytes(msgspec.json.encode(found))
    assert problems(tmp_path) == ProblemList(
        "ldap://d", 7, (DirectoryProblem("cn=x", "a/b", 5, "alias", "an alias", problem.advice),)
    )
    assert problem.advice
