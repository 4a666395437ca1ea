"""The table of cases.toml against the real gateway over a real broker."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template

import pytest
import requests
from lxml import etree

from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.faults import DECLARED
from tests.conformance.given import GIVEN, PREFIXES, Variables, send, variables
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.xpath import elements

pytestmark = pytest.mark.kafka


@dataclass(frozen=True)
class Case:
    """One request and its expected answer; see the head of cases.toml."""

    name: str
    body: str
    gateway: str = "open"
    given: list[str] = field(default_factory=list)
    to: str = ""
    fault: str = ""
    reason: str = ""
    has: dict[str, str | bool] = field(default_factory=dict)

    @property
    def element(self) -> str:
        """The name of the operation's element."""
        found = re.match(r"<([\w-]+:\w+)", self.body)
        assert found, f"{self.name}: the body begins with no element"
        return found[1]

    @property
    def operation(self) -> str:
        return self.element.partition(":")[2]


@dataclass(frozen=True)
class Manner:
    """How a request is sent."""

    soap: str
    addressing: bool = False


CASES = [Case(**case) for case in tomllib.loads(Path(__file__).with_name("cases.toml").read_text())["case"]]
MANNERS = [Manner("1.1"), Manner("1.2"), Manner("1.2", addressing=True)]

Gateways = Callable[[str], GatewayRun]


@pytest.fixture(scope="module")
def gateways(kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """A gateway for each kind of topic set, started on first use."""
    with ExitStack() as stack:

        @cache
        def gateway(kind: str) -> GatewayRun:
            settings = dataclasses.replace(kafka, prefix=f"conformance-{kind}-{uuid.uuid4().hex[:8]}.")
            log = ControlLog(settings)
            log.ensure_created()
            kept = TopicRecord(TopicPath("{urn:t}kept"), policy=TopicPolicy(retain=True))
            log.append([kept, TopicRecord(TopicPath("{urn:t}a"))])
            log.close()
            folder = tmp_path_factory.mktemp(kind)
            return stack.enter_context(gateway_run(folder, settings, fixed=kind == "fixed"))

        yield gateway


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: manner.soap + ("+wsa" if manner.addressing else ""))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, manner: Manner, gateways: Gateways) -> None:
    run = gateways(case.gateway)
    known = variables(run.broker)
    for name in case.given:
        known[name] = GIVEN[name](known)
    url = run.base + case.to if case.to.startswith("/") else known[case.to or (case.given or ["broker"])[0]]
    message_id, action = f"urn:uuid:{uuid.uuid4()}", f"urn:any/{case.operation}Request"
    header = soap.addressing(action, message_id, url) if manner.addressing else ""
    answer = send(url, Template(case.body).substitute(known), manner.soap, header)

    if case.operation == "Notify" and not case.fault:
        assert (answer.status_code, answer.content) == (202, b"")
        return
    assert answer.headers["Content-Type"] == soap.MEDIA_TYPES[manner.soap]
    root = etree.fromstring(answer.content)
    assert root.tag == f"{{{soap.NAMESPACES[manner.soap]}}}Envelope"
    check_addressing(root, manner, message_id, "" if case.fault else action)
    element = oasis.validate(answer.content)
    if case.fault:
        check_fault(case, manner, answer, element)
    else:
        assert (answer.status_code, element.tag) == (200, qualified(f"{case.element}Response"))
    for path, expected in case.has.items():
        check_path(element, Template(path).substitute(known), expected, known)


def check_addressing(root: etree._Element, manner: Manner, message_id: str, action: str) -> None:
    """Only answers to requests with addressing have its headers, none of them with mustUnderstand."""
    assert not root.xpath("//@*[local-name()='mustUnderstand']")
    if not manner.addressing:
        assert root.find(".//wsa:*", PREFIXES) is None or root.find("{*}Header") is None
        return
    header = root.find("{*}Header")
    assert header is not None
    assert header.findtext("wsa:RelatesTo", namespaces=PREFIXES) == message_id
    answered = header.findtext("wsa:Action", namespaces=PREFIXES) or ""
    if action:
        assert answered == action.removesuffix("Request") + "Response"
    else:
        assert answered.endswith("/fault")


def check_fault(case: Case, manner: Manner, answer: requests.Response, element: etree._Element) -> None:
    """The fault and its reason."""
    assert answer.status_code == 500
    if ":" in case.fault:
        assert element.tag == qualified(case.fault)
        (description,) = element.iterchildren(qualified("wsrf-bf:Description"))
        said = description.text or ""
    elif manner.soap == "1.1":
        assert (element.findtext("faultcode") or "").rpartition(":")[2] == case.fault
        said = element.findtext("faultstring") or ""
    else:
        code = [value.text or "" for value in element.iterfind(".//{*}Value")][-1]
        assert code.rpartition(":")[2] == {"Client": "Sender"}.get(case.fault, case.fault)
        said = element.findtext(".//{*}Text") or ""
    assert case.reason, f"{case.name}: a fault without a reason"
    assert case.reason in said


def check_path(element: etree._Element, path: str, expected: str | bool, known: Variables) -> None:
    """The result of an XPath in the answer."""
    found = element.xpath(path, namespaces=PREFIXES)
    assert isinstance(found, list)
    if isinstance(expected, bool):
        assert bool(found) is expected, path
    else:
        texts = [(each.text or "").strip() for each in elements(element, path, PREFIXES)]
        assert texts == [Template(expected).substitute(known)], path


def qualified(name: str) -> str:
    """`prefix:name` as `{namespace}name`."""
    prefix, _, local = name.partition(":")
    return f"{{{PREFIXES[prefix]}}}{local}"


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


# Faults of the standard that no request of this table can cause, with the reason.
NOT_SHOWN = {
    "ResourceUnavailableFault": "a topic set that is too large for one answer; see the unit tests",
    "NotifyMessageNotSupportedFault": "Notify messages are always supported",
    "UnableToDestroySubscriptionFault": "only an outage of Kafka prevents it, with the answer 503",
    "PauseFailedFault": "an outage of Kafka, as above",
    "ResumeFailedFault": "an outage of Kafka, as above",
    "UnableToDestroyPullPointFault": "an outage of Kafka, as above",
    "PublisherRegistrationFailedFault": "an outage of Kafka, as above",
    "ResourceNotDestroyedFault": "an outage of Kafka, as above",
}


def test_every_fault_has_a_case_or_a_reason_for_none() -> None:
    shown = {case.fault.partition(":")[2] for case in CASES if ":" in case.fault}
    assert shown & NOT_SHOWN.keys() == set()
    assert shown | NOT_SHOWN.keys() == DECLARED.keys()


def test_every_operation_of_the_standard_has_a_case() -> None:
    wsdl = "{http://schemas.xmlsoap.org/wsdl/}"
    published = {
        operation.get("name")
        for name in ("bw-2.wsdl", "brw-2.wsdl")
        for operation in etree.fromstring(oasis.published()[name]).iter(f"{wsdl}operation")
    }
    properties = {"GetResourceProperty", "GetMultipleResourceProperties", "GetResourcePropertyDocument"}
    shown = {case.operation for case in CASES if not case.fault}
    assert published | properties | {"SetTerminationTime", "Destroy"} <= shown
