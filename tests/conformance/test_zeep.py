"""zeep with nothing but the gateway's WSDL: it must load, and every operation must work through it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from lxml import etree

from arborcast.core.settings import KafkaSettings
from tests.conformance.given import PREFIXES
from tests.support import legacy_messages as legacy
from tests.support.gateway_process import GatewayRun, gateway_run

zeep = pytest.importorskip("zeep")

pytestmark = pytest.mark.kafka

FULL = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Full"


@pytest.fixture(scope="module")
def gateway(kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRun]:
    settings = dataclasses.replace(kafka, prefix=f"zeep-{uuid.uuid4().hex[:8]}.")
    with gateway_run(tmp_path_factory.mktemp("zeep"), settings) as run:
        yield run


class GatewaySession(requests.Session):
    """Refuses requests to other servers: the WSDL must not refer to any. `descriptions` are the requested WSDLs."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.descriptions: list[str] = []

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        assert str(url).startswith(self._base), f"zeep was sent to {url!s}"
        if str(url).endswith("?wsdl"):
            self.descriptions.append(str(url))
        return super().request(method, url, *args, **kwargs)


def client(run: GatewayRun, address: str) -> Any:
    return zeep.Client(f"{address}?wsdl", transport=zeep.Transport(session=GatewaySession(run.base)))


def port(run: GatewayRun, address: str, service: str, port_type: str, soap: str) -> Any:
    """A proxy for the operations of a port type, at the address in the WSDL."""
    return client(run, address).bind(service, f"{port_type}Soap{soap}")


def expression(text: str) -> etree._Element:
    """zeep cannot put text into a TopicExpressionType, so its users pass elements."""
    element = etree.Element(f"{{{PREFIXES['wsnt']}}}TopicExpression", {"Dialect": FULL}, nsmap={"t": "urn:t"})
    element.text = text
    return element


@pytest.fixture(params=["11", "12"])
def soap(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_subscription_from_its_beginning_to_its_end(gateway: GatewayRun, soap: str) -> None:
    broker = port(gateway, gateway.broker, "NotificationBroker", "NotificationBroker", soap)
    answer = broker.Subscribe(
        ConsumerReference={"Address": f"http://127.0.0.1:9/zeep{soap}"},
        Filter={"_value_1": [expression("t:a//.")]},
        InitialTerminationTime="PT10M",
    )
    assert (answer.TerminationTime - answer.CurrentTime).total_seconds() in (600, 601)
    address = answer.SubscriptionReference.Address._value_1
    manager = port(gateway, address, "SubscriptionManager", "PausableSubscriptionManager", soap)
    assert manager.Renew(TerminationTime="2999-01-01T00:00:00Z").TerminationTime.year == 2999
    manager.PauseSubscription()
    manager.ResumeSubscription()
    properties = port(gateway, address, "SubscriptionManager", "GetResourcePropertyDocument", soap)
    document = properties.GetResourcePropertyDocument()
    assert document.ConsumerReference.Address._value_1 == f"http://127.0.0.1:9/zeep{soap}"
    manager.Unsubscribe()
    with pytest.raises(zeep.exceptions.Fault, match="there is no subscription") as caught:
        manager.Unsubscribe()
    assert caught.value.detail[0].tag == f"{{{PREFIXES['wsrf-r']}}}ResourceUnknownFault"


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("CreatePullPoint", "CreatePullPoint"),
        ("registrations", "RegisterPublisher"),
        ("subscriptions/x", "SubscriptionManager"),
        ("pullpoints/x", "PullPoint"),
        ("registrations/x", "PublisherRegistrationManager"),
    ],
)
def test_the_wsdl_of_every_address_loads_and_names_it(gateway: GatewayRun, path: str, service: str) -> None:
    address = f"{gateway.base}/wsn/{path}"
    found = client(gateway, address).wsdl.services
    assert list(found) == [service]
    ports = found[service].ports.values()
    assert ports
    assert {each.binding_options["address"] for each in ports} == {address}


