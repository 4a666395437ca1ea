"""Users in a file."""

from __future__ import annotations

from pathlib import Path

from arborcast.admin.users import add, listed


def test_a_user_added_during_the_prompt_stays(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"

    def typed() -> str:
        add(file, "bert", lambda: "second-password", ())
        return "first-password"

    add(file, "anna", typed, ())
    assert [each.name for each in listed(file)] == ["anna", "bert"]
