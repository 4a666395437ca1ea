"""The gateway process with users: settings, files and the log, all of them real."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from ingest.access.passwords import hash_password
from ingest.access.users_file import User, write_users
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.soap_messages import envelope, message, notify, subscribe, topic_expression
from topic_model.settings import KafkaSettings

POLICY = '[[allow]]\ndo = ["publish", "subscribe"]\ntopics = ["{urn:t}a//."]\nusers = ["anna"]\n'


def test_users_a_policy_and_a_file_that_changes(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, policy = tmp_path / "users.toml", tmp_path / "policy.toml"
    write_users({"anna": User("anna", hash_password("secret-a"))}, users)
    policy.write_text(POLICY)
    monkeypatch.setenv("ARBORCAST_ACCESS_METHODS", "basic")
    monkeypatch.setenv("ARBORCAST_ACCESS_USERS_FILE", str(users))
    monkeypatch.setenv("ARBORCAST_ACCESS_POLICY_FILE", str(policy))
    with gateway_run(tmp_path / "gateway", kafka_settings) as run:

        def post(body: str, who: tuple[str, str] | None = ("anna", "secret-a"), url: str = "") -> int:
            return requests.post(url or run.broker, envelope(body), auth=who, timeout=10).status_code

        assert post(notify(message("t:a/b")), None) == 401
        assert post(notify(message("t:a/b")), ("anna", "wrong")) == 401
        assert post(notify(message("t:a/b"))) == 202
        assert post(notify(message("t:c"))) == 403
        assert post(subscribe(filters=topic_expression("t:*"))) == 500
        assert post(subscribe(filters=topic_expression("t:a//."))) == 200
        assert run.metric("arborcast_subscriptions") == 1
        policy.write_text(POLICY + '[[allow]]\ndo = ["publish"]\ntopics = ["{urn:t}c"]\nusers = ["anna"]\n')
        run.wait_for(lambda: post(notify(message("t:c"))) == 202, "the new policy in force")
        assert "secret-a" not in run.log.read_text()


def test_open_to_the_network_it_does_not_start_without_users(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    run = GatewayRun(tmp_path, kafka_settings, host='"0.0.0.0"')
    run.start(ready=False)
    assert run._process is not None
    assert run._process.wait(30) == 2
    assert "set access.methods" in run.log.read_text()
