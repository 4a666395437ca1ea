"""An engine with its console, and its topics in LDAP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.command import Engine
from tests.support.slapd import ENGINE_DN, ENGINE_PASSWORD, SUFFIX, Slapd


@dataclass(frozen=True)
class ConsoleEngine:
    """The engine, where its console is, and what the base of its topics in LDAP is called."""

    engine: Engine
    console: str
    base: str
    slapd: Slapd


@pytest.fixture(scope="session")
def console_engine(slapd: Slapd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleEngine]:
    """One for all tests of the console; each has trees of its own."""
    home = tmp_path_factory.mktemp("console-engine") / "home"
    home.mkdir()
    base = f"ou=console{os.getpid()},{SUFFIX}"
    settings = home.parent / "arborcast.toml"
    settings.write_text(
        f'[directory]\nkind = "ldap"\nurl = "{slapd.url}"\nbase_dn = "{base}"\nbind = "simple"\n'
        f'bind_dn = "{ENGINE_DN}"\npassword = "{ENGINE_PASSWORD}"\npoll_interval_s = 0.1\n[metrics]\nsample_s = 1\n'
    )
    settings.chmod(0o600)
    engine = Engine(home)
    try:
        engine.up("--config", str(settings))
        yield ConsoleEngine(engine, engine.status()["addresses"]["console"], base, slapd)
    finally:
        engine.down()
