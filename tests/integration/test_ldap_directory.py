"""What only a server can do to us: TLS, binds, limits, restarts, moves of subtrees. Against a real OpenLDAP."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topic_model.directory
from tests.support.directory import Log, Watch, eventually, topic
from tests.support.slapd import ENGINE_DN, SUFFIX, Slapd
from topic_model.directory.changes import Move, Put
from topic_model.directory.errors import DirectoryAway, DirectoryRefused
from topic_model.directory.file_directory import FileDirectory
from topic_model.directory.ldap_directory import LdapDirectory
from topic_model.directory.listing import Listing, ProblemKind
from topic_model.directory.sync import DirectorySync
from topic_model.settings import DirectorySettings
from topic_model.topics import parse_path

pytestmark = pytest.mark.ldap

_bases = itertools.count()
Open = Callable[..., LdapDirectory]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens directories and closes them after the test."""
    directories: list[LdapDirectory] = []

    def open_one(settings: DirectorySettings) -> LdapDirectory:
        directories.append(LdapDirectory(settings))
        return directories[-1]

    yield open_one
    for directory in directories:
        directory.close()


@pytest.fixture
def settings(slapd: Slapd) -> DirectorySettings:
    """A base of the test's own on the shared server."""
    return slapd.settings(base_dn=f"ou=own{next(_bases)},{SUFFIX}")


def fill(directory: LdapDirectory, *paths: str) -> Listing:
    result = directory.write([Put(topic(path)) for path in paths], directory.load())
    assert result.problems == ()
    return result.listing


def changed(settings: DirectorySettings, **facts: object) -> DirectorySettings:
    return DirectorySettings(**{**vars(settings), **facts})  # type: ignore[arg-type]


# -- connecting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ldaps", "starttls"])
def test_reading_and_watching_through_tls(slapd: Slapd, settings: DirectorySettings, opened: Open, how: str) -> None:
    secure = {"ldaps": {"url": slapd.tls_url}, "starttls": {"start_tls": True}}[how]
    directory = opened(changed(settings, ca_file=slapd.ca_file, **secure))
    fill(directory, "a")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a")
    fill(opened(settings), "b")
    watch.wait_paths("a", "b")


@pytest.mark.parametrize("how", ["ldaps", "starttls"])
def test_a_server_whose_certificate_we_do_not_trust(
    slapd: Slapd, settings: DirectorySettings, opened: Open, how: str
) -> None:
    secure = {"ldaps": {"url": slapd.tls_url}, "starttls": {"start_tls": True}}[how]
    with pytest.raises(DirectoryRefused, match=r"directory\.ca_file"):
        opened(changed(settings, **secure)).load()


