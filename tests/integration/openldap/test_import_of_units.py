"""`arborcast topics import --from-ldap`: the tree of an old system, from a real OpenLDAP into a real Kafka."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from arborcast.core.errors import ArborcastError
from arborcast.core.settings import KafkaSettings
from arborcast.directory.errors import DirectoryError
from arborcast.topic_model.control_log import ControlLog
from tests.support.command import Shell
from tests.support.directory import topic
from tests.support.slapd import ADMIN_DN, ENGINE_DN, ENGINE_PASSWORD, SUFFIX, Slapd

pytestmark = [pytest.mark.ldap, pytest.mark.kafka]

_trees = itertools.count()

OLD = {"": "1", "ou=alarm": "2", "ou=graphic": "3", "ou=alarm1,ou=alarm": "5", "ou=alarm2,ou=alarm": "6"}


class Old:
    """The old system's tree, and the command that imports it."""

    def __init__(self, slapd: Slapd, base: str, shell: Shell) -> None:
        self.slapd = slapd
        self.base = base
        self._shell = shell

    def add(self, dn: str, code: str = "", classes: str = "organizationalUnit", **more: str) -> None:
        facts = {**more, **({"description": code} if code else {})}
        with self.slapd.admin() as connection:
            connection.add(f"{dn},{self.base}" if dn else self.base, ["top", classes], facts)

    def invoke(self, *arguments: str, url: str = "", base: str = "", typed: str = "") -> Result:
        where = ["--from-ldap", url or self.slapd.url, "--base", base or self.base]
        return self._shell.run("topics", "import", *where, *arguments, typed=typed)

    def __call__(self, *arguments: str, **more: str) -> Any:
        """As the engine's user of that server, whose paged searches have no limit."""
        result = self.invoke(
            "--bind-dn", ENGINE_DN, "--stdin", "--json", *arguments, typed=f"{ENGINE_PASSWORD}\n", **more
        )
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def topics(self) -> dict[str, str]:
        return {each["path"]: each["code"] for each in self._shell.json("topics", "list")}


@pytest.fixture
def old(slapd: Slapd, kafka_settings: KafkaSettings, tmp_path: Path) -> Old:
    with closing(ControlLog(kafka_settings)) as log:
        log.ensure_created()
        log.append([topic("all", code="mine"), topic("taken", code="3")])
    shell = Shell(tmp_path / "arborcast.toml", kafka_settings)
    tree = Old(slapd, f"ou=old{os.getpid()}-{next(_trees)},{SUFFIX}", shell)
    for dn, code in OLD.items():
        tree.add(dn, code)
    return tree


def test_units_become_topics_once_and_existing_topics_stay(old: Old) -> None:
    old.add("cn=somebody", "x", "person", sn="somebody")
    old.add("ou=hall 1", "9")
    old.add("ou=below,ou=hall 1", "10")
    before = old.topics()

    planned = old("--root", "all", "--dry-run")
    assert planned == {
        "added": 4,
        "unchanged": 1,
        "skipped": 3,
        "other_entries": 1,
        "left_out": {},
        "topics": ["all/alarm", "all/graphic", "all/alarm/alarm1", "all/alarm/alarm2"],
    }
    assert old.topics() == before, "a dry run writes nothing"

    assert old("--root", "all") == planned
    # The root keeps its code, and 3 belongs to another topic here.
    codes = {"all/alarm": "2", "all/graphic": "", "all/alarm/alarm1": "5", "all/alarm/alarm2": "6"}
    assert old.topics() == before | codes
    again = old("--root", "all")
    assert (again["added"], again["unchanged"], again["topics"]) == (0, 5, [])

    old.add("ou=later,ou=alarm", "11")
    assert old("--root", "all")["topics"] == ["all/alarm/later"]


