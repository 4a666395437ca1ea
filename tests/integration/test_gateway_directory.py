"""The topic directory in a running gateway: manual edits reach the routing, the engine's topics reach the directory."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import requests

from arborcast.admin.operations import OperationFilter, Recorded, listed
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from tests.support.command import Shell
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.slapd import BASE_DN, ENGINE_DN, ENGINE_PASSWORD, SUFFIX, Slapd
from tests.support.soap_messages import MEDIA_TYPES, envelope, message

pytestmark = [pytest.mark.kafka]


def notify(gateway: GatewayRun, topic: str) -> requests.Response:
    body = f"<wsnt:Notify>{message(topic)}</wsnt:Notify>"
    return requests.post(gateway.broker, envelope(body), headers={"Content-Type": MEDIA_TYPES["1.1"]}, timeout=60)


def edits(kafka: KafkaSettings) -> list[Recorded]:
    """Operations of the directory, the newest first."""
    return listed(kafka, OperationFilter(), 10)[0]


def topics(gateway: GatewayRun) -> int:
    return int(gateway.metric("arborcast_topics"))


def ldap_environment(monkeypatch: pytest.MonkeyPatch, slapd: Slapd) -> None:
    for name, value in {
        "URL": slapd.url,
        "BASE_DN": BASE_DN,
        "BIND": "simple",
        "BIND_DN": ENGINE_DN,
        "PASSWORD": ENGINE_PASSWORD,
    }.items():
        monkeypatch.setenv(f"ARBORCAST_DIRECTORY_{name}", value)


@pytest.mark.ldap
def test_edits_in_ldap_apply_to_publications(
    tmp_path: Path, kafka_settings: KafkaSettings, fresh_slapd: Slapd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fixed topic set, a manually added entry opens a topic, and its removal closes the topic again."""
    ldap_environment(monkeypatch, fresh_slapd)
    monkeypatch.setenv("ARBORCAST_TOPICS_FIXED", "true")
    with fresh_slapd.admin() as connection:
        connection.add(BASE_DN, "organizationalUnit", {"ou": "topics"})
    with gateway_run(tmp_path, kafka_settings, directory="ldap") as gateway:
        gateway.wait_for(lambda: gateway.metric("arborcast_directory_connected") == 1, "connected")
        refused = notify(gateway, "Größe")
        assert "TopicNotSupportedFault" in refused.text
        dn = f"topicName=Größe,{BASE_DN}"
        with fresh_slapd.admin() as connection:
            connection.add(dn, "arborcastTopic", {"topicName": "Größe", "topicCode": "G1"})
        gateway.wait_for(lambda: topics(gateway) == 1, "the topic is known")
        assert notify(gateway, "Größe").status_code == 202
        with fresh_slapd.admin() as connection:
            connection.delete(dn)
        gateway.wait_for(lambda: topics(gateway) == 0, "the topic is removed")
        assert "TopicNotSupportedFault" in notify(gateway, "Größe").text
        gateway.wait_for(lambda: all(each.result for each in edits(kafka_settings)), "the edits are recorded")
    removed, added = edits(kafka_settings)
    assert (added.interface, added.subject, added.before, added.result) == ("directory", "Größe", "", "done")
    assert fresh_slapd.url in added.actor
    assert json.loads(added.after)["code"] == "G1"
    assert (removed.subject, removed.before, removed.after) == ("Größe", added.after, "")


