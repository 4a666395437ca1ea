"""What HPwsn's address says of itself: clients that are made from it work."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from lxml import etree

from arborcast.ingest.soap.wsdl import ServiceDescriptions
from tests.support import legacy_messages as legacy
from tests.support import oasis
from tests.support.gateway_parts import GatewayParts, only_subscription

zeep = pytest.importorskip("zeep")

ADDRESS = "http://127.0.0.1:8080/wsnprocess"


@pytest.fixture
def parts() -> GatewayParts:
    parts = GatewayParts()
    parts.gateway.descriptions = ServiceDescriptions(oasis.published())
    return parts


class GatewaySession(requests.Session):
    """A session whose requests go to the gateway of the test, without a socket."""

    def __init__(self, parts: GatewayParts) -> None:
        super().__init__()
        self._parts = parts

    def get(self, url: Any, **_: Any) -> requests.Response:
        parts = urlsplit(url)
        return self._answer(self._parts.get(f"{parts.path}?{parts.query}"))

    def post(self, url: Any, data: Any = None, json: Any = None, **_: Any) -> requests.Response:
        assert url == ADDRESS
        return self._answer(self._parts.post(data, urlsplit(url).path, Content_Type="text/xml"))

    def _answer(self, answer: Any) -> requests.Response:
        response = requests.Response()
        response.status_code = answer.status
        response._content = answer.body
        response.headers["Content-Type"] = answer.headers[b"content-type"].decode()
        return response


def test_zeep_loads_it_and_calls(parts: GatewayParts) -> None:
    client = zeep.Client(f"{ADDRESS}?wsdl", transport=zeep.Transport(session=GatewaySession(parts)))
    endpoint = legacy.address_in(client.service.WsnProcess(legacy.create_pull_point("zeep")))
    answer = client.service.WsnProcess(legacy.subscribe("all:alarm", "http://host:9002/", endpoint))
    assert legacy.address_in(answer) == only_subscription(parts).address
    assert client.service.WsnProcess(legacy.notify("all:alarm", "door & <window/>")) == "success!"
    content = etree.fromstring(parts.notifications.accepted[0].payload)
    assert (content.text, [each.tag for each in content]) == ("door & ", ["window"])
    with pytest.raises(zeep.exceptions.Fault, match="WsnProcess takes"):
        client.service.WsnProcess("<unknown/>")