def test_a_certificate_for_another_host(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    # The certificate is for 127.0.0.1, which is this machine under another address too.
    url = slapd.tls_url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises((DirectoryRefused, DirectoryAway)):
        opened(changed(settings, url=url, ca_file=slapd.ca_file)).load()


def test_sasl_external_with_a_client_certificate(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(
        changed(
            settings,
            url=slapd.tls_url,
            ca_file=slapd.ca_file,
            bind="external",
            bind_dn="",
            password="",
            certificate_file=str(slapd.home / "client.pem"),
            key_file=str(slapd.home / "client.key"),
        )
    )
    # Only the engine may write, so a write proves who we came as.
    assert set(fill(directory, "a").entries) == {"a"}


def test_sasl_external_over_the_unix_socket(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(changed(settings, url=slapd.ipc_url, bind="external", bind_dn="", password=""))
    assert set(fill(directory, "a").entries) == {"a"}


def test_anonymous_may_read_and_is_told_that_it_may_not_write(settings: DirectorySettings, opened: Open) -> None:
    fill(opened(settings), "a")
    anonymous = opened(changed(settings, bind="anonymous", bind_dn="", password=""))
    listing = anonymous.load()
    assert set(listing.entries) == {"a"}
    with pytest.raises(DirectoryRefused, match="anonymous"):
        anonymous.write([Put(topic("b"))], listing)


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_names_who_was_refused(settings: DirectorySettings, opened: Open, password: str) -> None:
    directory = opened(changed(settings, password=password))
    with pytest.raises(DirectoryRefused, match=ENGINE_DN) as caught:
        directory.load()
    assert caught.value.dn == ENGINE_DN
    assert "wrong" not in str(caught.value)
    watch = Watch()
    directory.watch(watch)
    assert isinstance(watch.wait_error(), DirectoryRefused)


def test_a_file_with_authorities_that_is_not_there(settings: DirectorySettings, opened: Open) -> None:
    with pytest.raises(DirectoryRefused, match=r"directory\.ca_file"):
        opened(changed(settings, start_tls=True, ca_file="/nowhere/ca.pem")).load()


# -- limits ------------------------------------------------------------------------------------------------------------


def test_more_topics_than_the_servers_size_limit_are_read_page_by_page(
    settings: DirectorySettings, opened: Open
) -> None:
    names = [f"t{number}" for number in range(350)]  # the limit is 100
    fill(opened(settings), *names)
    directory = opened(settings)
    assert set(directory.load().entries) == set(names)
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths(*names)
    fill(opened(settings), "one-more")
    watch.wait_paths(*names, "one-more")


def test_a_size_limit_that_cannot_be_paged_around_says_what_to_change(
    settings: DirectorySettings, opened: Open
) -> None:
    fill(opened(settings), *[f"t{number}" for number in range(150)])
    anonymous = opened(changed(settings, bind="anonymous", bind_dn="", password=""))
    with pytest.raises(DirectoryRefused, match=r"limits dn\.exact"):
        anonymous.load()


def test_a_name_too_long_for_the_server_is_one_problem_and_the_rest_is_written(
    settings: DirectorySettings, opened: Open
) -> None:
    directory = opened(settings)
    long = "n" * 600
    result = directory.write([Put(topic(long)), Put(topic("a"))], directory.load())
    assert [(problem.kind, problem.path) for problem in result.problems] == [(ProblemKind.REFUSED, long)]
    assert set(directory.load().entries) == {"a"}


# -- edits by hand -----------------------------------------------------------------------------------------------------


def test_an_edit_by_hand_is_seen_within_a_second(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(changed(settings, poll_interval_s=60.0))  # so that polling cannot be what finds it
    fill(directory, "a")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a")
    eventually(lambda: directory._streaming)
    with slapd.admin() as person:
        started = time.monotonic()
        person.modify(f"topicName=a,{settings.base_dn}", {"topicCode": [("MODIFY_REPLACE", ["new"])]})
        when, _ = watch.wait(lambda listing: listing.records() == {"a": topic("a", code="new")}, timeout=1.0)
    assert when - started < 1.0


def test_moving_a_subtree_by_hand_moves_everything_in_it(
    slapd: Slapd, settings: DirectorySettings, opened: Open
) -> None:
    directory = opened(settings)
    fill(directory, "a/x/deep/er", "a/x/y", "b")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a/x/deep/er", "a/x/y", "b")
    with slapd.admin() as person:
        person.modify_dn(
            f"topicName=x,topicName=a,{settings.base_dn}", "topicName=z", new_superior=f"topicName=b,{settings.base_dn}"
        )
        watch.wait_paths("b/z/deep/er", "b/z/y", "b")
        # And what moved is still followed, under its new name.
        person.modify(
            f"topicName=y,topicName=z,topicName=b,{settings.base_dn}", {"topicPriority": [("MODIFY_REPLACE", ["4"])]}
        )
        watch.wait(lambda listing: listing.records()[parse_path("b/z/y")].policy.priority == 4)
        person.delete(f"topicName=y,topicName=z,topicName=b,{settings.base_dn}")
        watch.wait_paths("b/z/deep/er", "b")


def test_subtrees_that_move_out_of_the_base_and_into_it(
    slapd: Slapd, settings: DirectorySettings, opened: Open
) -> None:
    outside = opened(changed(settings, base_dn=f"ou=attic,{settings.base_dn}"))
    directory = opened(changed(settings, base_dn=f"ou=tree,{settings.base_dn}"))
    with slapd.admin() as person:
        person.add(settings.base_dn, ["organizationalUnit"], {"ou": settings.base_dn[3:].partition(",")[0]})
    fill(outside, "old")
    fill(directory, "a/b/c", "keep")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a/b/c", "keep")
    with slapd.admin() as person:
        tree, attic = f"ou=tree,{settings.base_dn}", f"ou=attic,{settings.base_dn}"
        person.modify_dn(f"topicName=b,topicName=a,{tree}", "topicName=b", new_superior=attic)
        watch.wait_paths("keep")
        person.modify_dn(f"topicName=b,{attic}", "topicName=back", new_superior=tree)
        watch.wait_paths("back/c", "keep")


def test_an_alias_loop_is_not_followed(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(settings)
    fill(directory, "a")
    with slapd.admin() as person:
        target = f"topicName=a,{settings.base_dn}"
        person.add(f"cn=loop,{target}", ["alias", "extensibleObject"], {"cn": "loop", "aliasedObjectName": target})
    listing = directory.load()
    assert set(listing.entries) == {"a"}
    assert [problem.kind for problem in listing.problems] == [ProblemKind.ALIAS]


def test_a_move_of_ours_is_one_rename_that_others_see_as_such(settings: DirectorySettings, opened: Open) -> None:
    directory, other = opened(settings), opened(settings)
    fill(directory, "a/x/y", "a/x", "b")
    watch, own = Watch(), Watch()
    other.watch(watch)
    directory.watch(own)
    _, seen = own.wait_paths("a/x/y", "a/x", "b")
    watch.wait_paths("a/x/y", "a/x", "b")
    result = directory.write([Move(parse_path("a/x"), parse_path("b/{urn:n}x"))], seen)
    assert result.problems == ()
    assert set(result.listing.entries) == {"b", "b/{urn:n}x", "b/{urn:n}x/y"}
    watch.wait_paths("b", "b/{urn:n}x", "b/{urn:n}x/y")


# -- a server that comes and goes --------------------------------------------------------------------------------------


def test_edits_made_while_the_connection_was_gone_are_seen_after_it(fresh_slapd: Slapd, opened: Open) -> None:
    directory = opened(fresh_slapd.settings())
    fill(directory, "a", "b")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a", "b")
    fresh_slapd.stop()
    assert isinstance(watch.wait_error(), DirectoryAway)
    # Started on the side, edited, and stopped again, so that the watch could not see it happen.
    port, fresh_slapd.port = fresh_slapd.port, fresh_slapd.tls_port
    tls, fresh_slapd.tls = fresh_slapd.tls, False
    fresh_slapd.start()
    with fresh_slapd.admin() as person:
        person.delete(f"topicName=a,{fresh_slapd.settings().base_dn}")
    fresh_slapd.stop()
    fresh_slapd.port, fresh_slapd.tls = port, tls
    fresh_slapd.start()
    _, listing = watch.wait_paths("b")
    assert listing.fresh


def test_writing_after_the_server_was_restarted(fresh_slapd: Slapd, opened: Open) -> None:
    directory = opened(fresh_slapd.settings())
    listing = fill(directory, "a")
    fresh_slapd.restart()
    assert directory.write([Put(topic("b"))], listing).problems == ()
    fresh_slapd.kill()
    with pytest.raises(DirectoryAway):
        directory.write([Put(topic("c"))], directory._current())
    fresh_slapd.start()
    assert set(directory.load().entries) == {"a", "b"}


def _engine(server: Slapd, state: Path, *records: Any) -> tuple[Log, DirectorySync]:
    log = Log()
    sync = DirectorySync(LdapDirectory(server.settings()), log.append, state)
    log.sync = sync
    if records:
        log.append(records)
    sync.start()
    return log, sync


def test_a_server_that_is_down_at_start_and_comes_later(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    fresh_slapd.kill()
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("from-the-log"))
    try:
        eventually(lambda: "cannot be reached" in sync.status.detail)
        assert not sync.status.connected
        log.append([topic("meanwhile")])
        fresh_slapd.start()
        eventually(lambda: sync.status.connected)
        directory = opened(fresh_slapd.settings())
        eventually(lambda: set(directory.load().entries) == {"from-the-log", "meanwhile"})
    finally:
        sync.close()


def test_a_server_that_dies_and_returns_empty_is_filled_again(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("a", code="1"), topic("b/c"))
    try:
        directory = opened(fresh_slapd.settings())
        eventually(lambda: set(directory.load().entries) == {"a", "b/c"})
        fresh_slapd.wipe()
        eventually(lambda: set(directory.load().entries) == {"a", "b/c"}, timeout=20.0)
        assert set(log.topics()) == {"a", "b/c"}
    finally:
        sync.close()


def test_kills_in_the_middle_lose_nothing_on_either_side(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("start"))
    try:
        directory = opened(fresh_slapd.settings())
        eventually(lambda: set(directory.load().entries) == {"start"})
        base = fresh_slapd.settings().base_dn
        for round_number in range(3):
            log.append([topic(f"ours{round_number}/t{n}") for n in range(40)])
            with fresh_slapd.admin() as person:
                name = f"theirs{round_number}"
                person.add(f"topicName={name},{base}", ["arborcastTopic"], {"topicName": name})
            fresh_slapd.kill()
            fresh_slapd.start()
        expected = {"start"} | {f"theirs{r}" for r in range(3)} | {f"ours{r}/t{n}" for r in range(3) for n in range(40)}
        eventually(lambda: set(log.topics()) == expected, timeout=30.0)
        eventually(lambda: set(directory.load().entries) == expected, timeout=30.0)
    finally:
        sync.close()


def test_an_edit_in_ldap_reaches_the_log_within_a_second(fresh_slapd: Slapd, tmp_path: Path) -> None:
    log, sync = _engine(fresh_slapd, tmp_path / "state", topic("a"))
    try:
        eventually(lambda: sync.status.topics == 1 and sync.status.connected)
        base = fresh_slapd.settings().base_dn
        with fresh_slapd.admin() as person:
            eventually(lambda: person.search(base, "(topicName=a)", attributes=["*"]))
            started = time.monotonic()
            person.modify(f"topicName=a,{base}", {"topicCode": [("MODIFY_REPLACE", ["by hand"])]})
            eventually(lambda: log.topics()[parse_path("a")].code == "by hand", timeout=1.0)
        assert time.monotonic() - started < 1.0
    finally:
        sync.close()


# -- polling, and the schema for cn=config -----------------------------------------------------------------------------


def test_a_server_without_syncrepl_is_polled(fresh_slapd: Slapd, opened: Open) -> None:
    config = fresh_slapd.home / "slapd.conf"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "syncprov" not in line) + "\n")
    fresh_slapd.restart()
    directory = opened(fresh_slapd.settings())
    fill(directory, "a")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a")
    with fresh_slapd.admin() as person:
        person.add(f"topicName=b,{fresh_slapd.settings().base_dn}", ["arborcastTopic"], {"topicName": "b"})
    watch.wait_paths("a", "b")
    with fresh_slapd.admin() as person:
        person.delete(f"topicName=a,{fresh_slapd.settings().base_dn}")
    _, listing = watch.wait_paths("b")
    assert not listing.fresh
    assert watch.errors == []


def test_the_file_of_a_file_directory_is_what_openldap_takes(fresh_slapd: Slapd, tmp_path: Path, opened: Open) -> None:
    wanted = [
        topic("a/b", code="1", final=True, message_types=("m1", "m2"), retain=True, priority=-2),
        topic("{http://example.org/a,b=c+d#e}Größe/温度", routing="fast", publishers=("cn=p,o=q",)),
        topic("z"),
    ]
    file = FileDirectory(tmp_path / "topics.ldif", DirectorySettings(base_dn=fresh_slapd.settings().base_dn))
    listing = file.write([Put(record) for record in wanted], file.load()).listing
    # A subtree that ends up below a topic that was added after it: the file must still name parents first.
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


def test_the_schema_for_cn_config_loads_and_equals_the_other(fresh_slapd: Slapd) -> None:
    """Both files converted by slapd itself to its own form, compared word by word."""
    fresh_slapd.kill()
    schemas = {}
    for kind in ("schema", "ldif"):
        home = fresh_slapd.home / kind
        (home / "config").mkdir(parents=True)
        own = Path(topic_model.directory.__file__).parent / f"arborcast.{kind}"
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
    assert len(schemas["schema"]) == 11  # ten attributes and the class


def test_the_file_directory_never_imports_ldap3() -> None:
    code = (
        "import sys; from pathlib import Path; from topic_model.settings import DirectorySettings\n"
        "from topic_model.directory.opening import open_directory; import topic_model.directory.sync\n"
        "open_directory(DirectorySettings(), Path('x')); print('ldap3' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert output.stdout.strip() == "False"
