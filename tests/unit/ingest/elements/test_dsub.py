"""IHE DSUB: messages like the profile's (ITI-52, ITI-53, ITI-54), and refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

import pytest
from lxml import etree

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.matching.filters import Conditions, Subject
from arborcast.ingest.elements import dsub
from arborcast.ingest.elements.dsub import FULL_ENTRY, LCM, MINIMAL_ENTRY, RIM, SUBMISSION_SET
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.notifications import Notification, decode, encode
from arborcast.topic_model.subscriptions import Subscription
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, path_of

SIMPLE = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Simple"
ENTRIES = "urn:uuid:aa2332d0-f8fe-11e0-be50-0800200c9a66"
ENTRIES_OF_ANY_PATIENT = "urn:uuid:742790e0-aba6-43d6-9f1f-e43ed9790b79"
SETS = "urn:uuid:fbede94e-dbdc-4f6b-bc1f-d730e677cece"
SETS_OF_ANYBODY = "urn:uuid:868cad3d-ec09-4565-b66c-1be10d034399"

PATIENT = "st3498702^^^&1.3.6.1.4.1.21367.2005.3.7&ISO"
MINE = ("$XDSDocumentEntryPatientId", f"'{PATIENT}'")

CLASS = "urn:uuid:41a5887f-8865-4c09-adf7-e362475b143a"
EVENTS = "urn:uuid:2c6b8cb7-8b2a-4051-b291-b1ae6a575ef4"
FACILITY = "urn:uuid:f33fb8ac-18af-42cc-ae0e-ed0b0bdb91e1"
AUTHOR = "urn:uuid:93606bcf-9494-43ec-9b4e-a7748d1a838d"
IS_SET = "urn:uuid:a54d6aa5-d40d-43f9-88c5-b4633d873bdd"


def slot(name: str, *values: str) -> str:
    inside = "".join(f"<rim:Value>{escape(value)}</rim:Value>" for value in values)
    return f"<rim:Slot name={quoteattr(name)}><rim:ValueList>{inside}</rim:ValueList></rim:Slot>"


def query(identifier: str, *slots: tuple[str, ...]) -> str:
    inside = "".join(slot(*each) for each in slots)
    return f'<rim:AdhocQuery xmlns:rim="{RIM}" id="{identifier}">{inside}</rim:AdhocQuery>'


def topic(name: str, declared: str = "") -> str:
    """As in the profile: with an undeclared prefix."""
    return f'<wsnt:TopicExpression {declared} Dialect="{SIMPLE}">ihe:{name}</wsnt:TopicExpression>'


def subscribe(parts: GatewayParts, *filters: str) -> HttpAnswer:
    header = soap.addressing("http://docs.oasis-open.org/wsn/bw-2/NotificationProducer/SubscribeRequest", "urn:uuid:1")
    body = soap.subscribe(filters="".join(filters), termination="2026-05-31T00:00:00.00000Z")
    return parts.post(soap.envelope(body, "1.2", header))


def code(scheme: str, value: str, coding: str) -> str:
    return (
        f'<rim:Classification classificationScheme="{scheme}" classifiedObject="x" nodeRepresentation="{value}">'
        f"{slot('codingScheme', coding)}</rim:Classification>"
    )


def identifier(scheme: str, value: str) -> str:
    return f'<rim:ExternalIdentifier identificationScheme="{scheme}" value={quoteattr(value)}/>'


def entry(name: str, patient: str = PATIENT, inside: str = "") -> str:
    return (
        f'<rim:ExtrinsicObject id="{name}" mimeType="text/xml" '
        f'objectType="urn:uuid:7edca82f-054d-47f2-a032-9b2a5b5186c1">{inside}'
        f"{identifier('urn:uuid:58a6f841-87b3-4a3e-92fd-a8ffeff98427', patient)}</rim:ExtrinsicObject>"
    )


def submission(inside: str = "", beside: bool = False) -> str:
    is_set = f'<rim:Classification id="c" classifiedObject="Set01" classificationNode="{IS_SET}"/>'
    patient = identifier("urn:uuid:6b5aea1a-874d-4603-a4bc-96a0a7b38446", PATIENT)
    package = f'<rim:RegistryPackage id="Set01">{inside}{patient}{"" if beside else is_set}</rim:RegistryPackage>'
    return package + (is_set if beside else "")


FOLDER = '<rim:RegistryPackage id="Folder01"/>'


def publish(parts: GatewayParts, *objects: str, named: str = "", **headers: str) -> HttpAnswer:
    """ITI-54: a Notify without a topic; its namespaces are declared on an outer element."""
    reference = "<wsnt:ProducerReference><wsa:Address>urn:oid:1.2.3.4.5</wsa:Address></wsnt:ProducerReference>"
    content = (
        f"<lcm:SubmitObjectsRequest><rim:RegistryObjectList><!-- all -->{''.join(objects)}"
        "</rim:RegistryObjectList></lcm:SubmitObjectsRequest>"
    )
    message = (
        f"<wsnt:NotificationMessage>{named}{reference}<wsnt:Message>{content}</wsnt:Message></wsnt:NotificationMessage>"
    )
    body = f'<wsnt:Notify xmlns:rim="{RIM}" xmlns:lcm="{LCM}">{message}</wsnt:Notify>'
    return parts.post(soap.envelope(body, "1.2", soap.addressing("urn:any", "urn:uuid:2")), **headers)


def delivered(parts: GatewayParts) -> list[tuple[Subscription, Notification]]:
    """The pushes of a worker: matched by topic, then by condition, after decoding from the log."""
    found = []
    for each in parts.notifications.accepted:
        stored = decode(encode(each)[1])
        subject = Subject(Conditions(), stored)
        found += [(one, stored) for one in parts.table.match(stored.topic) if subject.passes(one)]
    return found


def names(notifications: Iterable[Notification]) -> list[str]:
    return [etree.fromstring(each.payload)[0][0].get("id") or "" for each in notifications]


def test_topics_of_a_publish_without_a_topic(parts: GatewayParts) -> None:
    answer = publish(parts, entry("Document01"), submission(), FOLDER, entry("Document02"))
    assert answer.status == 202
    accepted = parts.notifications.accepted
    assert [each.topic for each in accepted] == [FULL_ENTRY, MINIMAL_ENTRY, SUBMISSION_SET, FULL_ENTRY, MINIMAL_ENTRY]
    assert answer.headers[b"arborcast-notification-id"].decode().split(",") == [each.id for each in accepted]
    assert names(accepted) == ["Document01", "Document01", "Set01", "Document02", "Document02"]
    for each in accepted:
        root = etree.fromstring(each.payload)
        assert root.tag == f"{{{LCM}}}SubmitObjectsRequest"
        assert [child.tag for child in root] == [f"{{{RIM}}}RegistryObjectList"]
        assert b"urn:oid:1.2.3.4.5" in each.producer
    assert etree.fromstring(accepted[1].payload)[0][0].tag == f"{{{RIM}}}ObjectRef"
    assert accepted[1].subject == accepted[0].payload


@pytest.mark.parametrize("name", ["FullDocumentEntry", "MinimalDocumentEntry"])
def test_a_query_selects_entries(parts: GatewayParts, name: str) -> None:
    facility = ("$XDSDocumentEntryHealthcareFacilityTypeCode", "('Emergency Department^^facilities')")
    answer = subscribe(parts, topic(name), query(ENTRIES, MINE, facility))
    assert answer.status == 200, answer.reason
    emergency = code(FACILITY, "Emergency Department", "facilities")
    publish(
        parts,
        entry("wanted", inside=emergency),
        entry("other-facility", inside=code(FACILITY, "Radiology", "facilities")),
        entry("other-scheme", inside=code(FACILITY, "Emergency Department", "others")),
        entry("other-patient", "st1^^^&1.2&ISO", emergency),
        entry("as-in-the-profile", f"'{PATIENT}'", emergency),
    )
    found = delivered(parts)
    assert names(notification for _, notification in found) == ["wanted", "as-in-the-profile"]
    subscription, notification = found[0]
    push = Envelope(subscription).request([notification], 1, 0.0)
    assert f">ihe:{name}</wsnt:Topic>".encode() in push.body
    assert b'xmlns:ihe="urn:ihe:iti:dsub:2009"' in push.body
    in_push = PATIENT.partition("^")[0].encode() in push.body
    assert in_push == (name == "FullDocumentEntry"), "a reference has no data of the patient"
    assert parts.post(soap.envelope("<wsnt:Unsubscribe/>", "1.2"), path_of(answer)).status == 200
    assert delivered(parts) == []


CODES, PERSON = "$XDSDocumentEntryEventCodeList", "$XDSDocumentEntryAuthorPerson"
CLASS_CODE = "$XDSDocumentEntryClassCode"


@pytest.mark.parametrize(
    ("slots", "selected"),
    [
        ([(CODES, "('44950^^cpt',' 44970^^cpt')")], True),
        ([(CODES, "('1^^cpt')", "('44970^^cpt','2^^cpt')")], True),
        ([(CODES, "('44970^^other')")], False),
        # The same slot twice: both must match.
        ([(CODES, "('44970^^cpt')"), (CODES, "('9^^cpt')")], True),
        ([(CODES, "('44970^^cpt')"), (CODES, "('8^^cpt')")], False),
        ([(CLASS_CODE, "('44970^^cpt')")], False),
        ([(CLASS_CODE, "('34133-9^^2.16.840.1.113883.6.1')")], True),
        ([(CLASS_CODE, "('34133-9')")], True),
        ([(PERSON, "('^Welby%')")], True),
        ([(PERSON, "('%O''Hara')")], True),
        ([(PERSON, "('%Marcus%')")], True),
        ([(PERSON, "('Marcus')")], False),
        ([("$XDSDocumentEntryReferenceIdList", "('ref7^^^&1.2&ISO^urn:x')")], True),
    ],
)
def test_slots_as_conditions(parts: GatewayParts, slots: list[tuple[str, ...]], selected: bool) -> None:
    # A namespace of an earlier draft, declared by the profile's example of ITI-54.
    draft = topic("FullDocumentEntry", 'xmlns:ihe="urn:ihe:iti:pub-sub:2008"')
    answer = subscribe(parts, draft, query(ENTRIES_OF_ANY_PATIENT, *slots))
    assert answer.status == 200, answer.reason
    author = slot("authorPerson", "^Welby^Marcus^^O'Hara")
    inside = (
        slot("urn:ihe:iti:xds:2013:referenceIdList", "ref7^^^&1.2&ISO^urn:x"),
        f'<rim:Classification classificationScheme="{AUTHOR}">{author}</rim:Classification>',
        code(EVENTS, "44970", "cpt"),
        code(EVENTS, "9", "cpt"),
        code(CLASS, "34133-9", "2.16.840.1.113883.6.1"),
    )
    publish(parts, entry("Document01", inside="".join(inside)))
    assert len(delivered(parts)) == selected


@pytest.mark.parametrize("beside", [False, True])
def test_submission_sets(parts: GatewayParts, beside: bool) -> None:
    wanted = ("$XDSSubmissionSetIntendedRecipient", "('Some Hospital%')", "('|Welby%')")
    subscribe(parts, topic("SubmissionSetMetadata"), query(SETS_OF_ANYBODY, wanted))
    subscribe(parts, topic("SubmissionSetMetadata"), query(SETS, ("$XDSSubmissionSetPatientId", f"'{PATIENT}'")))
    subscribe(parts, topic("SubmissionSetMetadata"), query(SETS_OF_ANYBODY, ("$XDSSubmissionSetSourceId", "('1.2')")))
    recipients = slot("intendedRecipient", "Some Hospital^^^^^^^^^1.2.3")
    assert publish(parts, entry("Document01"), submission(recipients, beside)).status == 202
    found = delivered(parts)
    assert [(len(one.content), each.topic) for one, each in found] == [(1, SUBMISSION_SET)] * 2
    assert IS_SET.encode() in found[0][1].payload


def test_a_large_publish_is_read_in_a_thread(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, published = list[threading.Thread](), dsub.published

    def noted(payload: bytes) -> list[dsub.EntryNotification]:
        threads.append(threading.current_thread())
        return published(payload)

    monkeypatch.setattr(dsub, "published", noted)
    for inside in ("", "x" * SMALL):
        assert publish(parts, entry("Document01", inside=inside)).status == 202
    small, large = threads
    assert small == threading.current_thread() != large


def test_a_classification_belongs_to_one_submission_set(parts: GatewayParts) -> None:
    """Thousands of packages with one large Classification would have exhausted the memory."""
    assert publish(parts, submission(beside=True), submission(beside=True)).status == 202
    (accepted,) = parts.notifications.accepted
    assert accepted.payload.count(IS_SET.encode()) == 1


@pytest.mark.parametrize(
    ("identifier", "slots", "words"),
    [
        ("urn:uuid:14d4debf-8f97-4251-9a74-a90016b0af0d", [MINE], "14d4debf"),
        (ENTRIES, [MINE, ("$XDSDocumentEntryCreationTimeFrom", "'2004'")], "$XDSDocumentEntryCreationTimeFrom"),
        (ENTRIES_OF_ANY_PATIENT, [MINE], "$XDSDocumentEntryPatientId"),
        (ENTRIES, [(CLASS_CODE, "('1^^s')")], "$XDSDocumentEntryPatientId must be there"),
        (ENTRIES, [MINE, MINE], "once"),
        (ENTRIES_OF_ANY_PATIENT, [], "at least one"),
        (ENTRIES_OF_ANY_PATIENT, [(CLASS_CODE,)], "no rim:Value"),
        (ENTRIES_OF_ANY_PATIENT, [(CLASS_CODE, "1^^s")], f"{CLASS_CODE}: '1^^s'"),
        (ENTRIES_OF_ANY_PATIENT, [(CLASS_CODE, "('1^s')")], "code^^codingScheme"),
        (ENTRIES_OF_ANY_PATIENT, [(CLASS_CODE, "('')")], "empty"),
        (ENTRIES_OF_ANY_PATIENT, [(PERSON, "('a%b')")], "%"),
        (ENTRIES_OF_ANY_PATIENT, [(PERSON, "('a_')")], "_ nowhere"),
        (ENTRIES_OF_ANY_PATIENT, [(PERSON, "('%')")], "empty"),
        (ENTRIES_OF_ANY_PATIENT, [(PERSON, "('a''\"')")], "quotes of both kinds"),
        (ENTRIES_OF_ANY_PATIENT, [(PERSON, *["('a')"] * 300)], "256"),
    ],
)
def test_invalid_queries(parts: GatewayParts, identifier: str, slots: list[tuple[str, ...]], words: str) -> None:
    answer = subscribe(parts, topic("FullDocumentEntry"), query(identifier, *slots))
    assert (answer.fault, answer.text("UnknownFilter")) == ("InvalidFilterFault", "q:AdhocQuery")
    assert words in answer.reason
    assert list(parts.table.subscriptions()) == []


def test_the_profile_as_a_dialect(parts: GatewayParts) -> None:
    dialect = "urn:ihe:iti:dsub:2009"
    named = f'<wsnt:TopicExpression Dialect="{dialect}">ihe:FullDocumentEntry</wsnt:TopicExpression>'
    content = f'<wsnt:MessageContent Dialect="{dialect}">{query(ENTRIES, MINE)}</wsnt:MessageContent>'
    assert subscribe(parts, named, content).status == 200
    publish(parts, entry("Document01"), entry("of-another", "st1^^^&1.2&ISO"))
    assert names(notification for _, notification in delivered(parts)) == ["Document01"]


def test_a_declared_prefix_keeps_its_meaning(parts: GatewayParts) -> None:
    for name in ("Other", "FullDocumentEntry"):
        assert subscribe(parts, topic(name, 'xmlns:ihe="urn:mine"')).status == 200
    found = {each.topics[0].normal for each in parts.table.subscriptions()}
    assert found == {"{urn:mine}Other", "{urn:mine}FullDocumentEntry"}
    assert subscribe(parts, topic("Other")).fault == "InvalidTopicExpressionFault"
    for name in ("FolderMetadata", "ExtendedFullDocumentEntry"):
        assert subscribe(parts, topic(name)).fault == "TopicNotSupportedFault"


def test_publications_that_are_refused_or_have_a_topic(parts: GatewayParts) -> None:
    submitted = f'<l:SubmitObjectsRequest xmlns:l="{LCM}"/>'
    message = f"<wsnt:NotificationMessage><wsnt:Message>{submitted}</wsnt:Message></wsnt:NotificationMessage>"
    assert "the only message" in parts.post(soap.envelope(f"<wsnt:Notify>{message}{message}</wsnt:Notify>")).reason
    assert "no document entry" in publish(parts, FOLDER).reason
    assert "1000 entries" in publish(parts, *(entry("a") for _ in range(1_001))).reason
    fixed = GatewayParts(topics=TopicSettings(fixed=True))
    assert publish(fixed, entry("a")).fault == "TopicNotSupportedFault"
    assert parts.notifications.accepted == fixed.notifications.accepted == []
    named = f'<wsnt:Topic Dialect="{SIMPLE}">ihe:FullDocumentEntry</wsnt:Topic>'
    assert publish(parts, entry("a"), entry("b"), named=named).status == 202
    (accepted,) = parts.notifications.accepted
    assert (accepted.topic, accepted.subject) == (FULL_ENTRY, b"")
