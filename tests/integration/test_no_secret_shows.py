"""A real gateway gets secrets in every possible way; then all its output is searched for them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from arborcast.client import Client, Credentials, FaultReceived
from arborcast.core.eventlog.topics import specifications
from arborcast.core.security.signatures import new_secret
from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.broker import records_in
from tests.support.command import Shell
from tests.support.gateway_process import GatewayRun
from tests.support.process import killed

pytestmark = pytest.mark.kafka

# Random texts, for the search.
PASSWORD = "hemlig-Passw0rd-Basic"  # noqa: S105
TOKEN = "hemlig.token-Bearer"  # noqa: S105
LDAP_PASSWORD = "hemlig-ldap-bind"  # noqa: S105
POLICY = "urn:arborcast:policy"


@pytest.fixture
def gateway(tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayRun]:
    monkeypatch.setenv("ARBORCAST_DIRECTORY_PASSWORD", LDAP_PASSWORD)
    more = "[secrets]\ncredentials_over_http = true\n"
    with killed(GatewayRun(tmp_path, kafka_settings, more=more, forked=False)) as run:
        Shell(run.config)("keys", "new")
        run.start()
        yield run


def keys_of(folder: Path) -> list[str]:
    return [line.split()[1] for line in (folder / "home" / "secrets.keys").read_text().splitlines()]


def records_of(kafka: KafkaSettings) -> bytes:
    """Every byte of every log of this engine."""
    names = [each.name.removeprefix(kafka.prefix) for each in specifications(kafka)]
    records = [record for name in names for record in records_in(kafka, name)]
    return b"".join((record.key or b"") + b"\n" + (record.value or b"") for record in records)


def test_no_secret_shows(gateway: GatewayRun, tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    given, rotated = new_secret(), new_secret()
    answers: list[bytes] = []
    with Client(gateway.base) as client:
        subscription = client.subscribe(
            "a", to="http://127.0.0.1:9/", secret=given, credentials=Credentials("user", PASSWORD)
        )
        client.rotate_secret(subscription, rotated)
        made = client.subscribe(
            "b", to="http://127.0.0.1:9/", signed=True, credentials=Credentials(bearer=TOKEN)
        ).secret
        client.notify("a", "<x/>")
        with pytest.raises(FaultReceived) as refused:
            client.rotate_secret(subscription, given + "!")
        answers.append(str(refused.value).encode())
    # Unreadable and refused requests are answered and logged, too.
    element = f'<p:Signing xmlns:p="{POLICY}"><p:Secret>{given}</p:Secret></p:Signing>'
    address, policy = "http://127.0.0.1:9/", "<wsnt:SubscriptionPolicy>{}</wsnt:SubscriptionPolicy>".format
    for body in (
        soap.envelope(soap.subscribe(address, more=policy(f"{element}<x/>"))),
        soap.envelope(soap.subscribe("gopher://h/", more=policy(element))),
        soap.envelope(soap.subscribe(address, more=f"<wsnt:SubscriptionPolicy>{element}"))[:-40],
        soap.envelope(element),
    ):
        answer = requests.post(gateway.broker, body, timeout=60)
        assert answer.status_code >= 400
        answers.append(answer.content)
    properties = soap.envelope('<r:GetResourcePropertyDocument xmlns:r="http://docs.oasis-open.org/wsrf/rp-2"/>')
    answers.append(requests.post(subscription.address, properties, timeout=60).content)

    process = Path(f"/proc/{gateway.pid}")
    shown = {
        "answers": b"\n".join(answers),
        "metrics": requests.get(f"{gateway.base}/metrics", timeout=60).content,
        "command line": process.joinpath("cmdline").read_bytes(),
        "Kafka": records_of(kafka_settings),
    }
    assert gateway.stop() == 0
    shown |= {
        str(file.relative_to(tmp_path)): file.read_bytes()
        for file in tmp_path.rglob("*")
        if file.is_file() and file.name != "secrets.keys"
    }
    assert b'"authorization":"k2' in shown["Kafka"], "the sealed secrets are there"
    assert b"http://127.0.0.1:9/" in shown["Kafka"]
    secrets = [given, rotated, made, PASSWORD, TOKEN, LDAP_PASSWORD, *keys_of(tmp_path)]
    for secret in secrets:
        bare = secret.removeprefix("whsec_")
        assert len(bare) > 10
        forms = {bare.encode(), base64.b64encode(bare.encode()).rstrip(b"="), base64.b64encode(f"user:{bare}".encode())}
        if secret.startswith("whsec_") or secret in keys_of(tmp_path):
            forms.add(base64.b64decode(bare))
        for place, content in shown.items():
            for form in forms:
                assert form not in content, f"{secret[:12]}... shows in {place}"
