"""`arborcast keys reseal` on a real control log, while a gateway changes the same subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.admin.control_log import read_table
from arborcast.client import Client, Credentials
from arborcast.core.errors import InfrastructureError, SecretError
from arborcast.core.security.keyring import KeyRing, parse_keys
from arborcast.core.security.signatures import key_of, new_secret
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.projections.resealing import key_id, sealed_in
from arborcast.topic_model.records.control import ControlRecord
from tests.support.command import Shell
from tests.support.gateway_process import GatewayRun
from tests.support.process import killed

pytestmark = pytest.mark.kafka

COUNT = 12


@pytest.fixture
def gateway(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[GatewayRun]:
    more = '[secrets]\ncredentials_over_http = true\n[stack]\nbroker = "external"\n'
    with killed(GatewayRun(tmp_path, kafka_settings, more=more)) as run:
        Shell(run.config)("keys", "new", "--id", "k1")
        run.start()
        yield run


def test_keys_are_changed_while_the_engine_runs(
    gateway: GatewayRun, kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, key_file = Shell(gateway.config, None, "keys"), tmp_path / "home" / "secrets.keys"
    secret = new_secret()
    with Client(gateway.base) as client:
        made = [
            client.subscribe(
                "a", to=f"http://127.0.0.1:9/{number}", secret=secret, credentials=Credentials("user", "hemlig")
            )
            for number in range(COUNT)
        ]
        keys("new", "--id", "k2")
        assert keys.json("reseal", "--dry-run")["secrets"] == 2 * COUNT
        with pytest.raises(SecretError, match=f"{2 * COUNT} secrets are still sealed with k1"):
            keys("remove", "k1")

        # It is interrupted; then a subscription ends and another gets a new secret.
        monkeypatch.setattr("arborcast.admin.control_log._AT_ONCE", 5)
        append, calls = ControlLog.append, 0

        def interrupted(log: ControlLog, batch: list[ControlRecord]) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise InfrastructureError("cut off", 1.0)
            # The records that were read are outdated.
            client.unsubscribe(made[0])
            client.rotate_secret(made[1], new_secret())
            client.pause(made[2])
            return append(log, batch)

        monkeypatch.setattr(ControlLog, "append", interrupted)
        with pytest.raises(InfrastructureError, match="cut off"):
            keys("reseal")
        monkeypatch.setattr(ControlLog, "append", append)
        done = keys.json("reseal")
        assert 0 < done["secrets"] < 2 * COUNT
        assert (done["stuck"], set(done["sealed"])) == ({}, {"k2"})
        assert keys.json("reseal")["secrets"] == 0, "a second run does nothing"

        table = read_table(kafka_settings)
        found = {each.consumer.address.rpartition("/")[2]: each for each in table.subscriptions()}
        assert len(found) == COUNT - 1, "the ended subscription stays ended"
        assert found["2"].paused, "concurrent changes stay"
        keys("remove", "k1")
        ring = KeyRing(parse_keys(key_file.read_text()))
        assert ring.current == "k2"
        for name, each in found.items():
            opened = [ring.open(sealed, each.sealing_context()) for sealed in sealed_in(each)]
            assert {key_id(sealed) for sealed in sealed_in(each)} == {"k2"}
            assert opened[-1].startswith(b"Basic ")
            assert (opened[0] == key_of(secret)) == (name != "1")
            assert key_of(secret) in opened

        # The gateway continues with the new key alone: it opens the replaced ciphertexts.
        client.rotate_secret(made[3], new_secret())
        client.renew(made[4], timedelta(hours=1))
    for each in read_table(kafka_settings).subscriptions():
        assert {key_id(sealed) for sealed in sealed_in(each)} == {"k2"}
