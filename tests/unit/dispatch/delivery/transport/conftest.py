from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture(params=["curl", "futures"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Transport]]:
    """Makes transports of one kind, with settings of pushes. The kind `mqtt` is libcurl beside the MQTT bridge."""
    kind, mqtt = (request.param, NO_MQTT) if request.param != "mqtt" else ("curl", MqttSettings("mqtt://127.0.0.1:9"))
    opened: list[Transport] = []

    def build(policy: AddressPolicy = THIS_MACHINE, **settings: Any) -> Transport:
        push = PushSettings(**{"transport": kind, **PATIENT, **settings})
        opened.append(make_transport(push, policy, mqtt))
        return opened[-1]

    yield build
    for transport in opened:
        transport.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))
