"""What security costs, side by side in one run: ways to say who one is, signed pushes; and behaviour under overload.

python -m benchmarks.gateway.security [--quick] [--json FILE]

Rounds of all variants take turns, so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import msgspec
import psutil
from cryptography.hazmat.primitives.asymmetric import ec

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.settings import PushSettings
from arborcast.ingest.access.users_file import made, write_users
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.gateway import guarded_load as guarded
from benchmarks.harness import Report, run
from tests.support import soap_messages as soap
from tests.support.broker import new_broker, settings_for
from tests.support.certificates import Certificates, make_certificates
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.outbound import THIS_MACHINE

_PAYLOAD = '<o:order xmlns:o="urn:o" id="1234567890">' + "<o:line>widget, blue, 12</o:line>" * 10 + "</o:order>"
_PASSWORD = "a password of some length"  # noqa: S105  # of nobody
_ISSUER, _AUDIENCE = "https://id.example", "arborcast"
_WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-"
_CONNECTIONS = 64


@dataclass
class Variant:
    """One way to send the same notification, and what came of it in each round."""

    name: str
    gateway: GatewayRun
    file: Path
    more: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)

    def load(self, connections: int, seconds: float, rate: float | None = None) -> dict[str, float]:
        """Send for a while, from a process of its own."""
        told = {"port": self.gateway.port, "file": str(self.file), "connections": connections, "seconds": seconds}
        command = [
            sys.executable,
            "-m",
            "benchmarks.gateway.guarded_load",
            json.dumps(told | {"rate": rate} | self.more),
        ]
        result: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        return result


def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = new_broker(folder / "kafka")
        broker.start()
        try:
            kafka = settings_for(broker)
            certificates = make_certificates(folder)
            _authentication(report, folder, kafka, certificates)
            _overload(report, folder, kafka)
        finally:
            broker.kill()
    _signing(report)


def _authentication(report: Report, folder: Path, kafka: KafkaSettings, certificates: Certificates) -> None:
    seconds, rounds = (1, 1) if report.quick else (5, 4)
    write_users(
        {
            "press": made("press", _PASSWORD, frozenset(), keep_clear=True),
            "client": made("client", _PASSWORD, frozenset(), keep_clear=False),
        },
        folder / "users.toml",
    )
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key(), as_dict=True)
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    claims = {"sub": "press", "iss": _ISSUER, "aud": _AUDIENCE, "exp": time.time() + 86_400}
    access = (
        f'[access]\nmethods = "basic, bearer, token, certificate"\nusers_file = "{folder / "users.toml"}"\n'
        f'token_nonces = 10000000\njwks_file = "{folder / "jwks.json"}"\njwt_issuer = "{_ISSUER}"\n'
        f'jwt_audience = "{_AUDIENCE}"\n'
    )
    tls = {"ca": certificates.authority}
    shown = tls | {"certificate": certificates.certificate("client"), "key": certificates.key("client")}
    with ExitStack() as stack:

        def gateway(name: str, **how: Any) -> GatewayRun:
            return stack.enter_context(gateway_run(folder / name, kafka, **how))

        plain, plain_tls = gateway("plain"), gateway("plain-tls", tls=certificates)
        # Certificates are only known where there is TLS; the settings ask for an authority in any case.
        asking_tls = gateway("asking-tls", tls=certificates, more=access)
        asking = gateway("asking", more=access.replace(", certificate", ""))
        basic = "Basic " + base64.b64encode(f"press:{_PASSWORD}".encode()).decode()
        bearer = "Bearer " + jwt.encode(claims, key, "ES256")
        nobody, with_token = _request(folder, "plain"), _request(folder, "token", token=True)
        variants = [
            Variant("http, nobody asked", plain, nobody),
            Variant("http, Basic", asking, _request(folder, "basic", basic)),
            Variant("http, bearer token (ES256)", asking, _request(folder, "bearer", bearer)),
            Variant("http, token sent, nobody asked", plain, with_token, {"password": _PASSWORD}),
            Variant("http, UsernameToken digest", asking, with_token, {"password": _PASSWORD}),
            Variant("https, nobody asked", plain_tls, nobody, tls),
            Variant("https, client certificate", asking_tls, nobody, shown),
        ]
        # What each is compared with sends the very same bytes, so that only asking is measured.
        against = {1: 0, 2: 0, 4: 3, 6: 5}
        for each in variants:
            each.load(_CONNECTIONS, 1)
        for _ in range(rounds):
            for each in variants:
                before = _cpu(each.gateway)
                result = each.load(_CONNECTIONS, seconds)
                each.rounds.append(result | {"cpu": (_cpu(each.gateway) - before) / seconds})
        with report.table(
            "Notify from 64 connections, accepted",
            *("who", "requests/s", "p50 ms", "p99 ms", "refused", "gateway CPU us each", "less than", "by %"),
            note=f"medians of {rounds} rounds of {seconds} s, taken in turns; answered when Kafka has acknowledged",
        ) as table:
            for number, each in enumerate(variants):
                rate = _median(each, "per_second")
                other = variants[against[number]] if number in against else None
                table.add(
                    each.name,
                    rate,
                    _median(each, "p50_ms"),
                    _median(each, "p99_ms"),
                    int(sum(result["refused"] for result in each.rounds)),
                    _median(each, "cpu") / rate * 1e6,
                    None if other is None else other.name,
                    None if other is None else (1 - rate / _median(other, "per_second")) * 100,
                )


def _overload(report: Report, folder: Path, kafka: KafkaSettings) -> None:
    seconds = 2 if report.quick else 15
    columns = ("load", "accepted/s", "refused/s", "p50 ms", "p99 ms", "RSS MiB", "back after s")
    with gateway_run(folder / "overload", kafka) as gateway:
        one = Variant("", gateway, _request(folder, "overload"))
        one.load(_CONNECTIONS, 1)
        with report.table(
            "Ten times the load, without limits", *columns, note="ten times the connections; then one alone again"
        ) as table:
            calm = one.load(1, seconds / 5)
            before = one.load(_CONNECTIONS, seconds)
            table.add("64 connections", *_shares(before, seconds), _resident(gateway), None)
            over = one.load(10 * _CONNECTIONS, seconds)
            resident = _resident(gateway)
            table.add("640 connections", *_shares(over, seconds), resident, _until_calm(one, calm["p50_ms"]))
            table.add("64 again", *_shares(one.load(_CONNECTIONS, seconds), seconds), _resident(gateway), None)
    users = {name: made(name, _PASSWORD, frozenset(), keep_clear=False) for name in ("loud", "quiet")}
    write_users(users, folder / "two.toml")
    rate = 200
    more = (
        f'[access]\nmethods = "basic"\nusers_file = "{folder / "two.toml"}"\n[limits]\nrequests_per_s = {rate}\n'
        f"request_burst = {rate}\n"
    )
    with gateway_run(folder / "limited", kafka, more=more) as gateway:
        loud, quiet = (
            Variant(name, gateway, _request(folder, name, "Basic " + _basic(name))) for name in ("loud", "quiet")
        )
        for each in (loud, quiet):
            each.load(1, 1, rate=1)
        with report.table(
            f"One user sends ten times its {rate} requests per second, another a quarter of them",
            *columns,
            note="over the rate: 429 with Retry-After",
        ) as table:
            alone = quiet.load(4, seconds, rate / 4)
            table.add("quiet, alone", *_shares(alone, seconds), _resident(gateway), None)
            with _beside(loud, _CONNECTIONS, seconds + 1, 10 * rate) as noise:
                beside = quiet.load(4, seconds, rate / 4)
                resident = _resident(gateway)
            table.add("loud", *_shares(noise, seconds + 1), resident, _until_accepted(loud))
            table.add("quiet, beside it", *_shares(beside, seconds), resident, None)


def _signing(report: Report) -> None:
    count, rounds = (200, 1) if report.quick else (20_000, 5)
    keys = KeyRing({"k1": os.urandom(32)})
    vault = Vault(SecretSettings(), keys)
    message = Notification("0" * 32, TopicPath("{urn:t}bench/p1"), _PAYLOAD.encode(), 1)
    command = [sys.executable, "-m", "tests.support.receiver"]
    rates: dict[bool, list[float]] = {False: [], True: []}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        plain = Subscription(
            "s" * 24, EndpointReference(receiver.stdout.readline().strip()), "https://broker.example/s"
        )
        secret = SigningSecret(keys.seal(os.urandom(32), plain.sealing_context()))
        signed = msgspec.structs.replace(plain, protection=Protection((secret,)))
        transport = CurlTransport(PushSettings(), THIS_MACHINE)
        for _ in range(rounds + 1):
            for protected in (False, True):
                rates[protected].append(
                    _pushes(transport, Envelope(signed if protected else plain, vault), message, count)
                )
        transport.close()
        receiver.communicate()
    with report.table(
        "Pushes over libcurl to a receiver in a process of its own", "pushes", "per second", "less by %",
        note=f"medians of {rounds} rounds of {count:,}, taken in turns; an envelope and a push each",
    ) as table:  # fmt: skip
        unsigned, with_signature = (statistics.median(rates[protected][1:]) for protected in (False, True))
        table.add("unsigned", unsigned, None)
        table.add("signed", with_signature, (1 - with_signature / unsigned) * 100)


def _pushes(transport: CurlTransport, envelope: Envelope, message: Notification, count: int) -> float:
    statuses: list[int] = []

    def done(result: PushResult) -> None:
        statuses.append(result.status)

    started = time.perf_counter()
    for _ in range(count):
        transport.submit(envelope.request([message], 1), done)
        while transport.in_flight >= _CONNECTIONS:
            transport.drive(0.1)
    while transport.in_flight:
        transport.drive(0.1)
    assert set(statuses) == {202}
    return count / (time.perf_counter() - started)


@contextmanager
def _beside(load: Variant, connections: int, seconds: float, rate: float) -> Iterator[dict[str, float]]:
    """The load, while the block runs; its result is there afterwards."""
    told = {"port": load.gateway.port, "file": str(load.file), "connections": connections, "seconds": seconds}
    command = [sys.executable, "-m", "benchmarks.gateway.guarded_load", json.dumps(told | {"rate": rate})]
    result: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield result
        result.update(json.loads(process.communicate()[0]))


def _until_calm(one: Variant, calm_ms: float) -> float:
    """Seconds until a request alone takes no longer than twice what it took before."""
    started = time.monotonic()
    while one.load(1, 0.2)["p50_ms"] > 2 * calm_ms and time.monotonic() - started < 60:
        pass
    return time.monotonic() - started


def _until_accepted(one: Variant) -> float:
    """Seconds until a request of the one who sent too much is accepted again."""
    started = time.monotonic()
    while not one.load(1, 0.1, rate=10)["per_second"] and time.monotonic() - started < 60:
        pass
    return time.monotonic() - started


def _request(folder: Path, name: str, authorization: str = "", *, token: bool = False) -> Path:
    """A prepared request; with `token`, one with a UsernameToken in which the load puts its digest."""
    header = ""
    if token:
        header = (
            f'<w:Security xmlns:w="{_WSSE}wssecurity-secext-1.0.xsd" s:mustUnderstand="1"><w:UsernameToken>'
            f'<w:Username>press</w:Username><w:Password Type="{_WSSE}username-token-profile-1.0#PasswordDigest">'
            f"{guarded.DIGEST.decode()}</w:Password><w:Nonce>{guarded.NONCE.decode()}</w:Nonce>"
            f'<u:Created xmlns:u="{_WSSE}wssecurity-utility-1.0.xsd">{guarded.CREATED.decode()}</u:Created>'
            "</w:UsernameToken></w:Security>"
        )
    body = soap.envelope(soap.notify(soap.message("t:plant/line1/press", _PAYLOAD)), header=header)
    length = len(body) + (sum(size - len(mark) for mark, size in guarded.LENGTHS.items()) if token else 0)
    who = f"Authorization: {authorization}\r\n" if authorization else ""
    head = (
        "POST /wsn/NotificationBroker HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/xml; charset=utf-8\r\n"
        f'SOAPAction: ""\r\n{who}Content-Length: {length}\r\n\r\n'
    )
    file = folder / f"request-{name}"
    file.write_bytes(head.encode() + body)
    return file


def _basic(name: str) -> str:
    return base64.b64encode(f"{name}:{_PASSWORD}".encode()).decode()


def _median(variant: Variant, what: str) -> float:
    return statistics.median(result[what] for result in variant.rounds)


def _shares(result: dict[str, float], seconds: float) -> tuple[float, float, float, float]:
    return result["per_second"], result["refused"] / seconds, result["p50_ms"], result["p99_ms"]


def _cpu(gateway: GatewayRun) -> float:
    return float(sum(psutil.Process(gateway.pid).cpu_times()[:2]))


def _resident(gateway: GatewayRun) -> float:
    return float(psutil.Process(gateway.pid).memory_info().rss / 2**20)


if __name__ == "__main__":
    run(measure)