def test_edits_of_the_file_apply_at_run_time_except_broken_ones(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    with gateway_run(tmp_path, kafka_settings, directory="file") as gateway:
        assert notify(gateway, "t:a/b").status_code == 202
        file = tmp_path / "home" / "topics.ldif"
        gateway.wait_for(lambda: file.exists() and "topicName: b" in file.read_text(), "our topic is in the file")
        good = file.read_text()
        file.write_text(good + "this is no LDIF\n")
        gateway.wait_for(lambda: "topics.ldif" in gateway.log.read_text(), "the mistake is reported")
        assert topics(gateway) == 1
        added = "dn: topicName=by-hand,ou=topics,dc=arborcast\nobjectClass: arborcastTopic\ntopicName: by-hand\n"
        file.write_text(f"{good}\n{added}")
        gateway.wait_for(lambda: topics(gateway) == 2, "the edit is known")
        gateway.kill()
        gateway.start()
        assert topics(gateway) == 2
    with closing(LogConsumer(kafka_settings, "control")) as log:
        assert json.loads((tmp_path / "home" / "directory-known.json").read_text())["log"] == log.topic_id()


def codes_in_ldap(slapd: Slapd) -> dict[str, str]:
    """By name; empty for an entry without a code."""
    with slapd.admin() as connection:
        connection.search(SUFFIX, "(objectClass=arborcastTopic)", attributes=["topicName", "topicCode"])
        found = [entry["attributes"] for entry in connection.response]
    return {each["topicName"][0]: "".join(each.get("topicCode", [])) for each in found}


@pytest.mark.ldap
def test_topics_get_codes_from_their_places_also_in_ldap(
    tmp_path: Path, kafka_settings: KafkaSettings, fresh_slapd: Slapd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is away at the gateway's start, which does not wait for it, and is restarted before manual edits."""
    ldap_environment(monkeypatch, fresh_slapd)
    monkeypatch.setenv("ARBORCAST_TOPICS_CODES", "position")
    fresh_slapd.stop()
    with gateway_run(tmp_path, kafka_settings, directory="ldap") as gateway:
        run = Shell(gateway.config, None, "topics")

        def codes() -> dict[str, str]:
            return {each["path"]: each["code"] for each in run.json("list")}

        def has_code(topic: str) -> bool:
            return bool(codes().get(topic))

        assert gateway.metric("arborcast_directory_connected") == 0
        for topic in ("all", "all/alarm", "all/fire"):
            assert notify(gateway, topic).status_code == 202
            gateway.wait_for(partial(has_code, topic), f"a code for {topic}")
        assert codes() == {"all": "1", "all/alarm": "1.1", "all/fire": "1.2"}
        fresh_slapd.start()
        in_ldap = {"all": "1", "alarm": "1.1", "fire": "1.2"}
        gateway.wait_for(lambda: codes_in_ldap(fresh_slapd) == in_ldap, "the codes in LDAP")
        fresh_slapd.restart()
        assert run("find", "1.2").split() == ["all/fire"]

        # Siblings are removed, by the command and in LDAP; a manual edit changes an attribute, and one removes a code.
        run("remove", "code:1.1")
        gateway.wait_for(lambda: "alarm" not in codes_in_ldap(fresh_slapd), "the removal in LDAP")
        all_dn = f"topicName=all,{BASE_DN}"
        with fresh_slapd.admin() as connection:
            fire = {"topicCode": [("MODIFY_DELETE", [])], "topicPriority": [("MODIFY_ADD", ["3"])]}
            connection.modify(f"topicName=fire,{all_dn}", fire)
            connection.add(f"topicName=flood,{all_dn}", "arborcastTopic", {"topicName": "flood"})
            connection.add(f"topicName=chosen,{BASE_DN}", "arborcastTopic", {"topicName": "chosen", "topicCode": "2"})
        assert notify(gateway, "next").status_code == 202
        in_ldap = {"all": "1", "fire": "1.2", "flood": "1.3", "chosen": "2", "next": "3"}
        gateway.wait_for(lambda: codes_in_ldap(fresh_slapd) == in_ldap, "the codes in LDAP")
        (fire,) = run.json("list", "all/fire")
        assert (fire["code"], fire["placed"], fire["policy"]["priority"]) == ("1.2", True, 3)
        before = codes()
        gateway.kill()
        gateway.start()
        run("add", "all/last", "--priority", "4")
        gateway.wait_for(lambda: codes().get("all/last") == "1.4", "a code after a restart")
        assert before.items() <= codes().items()

        # A topic added again is another topic than the removed one.
        run("add", "all/alarm")
        gateway.wait_for(lambda: codes_in_ldap(fresh_slapd).get("alarm") == "1.5", "a new code in LDAP")
