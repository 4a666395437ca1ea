from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arborcast.core.mqtt.settings import NO_MQTT, MqttSettings
from arborcast.core.security.outbound import AddressPolicy
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.settings import PushSettings
from tests.support.certificates import Certificates, make_certificates
from tests.support.outbound import THIS_MACHINE

# Long enough for a receiver on a busy machine.
PATIENT = {"connect_timeout_s": 20.0, "total_timeout_s": 60.0}


class Transports:
    """Makes transports of one kind, with settings of pushes, and closes them all. The kind `mqtt` is libcurl beside
    the MQTT bridge."""

    def __init__(self, kind: str) -> None:
        self._kind, self._mqtt = (kind, NO_MQTT) if kind != "mqtt" else ("curl", MqttSettings("mqtt://127.0.0.1:9"))
        self.opened: list[Transport] = []

    def __call__(self, policy: AddressPolicy = THIS_MACHINE, **settings: Any) -> Transport:
        push = PushSettings(**{"transport": self._kind, **PATIENT, **settings})
        self.opened.append(make_transport(push, policy, self._mqtt))
        return self.opened[-1]


@pytest.fixture(params=["curl", "futures"])
def make(request: pytest.FixtureRequest) -> Iterator[Transports]:
    made = Transports(request.param)
    yield made
    for transport in made.opened:
        transport.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))