def test_output_of_the_import(old: Old) -> None:
    old.add("ou=hall 1", "9")
    with_password = {"typed": f"{ENGINE_PASSWORD}\n"}
    said = old.invoke("--root", "{urn:old}all", "--dry-run", "--bind-dn", ENGINE_DN, **with_password)
    assert said.exit_code == 0
    assert f"Password of {ENGINE_DN}" in said.stderr, "the password prompt"
    assert ENGINE_PASSWORD not in said.output
    assert "would add {urn:old}all/alarm/alarm1 5\n" in said.stdout
    assert said.stdout.endswith("5 added, 0 unchanged, 2 skipped\n")
    assert f"skipped ou=hall 1,{old.base}: 'hall 1' is not a legal topic name: " in said.stderr
    assert "skipped {urn:old}all/graphic: its code '3' belongs to taken here: imported without it" in said.stderr


def test_units_as_root_topics_and_the_import_through_tls(old: Old) -> None:
    for options, url in (([], old.slapd.url), (["--start-tls"], old.slapd.url), ([], old.slapd.tls_url)):
        assert old("--dry-run", "--ca-file", old.slapd.ca_file, *options, url=url)["added"] == 4
    assert old()["topics"] == ["alarm", "graphic", "alarm/alarm1", "alarm/alarm2"]


def test_a_tree_beyond_the_server_s_limits_is_read_in_pages(old: Old) -> None:
    """The server returns 100 entries at once, and any number in pages to the engine's user."""
    with old.slapd.admin() as connection:
        for number in range(1_200):
            connection.add(f"ou=n{number},{old.base}", ["organizationalUnit"], {})
    assert old("--root", "all")["added"] == 1_204
    with pytest.raises(DirectoryError, match="size or time limit for anonymous"):
        old.invoke("--root", "all")


def test_refusals_name_the_options(old: Old) -> None:
    bind, admin = ("--bind-dn", ENGINE_DN, "--stdin"), ("--bind-dn", ADMIN_DN, "--stdin")
    for options, typed, where, message in (
        (bind, "wrong\n", {}, "refuses the bind as .*check --bind-dn and its password"),
        ((*admin, "--start-tls"), "wrong\n", {}, "no secure connection .*check --ca-file.*host of --from-ldap"),
        (bind, "\n", {}, "the password is empty; cn=engine"),
        (
            (),
            "",
            {"base": f"ou=none,{SUFFIX}"},
            r"has no entry ou=none,dc=arborcast: check --base.*anonymous clients may",
        ),
        ((), "", {"url": "ldap://127.0.0.1:1"}, r"127\.0\.0\.1:1 cannot be reached"),
        (("--root", "a//."), "", {}, "more than one topic"),
    ):
        with pytest.raises(ArborcastError, match=message) as refused:
            old.invoke(*options, typed=typed, **where)
        assert "directory." not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a file, or --from-ldap"),
        (["x.ldif", "--root", "a"], "a file, or --from-ldap"),
        (["x.ldif", "--from-ldap", "ldap://h", "--base", "ou=a"], "takes the place of a file"),
        (["--from-ldap", "ldap://h", "--base", "ou=a", "--replace"], "takes the place of a file"),
        (["--from-ldap", "ldap://h"], "needs --base"),
        (["--from-ldap", "http://h", "--base", "ou=a"], "ldaps://HOST"),
        (["--from-ldap", "ldap://h/ou=a", "--base", "ou=a"], "only the server"),
        (["--from-ldap", "ldap://cn=x:secret@h", "--base", "ou=a"], "no user in the address"),
        (["--from-ldap", "ldap://h", "--base", "all_test"], "not a DN"),
        (["--from-ldap", "ldap://h", "--base", "ou=a", "--stdin"], "--bind-dn"),
        (["--from-ldap", "ldaps://h", "--base", "ou=a", "--start-tls"], "secured already"),
    ],
)
def test_invalid_combinations_of_options(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ArborcastError, match=message) as refused:
        Shell().run("topics", "import", *arguments, "--home", str(tmp_path))
    assert "secret" not in str(refused.value)
