"""Files written for OpenLDAP, read by OpenLDAP: the topics and the schema."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import arborcast.directory
from arborcast.directory.entries.changes import Move, Put
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.file import FileDirectory
from arborcast.topic_model.topics import parse_path
from tests.support.directory import Open, topic
from tests.support.slapd import Slapd

pytestmark = pytest.mark.ldap


def test_openldap_accepts_the_file_of_a_file_directory(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    wanted = [
        topic("a/b", code="1", final=True, message_types=("m1", "m2"), retain=True, priority=-2),
        topic("{http://example.org/a,b=c+d#e}Größe/温度", routing="local reliable", publishers=("cn=p,o=q",)),
        topic("z", retain=False),
    ]
    file = FileDirectory(tmp_path / "topics.ldif", DirectorySettings(base_dn=fresh_slapd.settings().base_dn))
    listing = file.write([Put(record) for record in wanted], file.load()).listing
    # A subtree that is moved below a topic that was added later: the file must still have parents first.
    file.write([Move(parse_path("a"), parse_path("z/a"))], listing)
    fresh_slapd.stop()
    added = subprocess.run(
        [str(fresh_slapd.install.slapd), "-Ta", "-f", str(fresh_slapd.home / "slapd.conf"), "-l", file.name],
        env=fresh_slapd.install.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert added.returncode == 0, added.stderr
    fresh_slapd.start()
    assert opened(fresh_slapd.settings()).load().records() == file.load().records()
    assert set(file.load().entries) == {"z", "z/a/b", wanted[1].path}


def test_the_schema_for_cn_config_equals_the_one_for_slapd_conf(fresh_slapd: Slapd) -> None:
    """Both files converted by slapd to its own form, compared word by word."""
    fresh_slapd.kill()
    schemas = {}
    for kind in ("schema", "ldif"):
        home = fresh_slapd.home / kind
        (home / "config").mkdir(parents=True)
        own = Path(arborcast.directory.__file__).parent / f"arborcast.{kind}"
        conf = home / "slapd.conf"
        include = f"include {own}\n" if kind == "schema" else ""
        conf.write_text(f"include {fresh_slapd.install.schema}/core.schema\n{include}database config\n")
        tool = [str(fresh_slapd.install.slapd)]
        environment = fresh_slapd.install.environment()
        run = {"env": environment, "capture_output": True, "text": True, "check": False}
        converted = subprocess.run([*tool, "-Tt", "-f", str(conf), "-F", str(home / "config")], **run)  # type: ignore[call-overload]
        assert converted.returncode == 0, converted.stderr
        if kind == "ldif":
            added = subprocess.run([*tool, "-Ta", "-n0", "-F", str(home / "config"), "-l", str(own)], **run)  # type: ignore[call-overload]
            assert added.returncode == 0, added.stderr
        dumped = subprocess.run([*tool, "-Tc", "-n0", "-F", str(home / "config"), "-o", "ldif-wrap=no"], **run)  # type: ignore[call-overload]
        schemas[kind] = sorted(
            " ".join(line.split("}", 1)[-1].split())
            for line in dumped.stdout.splitlines()
            if "topic" in line.lower() and line.startswith("olc")
        )
    assert schemas["schema"] == schemas["ldif"]
    assert len(schemas["schema"]) == 13  # twelve attributes and the class


def test_the_file_directory_never_imports_ldap3() -> None:
    code = (
        "import sys; from arborcast.directory.settings import DirectorySettings\n"
        "from arborcast.directory.stores import open_directory; import arborcast.directory.sync.sync\n"
        "open_directory(DirectorySettings(file='x')); print('ldap3' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert output.stdout.strip() == "False"
