"""The gateway process with users: real settings, files and logs."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from arborcast.client.framed import ConnectionFactory
from arborcast.client.values import FaultReceived
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded import questions
from arborcast.engine.monitoring.samples import Scrape
from arborcast.engine.monitoring.stack_monitor import own_page
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.certificates import Certificates, make_certificates
from tests.support.command import Shell
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.guarded_gateway import digest
from tests.support.held_port import HeldPort
from tests.support.soap_messages import envelope, message, notify, subscribe, topic_expression

pytestmark = pytest.mark.kafka

POLICY = '[[allow]]\ndo = ["publish", "subscribe"]\ntopics = ["{urn:t}a//.", "a//."]\nusers = ["anna", "client"]\n'

ANNA = ("anna", "secret-a")


@dataclass(frozen=True)
class Guarded:
    """Two workers with TLS, all methods of authentication, and a framed port."""

    run: GatewayRun
    framed: int
    policy: Path
    certificates: Certificates

    def post(self, body: str, who: tuple[str, str] | None = ANNA, url: str = "", **how: Any) -> requests.Response:
        return self.run.session.post(url or self.run.broker, envelope(body), auth=who, timeout=60, **how)

    def status(self, body: str, who: tuple[str, str] | None = ANNA) -> int:
        return self.post(body, who).status_code

    def as_client(self, body: str, url: str = "") -> int:
        """With the certificate of another user."""
        cert = (self.certificates.certificate("client"), self.certificates.key("client"))
        return self.post(body, None, url, cert=cert).status_code


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaSettings) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    users, policy, port = folder / "users.toml", folder / "policy.toml", HeldPort()
    write_users(
        {"anna": User("anna", hash_password("secret-a"), clear="secret-a"), "client": User("client")},
        users,
    )
    policy.write_text(POLICY)
    certificates = make_certificates(folder)
    more = (
        f'[framed]\nport = {port.number}\n[access]\nmethods = "basic, token, certificate"\nusers_file = "{users}"\n'
        f'policy_file = "{policy}"\n'
    )
    settings = dataclasses.replace(kafka, prefix="guarded.")
    with gateway_run(folder / "gateway", settings, tls=certificates, more=more, workers=2) as run:
        yield Guarded(run, port.for_life_of(run), policy, certificates)
        assert run.stop() == 0
        assert "secret-a" not in run.text()
        assert "Traceback" not in run.text()


def test_users_a_policy_and_a_file_that_changes(guarded: Guarded) -> None:
    run, status = guarded.run, guarded.status
    assert status(notify(message("t:a/b")), None) == 401
    assert status(notify(message("t:a/b")), ("anna", "wrong")) == 401
    assert status(notify(message("t:a/b"))) == 202
    assert status(notify(message("t:c"))) == 403
    assert status(subscribe(filters=topic_expression("t:*"))) == 500
    assert status(subscribe(filters=topic_expression("t:a//."))) == 200
    guarded.policy.write_text(POLICY + '[[allow]]\ndo = ["publish"]\ntopics = ["{urn:t}c"]\nusers = ["anna"]\n')
    run.wait_for(lambda: status(notify(message("t:c"))) == 202, "the new policy in force")

    def check(*options: str) -> tuple[int, list[dict[str, object]]]:
        result = Shell(run.config).run("access", "check", "--json", *options)
        return result.exit_code, json.loads(result.stdout)

    def subscriptions() -> set[float]:
        page = run.session.get(f"{run.base}/metrics", timeout=60).text
        return set(Scrape.of(page).by("arborcast_subscriptions", "worker").values())

    assert check() == (0, [])
    guarded.policy.write_text(POLICY.replace("{urn:t}a", "{urn:t}c"))
    for options, ended in (((), False), (("--end",), True)):
        status_of_command, (found,) = check(*options)
        assert (found["owner"], found["certain"], found["ended"]) == ("anna", True, ended)
        assert status_of_command == (not ended)
        run.wait_for(lambda number=not ended: subscriptions() == {number}, "known to both workers")  # type: ignore[misc]  # mypy infers no lambda with a default
    assert check() == (0, [])
    guarded.policy.write_text(POLICY)
    run.wait_for(lambda: status(notify(message("t:a/b"))) == 202, "the first policy in force")


def test_the_gateway_over_tls_for_clients_and_its_supervisor(guarded: Guarded) -> None:
    made = guarded.post(subscribe(filters=topic_expression("t:a//.")))
    assert f"{guarded.run.base}/wsn/subscriptions/" in made.text, "an https address"
    assert guarded.as_client(notify(message("t:a/b"))) == 202
    # Only its owner may end the subscription.
    manager = made.text.partition("/wsn/subscriptions/")[2].partition("<")[0]
    url = f"{guarded.run.base}/wsn/subscriptions/{manager}"
    assert guarded.as_client("<wsnt:Unsubscribe/>", url) == 500
    assert guarded.post("<wsnt:Unsubscribe/>", url=url).status_code == 200
    # Requests of the supervisor have no user and do not check the certificate.
    assert questions.answers_page(f"{guarded.run.base}/health/ready", 60)
    assert b"arborcast_gateway_tls_handshakes_total" in own_page(f"{guarded.run.base}/metrics")


def test_users_and_their_rights_at_the_framed_port(guarded: Guarded) -> None:
    def factory(user: str, password: str) -> ConnectionFactory:
        url, authority = f"framed+tls://127.0.0.1:{guarded.framed}", guarded.certificates.authority
        return ConnectionFactory(url, user, password, tls_ca_file=authority, timeout_s=120)

    for user, password in (("", ""), ("anna", "wrong"), ("bert", "secret-a")):
        with pytest.raises(FaultReceived, match="NotAuthenticated"):
            factory(user, password).connection()
    with factory(*ANNA).connection() as connection:
        session = connection.session()
        assert session.producer("a/b").send("<x/>")
        session.consumer("a//.", print)
        with pytest.raises(FaultReceived, match="Forbidden"):
            session.producer("c").send("<x/>")
        with pytest.raises(FaultReceived, match="Forbidden"):
            session.consumer("//.", print)


def test_replayed_digests_are_refused_also_after_restarts(guarded: Guarded) -> None:
    run = guarded.run

    def sent(overheard: bytes) -> int:
        # A separate connection, so that the kernel chooses the worker.
        headers = {"Connection": "close"}
        return run.session.post(run.broker, overheard, timeout=60, headers=headers).status_code

    overheard = [
        envelope(notify(message("t:a/b")), header=digest(*ANNA, nonce=b"%d" % number, now=time.time()))
        for number in range(10)
    ]
    assert [sent(each) for each in overheard] == [202] * 10
    # With two workers, ten further requests all miss the worker that took it once in a thousand times.
    assert [sent(each) for each in overheard for _ in range(4)] == [500] * 40
    run.kill()
    run.start()
    assert [sent(each) for each in overheard] == [500] * 10
    assert sent(envelope(notify(message("t:a/b")), header=digest(*ANNA, now=time.time()))) == 202
    assert (run.config.parent / "home" / "nonces").stat().st_mode & 0o077 == 0