def test_the_old_envelope(gateway: GatewayRun) -> None:
    address = f"{gateway.base}/wsnprocess"
    old = client(gateway, address)
    endpoint = legacy.address_in(old.service.WsnProcess(legacy.create_pull_point("zeep")))
    url = "http://127.0.0.1:9/old"
    reference = legacy.address_in(old.service.WsnProcess(legacy.subscribe("zeep:old", url, endpoint)))
    assert reference.startswith(f"{gateway.base}/wsn/subscriptions/")
    assert old.service.WsnProcess(legacy.subscribe("zeep:old", url, endpoint)) == "Repeated subscriptions"
    assert old.service.WsnProcess(legacy.notify("zeep:old", "door & <window/>")) == "success!"
    headers = {"Content-Type": "text/xml"}
    ended = requests.post(address, data=legacy.plain_unsubscribe(endpoint), headers=headers, timeout=120)
    assert ended.status_code == 200, ended.text
    assert old.service.WsnProcess(legacy.unsubscribe("zeep:old", url)) == "faild"


def test_one_import_suffices_for_a_whole_client(gateway: GatewayRun, soap: str) -> None:
    session = GatewaySession(gateway.base)
    whole = zeep.Client(f"{gateway.broker}?wsdl", transport=zeep.Transport(session=session))

    def at(reference: Any, port_type: str) -> Any:
        """A zeep service at an address that is known only at run time."""
        return whole.create_service(f"{{urn:arborcast:wsdl}}{port_type}Soap{soap}", reference.Address._value_1)

    assert "Subscribe" in dir(whole.service), "the default port of zeep"
    broker = whole.bind("NotificationBroker", f"NotificationBrokerSoap{soap}")
    consumer = {"Address": f"http://127.0.0.1:9/one-import-{soap}"}
    subscribed = broker.Subscribe(ConsumerReference=consumer, Filter={"_value_1": [expression("t:whole//.")]})
    manager = at(subscribed.SubscriptionReference, "PausableSubscriptionManager")
    assert manager.Renew(TerminationTime="PT10M").TerminationTime is not None
    manager.PauseSubscription()
    state = at(subscribed.SubscriptionReference, "GetResourceProperty")
    assert state.GetResourceProperty(etree.QName("urn:arborcast:policy", "State"))[0].text == "paused"
    manager.ResumeSubscription()
    at(subscribed.SubscriptionReference, "SubscriptionManager").Unsubscribe()

    factory = whole.bind("NotificationBroker", f"CreatePullPointSoap{soap}")
    created = factory.CreatePullPoint().PullPoint
    point = at(created, "PullPoint")
    filling = {"Address": created.Address._value_1}
    filled = broker.Subscribe(ConsumerReference=filling, Filter={"_value_1": [expression("t:whole//.")]})
    put = {"NotificationMessage": [{"Message": {"_value_1": etree.Element("{urn:o}order")}}]}
    point.Notify(**put)
    (message,) = point.GetMessages(MaximumNumber=5).NotificationMessage
    assert message.Message._value_1.tag == "{urn:o}order"
    point.DestroyPullPoint()
    with pytest.raises(zeep.exceptions.Fault, match="there is no subscription"):
        at(filled.SubscriptionReference, "PausableSubscriptionManager").Unsubscribe()

    registered = broker.RegisterPublisher(Topic=[], Demand=False)
    registration = at(registered.PublisherRegistrationReference, "PublisherRegistrationManager")
    registration.DestroyRegistration()
    with pytest.raises(zeep.exceptions.Fault, match="there is no registration"):
        registration.DestroyRegistration()

    with pytest.raises(zeep.exceptions.Fault, match="no subscription is named"):
        whole.bind("SubscriptionManager", f"PausableSubscriptionManagerSoap{soap}").Unsubscribe()
    assert session.descriptions == [f"{gateway.broker}?wsdl"]
