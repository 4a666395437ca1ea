"""The policy that all settings together make: what is the engine's own, and what the embedded engine opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.engine.embedded import engine
from arborcast.engine.settings.loading import Settings, load_settings
from arborcast.engine.settings.outbound import describe, policy_of


def settings(tmp_path: Path, **overrides: str | int | bool) -> Settings:
    chosen = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(home=tmp_path, overrides=chosen, environ={})


def test_ports_of_the_engine_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "controller.port").write_text("8209\n")
    chosen = settings(
        tmp_path,
        gateway__host="127.0.0.5",
        gateway__port=8123,
        gateway__public_url="https://Bus.example/wsn",
        metrics__job_port=8124,
        kafka__bootstrap_servers="127.0.0.1:9192, [::1]:9193,kafka.invalid:9194",
        directory__kind="ldap",
        directory__url="ldaps://ldap.invalid",
        framed__port=8201,
        console__port=8202,
        federation__administrator="https://admin.invalid:8203",
        federation__datagram_port=8204,
        zmq__enabled=True,
        zmq__metrics_port=8205,
        zmq__subscribe="tcp://127.0.0.1:8206",
        zmq__publish="tcp://*:8207",
        zmq__pipeline=">tcp://127.0.0.1:8210",
        zmq__asked="tcp://127.0.0.1:*",
        zmq__tasks="tcp://[::1]:8208",
        outbound__allow="0.0.0.0/0, ::/0",
    )
    policy = policy_of(chosen, more={("127.0.0.1", 8211)})
    for at in (
        *("127.0.0.1:8123", "127.0.0.5:8123", "localhost:9192", "[::1]:9193", "kafka.invalid:9194", "ldap.invalid:636"),
        *("127.0.0.1:8124", "admin.invalid:8203", "bus.example:443"),
        *(f"127.0.0.1:{port}" for port in (8201, 8202, 8204, 8205, 8206, 8207, 8208, 8209, 8211)),
    ):
        refusal = policy.check_url(f"http://{at}/somewhere")
        assert refusal is not None, at
        assert refusal.rule == "own-port", at
    for url in ("http://127.0.0.1:8125/", "https://ldap.invalid/", "http://127.0.0.1:8210/"):
        assert policy.check_url(url) is None, "a port of others, or a client's socket"
    closed = policy_of(settings(tmp_path, zmq__enabled=False, outbound__scope="loopback"))
    assert closed.check_url("http://127.0.0.1:5555/") is None
    chosen = settings(tmp_path, gateway__port=0, outbound__scope="loopback")
    assert policy_of(chosen).check_url("http://127.0.0.1:41234/") is None
    assert policy_of(chosen, 41234).check_url("http://127.0.0.1:41234/") is not None, "the system's choice"


@pytest.mark.parametrize(
    ("overrides", "scope"),
    [
        ({}, "loopback"),
        ({"gateway__host": "localhost"}, "loopback"),
        ({"outbound__scope": "public"}, "public"),
        ({"outbound__scope": "private"}, "private"),
        # Strangers may come in: what is here is not for them.
        ({"gateway__host": "0.0.0.0"}, "public"),  # noqa: S104  # compared only
        ({"stack__broker": "external"}, "public"),
    ],
)
def test_only_an_engine_on_loopback_opens_loopback(tmp_path: Path, overrides: dict[str, str], scope: str) -> None:
    chosen = settings(tmp_path, gateway__port=0, stack__kafka_port=0, **overrides)
    assert chosen.outbound.scope == overrides.get("outbound__scope", "public")
    assert engine.effective(chosen).outbound.scope == scope


def test_the_policy_in_words(tmp_path: Path) -> None:
    parts = {"allow": "10.1.0.0/16", "deny": "10.1.9.0/24", "ports": "443"}
    given = {f"outbound__{name}": value for name, value in parts.items()}
    said = describe(settings(tmp_path, **given, outbound__https_only=True).outbound)
    assert said.startswith("globally routable addresses only")
    for part in (*parts.values(), "https only", "outbound.scope = public"):
        assert part in said
