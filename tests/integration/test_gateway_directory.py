"""The topic directory in a running gateway: a person's edit reaches the routing, our topics reach the directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from core.settings import KafkaSettings
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.slapd import BASE_DN, ENGINE_DN, ENGINE_PASSWORD, SUFFIX, Slapd
from tests.support.soap_messages import MEDIA_TYPES, envelope, message

pytestmark = [pytest.mark.kafka]


def notify(gateway: GatewayRun, topic: str) -> requests.Response:
    body = f"<wsnt:Notify>{message(topic)}</wsnt:Notify>"
    return requests.post(gateway.broker, envelope(body), headers={"Content-Type": MEDIA_TYPES["1.1"]}, timeout=60)


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


def entry_names(slapd: Slapd) -> set[str]:
    with slapd.admin() as connection:
        # From the suffix: the base itself comes with our first topic.
        connection.search(SUFFIX, "(objectClass=arborcastTopic)", attributes=["topicName"])
        entries: list[Any] = connection.response
        return {name for entry in entries for name in entry["attributes"]["topicName"]}


@pytest.mark.ldap
def test_edits_in_ldap_decide_what_may_be_published(
    tmp_path: Path, kafka_settings: KafkaSettings, fresh_slapd: Slapd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fixed topic set, an entry added by hand opens a topic, and removing it closes the topic again."""
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
        gateway.wait_for(lambda: topics(gateway) == 0, "the topic is gone")
        assert "TopicNotSupportedFault" in notify(gateway, "Größe").text


@pytest.mark.ldap
def test_a_directory_that_is_away_at_start_holds_nothing_up_and_is_found_later(
    tmp_path: Path, kafka_settings: KafkaSettings, fresh_slapd: Slapd, monkeypatch: pytest.MonkeyPatch
) -> None:
    ldap_environment(monkeypatch, fresh_slapd)
    fresh_slapd.stop()
    with gateway_run(tmp_path, kafka_settings, directory="ldap") as gateway:
        assert gateway.metric("arborcast_directory_connected") == 0
        assert notify(gateway, "t:made/without").status_code == 202
        fresh_slapd.start()
        gateway.wait_for(lambda: gateway.metric("arborcast_directory_connected") == 1, "connected", timeout=60)
        gateway.wait_for(lambda: "without" in entry_names(fresh_slapd), "our topic is in LDAP")
        fresh_slapd.restart()
        with fresh_slapd.admin() as connection:
            connection.add(f"topicName=later,{BASE_DN}", "arborcastTopic", {"topicName": "later"})
        gateway.wait_for(lambda: topics(gateway) == 2, "an edit after the server's restart arrives", timeout=60)


def test_the_file_is_followed_while_running_and_survives_a_mistake(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
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
