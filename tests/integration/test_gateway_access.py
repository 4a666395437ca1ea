"""The gateway process with users: settings, files and the log, all of them real."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded import engine
from arborcast.engine.monitoring.stack_monitor import own_page
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.certificates import make_certificates
from tests.support.command import Shell
from tests.support.gateway_process import gateway_run
from tests.support.guarded_gateway import digest
from tests.support.receiver import Receiver
from tests.support.soap_messages import envelope, message, notify, subscribe, topic_expression

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
            return requests.post(url or run.broker, envelope(body), auth=who, timeout=60).status_code

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

        def check(*options: str) -> tuple[int, list[dict[str, object]]]:
            result = Shell(run.config).run("access", "check", "--json", *options)
            return result.exit_code, json.loads(result.stdout)

        assert check() == (0, [])
        policy.write_text(POLICY.replace("urn:t}a", "urn:t}c"))
        status, (found,) = check()
        assert (status, found["owner"], found["certain"], found["ended"]) == (1, "anna", True, False)
        assert run.metric("arborcast_subscriptions") == 1
        status, (found,) = check("--end")
        assert (status, found["ended"]) == (0, True)
        run.wait_for(lambda: run.metric("arborcast_subscriptions") == 0, "the subscription gone")
        assert check() == (0, [])


def test_a_digest_that_was_overheard_is_worth_nothing_to_any_worker_nor_after_a_restart(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    users = tmp_path / "users.toml"
    write_users({"anna": User("anna", hash_password("secret-a"), clear="secret-a")}, users)
    access = f'[access]\nmethods = "token"\nusers_file = "{users}"\n'
    with gateway_run(tmp_path / "gateway", kafka_settings, more=access, workers=2) as run:

        def sent(overheard: bytes) -> int:
            # A connection of its own, so that the kernel chooses the worker.
            return requests.post(run.broker, overheard, timeout=60, headers={"Connection": "close"}).status_code

        overheard = [
            envelope(notify(message("t:a/b")), header=digest("anna", "secret-a", nonce=b"%d" % number, now=time.time()))
            for number in range(10)
        ]
        assert [sent(each) for each in overheard] == [202] * 10
        # With two workers, ten others after another all miss the one that took it once in a thousand times.
        assert [sent(each) for each in overheard for _ in range(4)] == [500] * 40
        run.kill()
        run.start()
        assert [sent(each) for each in overheard] == [500] * 10
        assert sent(envelope(notify(message("t:a/b")), header=digest("anna", "secret-a", now=time.time()))) == 202
        assert "secret-a" not in run.log.read_text()
    assert (tmp_path / "gateway" / "home" / "nonces").stat().st_mode & 0o077 == 0


def test_all_of_it_over_tls_as_its_supervisor_sees_it(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    certificates = make_certificates(tmp_path)
    users = tmp_path / "users.toml"
    write_users(
        {"anna": User("anna", hash_password("secret-a")), "client": User("client")},
        users,
    )
    access = f'[access]\nmethods = "basic, certificate"\nusers_file = "{users}"\n'
    with (
        Receiver() as receiver,
        gateway_run(tmp_path / "gateway", kafka_settings, tls=certificates, more=access) as run,
    ):

        def post(body: str, **how: Any) -> requests.Response:
            return run.session.post(run.broker, envelope(body), timeout=60, **how)

        anna = ("anna", "secret-a")
        wanted = subscribe(receiver.url("/"), topic_expression("t:a//."))
        assert post(wanted).status_code == 401
        made = post(wanted, auth=anna)
        assert made.status_code == 200
        assert f"{run.base}/wsn/subscriptions/" in made.text, "clients are told the https address"
        assert post(notify(message("t:a/b")), auth=anna).status_code == 202
        shown = (certificates.certificate("client"), certificates.key("client"))
        assert post(notify(message("t:a/b")), cert=shown).status_code == 202
        # Its owner's: to the other one it is not there.
        manager = made.text.partition("/wsn/subscriptions/")[2].partition("<")[0]
        for who, status in ((None, 500), (anna, 200)):
            answer = requests.post(
                f"{run.base}/wsn/subscriptions/{manager}",
                envelope("<wsnt:Unsubscribe/>"),
                timeout=60,
                verify=certificates.authority,
                auth=who,
                cert=shown if who is None else None,
            )
            assert answer.status_code == status
        # The supervisor knows neither users nor the authority, only that this is its own machine.
        assert engine.answers_ready("127.0.0.1", run.port, timeout=60, tls=True)
        assert b"arborcast_gateway_accepted_total 2" in own_page(f"{run.base}/metrics")
        assert run.metric("arborcast_gateway_tls_handshakes_total") >= 5
        assert run.stop() == 0
        log = run.log.read_text()
        assert "secret-a" not in log
        assert "Traceback" not in log
