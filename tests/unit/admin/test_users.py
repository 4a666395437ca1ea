"""Users in a file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arborcast.admin import keys
from arborcast.admin.users import add, listed, remove


def test_a_user_added_during_the_prompt_stays(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"

    def typed() -> str:
        add(file, "bert", lambda: "second-password", ())
        return "first-password"

    add(file, "anna", typed, ())
    assert [each.name for each in listed(file)] == ["anna", "bert"]


def test_concurrent_changes_of_users_and_keys_are_all_made(tmp_path: Path) -> None:
    file, key_file = tmp_path / "made" / "users.toml", tmp_path / "secrets.keys"
    names = [f"u{number}" for number in range(8)]
    add(file, "removed", lambda: "its-password", ())
    with ThreadPoolExecutor(9) as threads:
        removal = threads.submit(remove, file, "removed")
        list(threads.map(lambda name: add(file, name, lambda: "its-password", ()), names))
        list(threads.map(lambda name: keys.new(key_file, name), names))
    removal.result()
    assert [each.name for each in listed(file)] == names
    assert sorted(keys.read(key_file)) == names
