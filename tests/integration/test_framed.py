"""The framed edge of the real gateway process, over real Kafka; with the job: test_doors.py."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from arborcast.client.framed import Connection, ConnectionFactory, published
from arborcast.client.values import BrokerUnavailable, FaultReceived
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.certificates import make_certificates
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.held_port import HeldPort

pytestmark = [pytest.mark.kafka]


class Edge:
    """A gateway with a framed port."""

    def __init__(self, run: GatewayRun, port: int, scheme: str = "framed") -> None:
        self.gateway = run
        self.url = f"{scheme}://127.0.0.1:{port}"

    def connection(self, user: str = "", password: str = "", tls_ca_file: str = "") -> Connection:
        return ConnectionFactory(self.url, user, password, tls_ca_file=tls_ca_file, timeout_s=120).connection()


def test_users_and_their_rights_are_those_of_the_gateway(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, policy, port = tmp_path / "users.toml", tmp_path / "policy.toml", HeldPort()
    write_users({"anna": User("anna", hash_password("secret-a"))}, users)
    policy.write_text('[[allow]]\ndo = ["publish", "subscribe"]\ntopics = ["a//."]\nusers = ["anna"]\n')
    more = (
        f'[framed]\nport = {port.number}\n[access]\nmethods = "basic"\nusers_file = "{users}"\n'
        f'policy_file = "{policy}"\n[limits]\nrequests_per_s = 0.001\nrequest_burst = 20\n'
    )
    certificates = make_certificates(tmp_path)
    with gateway_run(tmp_path / "gateway", kafka_settings, more=more, tls=certificates) as run:
        port.for_life_of(run)
        edge = Edge(run, port.number, "framed+tls")
        for user, password in (("", ""), ("anna", "wrong"), ("bert", "secret-a")):
            with pytest.raises(FaultReceived, match="NotAuthenticated"):
                edge.connection(user, password, str(certificates.authority))
        with edge.connection("anna", "secret-a", str(certificates.authority)) as connection:
            session = connection.session()
            assert session.producer("a/b").send("<x/>")
            session.consumer("a//.", print)
            with pytest.raises(FaultReceived, match="Forbidden"):
                session.producer("c").send("<x/>")
            with pytest.raises(FaultReceived, match="Forbidden"):
                session.consumer("//.", print)
            begun = [session.producer("a/b").begin("<x/>") for _ in range(40)]
            with pytest.raises(BrokerUnavailable) as later:
                published(begun[-1], 120)
            assert later.value.retry_after
        assert "secret-a" not in run.log.read_text()


def test_several_workers_share_the_port(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    port = HeldPort()
    with gateway_run(tmp_path / "gateway", kafka_settings, more=f"[framed]\nport = {port.number}\n", workers=2) as run:
        port.for_life_of(run)
        edge = Edge(run, port.number)
        with ExitStack() as connections:
            opened = [connections.enter_context(edge.connection()) for _ in range(20)]
            begun = [each.session().producer("a").begin("<x/>") for each in opened for _ in range(20)]
            assert len({published(each, 120) for each in begun}) == 400
