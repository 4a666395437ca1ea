"""Limits, moves of subtrees, restarts and a missing syncrepl, with a real OpenLDAP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arborcast.directory.entries.changes import Move, Put
from arborcast.directory.entries.mapping import ProblemKind
from arborcast.directory.errors import DirectoryRefused, DirectoryUnavailable
from arborcast.directory.settings import DirectorySettings
from arborcast.topic_model.topics import parse_path
from tests.support.directory import Open, Watch, fill, topic
from tests.support.slapd import Slapd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ldap


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


def test_the_error_for_a_size_limit_names_the_setting_to_change(settings: DirectorySettings, opened: Open) -> None:
    fill(opened(settings), *[f"t{number}" for number in range(150)])
    anonymous = opened(replace(settings, bind="anonymous", bind_dn="", password=""))
    with pytest.raises(DirectoryRefused, match=r"limits dn\.exact"):
        anonymous.load()


def test_a_too_long_name_is_a_problem_and_others_are_written(settings: DirectorySettings, opened: Open) -> None:
    directory = opened(settings)
    long = "n" * 600
    result = directory.write([Put(topic(long)), Put(topic("a"))], directory.load())
    assert [(problem.kind, problem.path) for problem in result.problems] == [(ProblemKind.REFUSED, long)]
    assert set(directory.load().entries) == {"a"}


def test_of_two_names_that_are_equal_for_the_server_the_second_is_refused(
    settings: DirectorySettings, opened: Open
) -> None:
    directory = opened(settings)
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    result = directory.write([Put(topic(composed)), Put(topic(decomposed)), Put(topic("a"))], directory.load())
    (problem,) = result.problems
    assert (problem.kind, problem.path) == (ProblemKind.REFUSED, decomposed)
    assert "other Unicode characters" in problem.reason
    assert set(directory.load().entries) == {composed, "a"}


def test_the_server_reports_a_manual_edit(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(replace(settings, poll_interval_s=60.0))  # so that polling does not find it
    fill(directory, "a")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a")
    wait_until(lambda: directory._streaming)
    with slapd.admin() as person:
        person.modify(f"topicName=a,{settings.base_dn}", {"topicCode": [("MODIFY_REPLACE", ["new"])]})
        watch.wait(lambda listing: listing.records() == {"a": topic("a", code="new")})


def test_a_manual_move_of_a_subtree_moves_everything_in_it(
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
        # The moved topic is still followed, under its new name.
        person.modify(
            f"topicName=y,topicName=z,topicName=b,{settings.base_dn}", {"topicPriority": [("MODIFY_REPLACE", ["4"])]}
        )
        watch.wait(lambda listing: listing.records()[parse_path("b/z/y")].policy.priority == 4)
        person.delete(f"topicName=y,topicName=z,topicName=b,{settings.base_dn}")
        watch.wait_paths("b/z/deep/er", "b")


def test_subtrees_that_move_out_of_the_base_and_into_it(
    slapd: Slapd, settings: DirectorySettings, opened: Open
) -> None:
    outside = opened(replace(settings, base_dn=f"ou=attic,{settings.base_dn}"))
    directory = opened(replace(settings, base_dn=f"ou=tree,{settings.base_dn}"))
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


def test_a_move_of_the_engine_is_one_rename_for_other_clients(settings: DirectorySettings, opened: Open) -> None:
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


def test_edits_during_a_lost_connection_are_reported_after_it(fresh_slapd: Slapd, opened: Open) -> None:
    directory = opened(fresh_slapd.settings())
    fill(directory, "a", "b")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a", "b")
    fresh_slapd.stop()
    assert isinstance(watch.wait_error(), DirectoryUnavailable)
    # Started separately, edited, and stopped again, so that the watch missed it.
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
    with pytest.raises(DirectoryUnavailable):
        directory.write([Put(topic("c"))], directory._current())
    fresh_slapd.start()
    assert set(directory.load().entries) == {"a", "b"}


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
