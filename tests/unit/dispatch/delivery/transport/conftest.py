from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arborcast.core.security.outbound import AddressPolicy
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.settings import PushSettings
from tests.support.certificates import Certificates, make_certificates
from tests.support.outbound import THIS_MACHINE


class Transports:
    """Makes transports of one kind, with settings of pushes, and closes them all."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.opened: list[Transport] = []

    def __call__(self, policy: AddressPolicy = THIS_MACHINE, **settings: Any) -> Transport:
        # `settings` has fields by name.
        self.opened.append(make_transport(PushSettings(transport=self._kind, **settings), policy))  # type: ignore[arg-type]
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
