"""IHE Document Metadata Subscription: its filter (ITI-52) and its way to publish (ITI-54).

A hospital's registry publishes registered documents as one lcm:SubmitObjectsRequest, without a topic. It becomes
notifications of ITI-53: each document entry one on ihe:FullDocumentEntry and, as a mere reference, one on
ihe:MinimalDocumentEntry; each submission set one on ihe:SubmissionSetMetadata. So each subscriber gets exactly the
entries that its filter selects.

A rim:AdhocQuery in a Filter is the stored query (ITI-18) that would find the entry. Each of its slots becomes a
condition over the entry. Conditions on references are evaluated with the whole entry, see Notification.subject.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, NoReturn
from xml.sax.saxutils import quoteattr

from lxml import etree

from arborcast.core.errors import ConditionError, TopicNotSupported
from arborcast.topic_model.expressions.conditions import XPATH_1, compile_condition
from arborcast.topic_model.namespaces import DSUB
from arborcast.topic_model.subscriptions import TopicFilter, XPathFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import InvalidRequest, UnknownFilters
from arborcast.wire.fragments import Source
from arborcast.wire.xml_reading import read_xml

RIM: Final = "urn:oasis:names:tc:ebxml-regrep:xsd:rim:3.0"
LCM: Final = "urn:oasis:names:tc:ebxml-regrep:xsd:lcm:3.0"

QUERY: Final = f"{{{RIM}}}AdhocQuery"
SUBMITTED: Final = f"{{{LCM}}}SubmitObjectsRequest"

FULL_ENTRY: Final = TopicPath(f"{{{DSUB}}}FullDocumentEntry")
MINIMAL_ENTRY: Final = TopicPath(f"{{{DSUB}}}MinimalDocumentEntry")
SUBMISSION_SET: Final = TopicPath(f"{{{DSUB}}}SubmissionSetMetadata")

_TOPICS = (FULL_ENTRY, MINIMAL_ENTRY, SUBMISSION_SET)

_ENTRY = "rim:RegistryObjectList/rim:ExtrinsicObject"
_SET = "rim:RegistryObjectList/rim:RegistryPackage"

# Options of a broker that this one does not have.
_NOT_SENT = ("Folder", "Extended")


# Of one publish: each becomes notifications, and a small one costs its publisher a few bytes.
_MOST = 1_000

_IS_SET = "urn:uuid:a54d6aa5-d40d-43f9-88c5-b4633d873bdd"

# 'a', ('a'), ('a','b'): as in SQL, where a quote in a text is doubled.
_TEXT = r"'(?:[^']|'')*+'"
_VALUES = re.compile(rf"\s*(?:{_TEXT}|\(\s*{_TEXT}(?:\s*,\s*{_TEXT})*\s*\))\s*")
_VALUE = re.compile(_TEXT)

_Test = Callable[[str, list[str]], str]


def check_topic(expression: TopicFilter) -> None:
    """Raises TopicNotSupported for topics of the profile without notifications here (folders)."""
    if expression.normal.startswith(f"{{{DSUB}}}") and any(each in expression.normal for each in _NOT_SENT):
        named = ", ".join(topic.rpartition("}")[2] for topic in _TOPICS)
        raise TopicNotSupported(f"the topic {expression.text:.200} is not supported; supported topics of IHE: {named}")


# From a slot's values to a predicate or path. Each raises ValueError with the reason.


def _quoted(value: str) -> str:
    if "'" not in value:
        return f"'{value}'"
    if '"' in value:
        raise ValueError(f"{value[:60]!r} has quotes of both kinds")
    return f'"{value}"'


def _any(tests: Iterable[str]) -> str:
    return " or ".join(tests)


def _identifier(scheme: str) -> _Test:
    """An ExternalIdentifier with one of the values. The profile's example has it in quotes."""

    def test(kind: str, values: list[str]) -> str:
        matches = _any(f"@value = {_quoted(each)}" for value in values for each in (value, f"'{value}'"))
        return f"{kind}/rim:ExternalIdentifier[@identificationScheme = '{scheme}' and ({matches})]"

    return test


def _code(scheme: str) -> _Test:
    """A Classification with one of the codes, each `code^^coding scheme`."""

    def test(kind: str, values: list[str]) -> str:
        by_scheme: defaultdict[str, list[str]] = defaultdict(list)
        for value in values:
            code, *rest = value.split("^")
            if not code or len(rest) not in (0, 2):
                raise ValueError(f"{value[:60]!r} is not of the form code^^codingScheme")
            by_scheme[rest[1] if rest else ""].append(f"@nodeRepresentation = {_quoted(code)}")
        matches = _any(
            f"({_any(codes)})"
            + (f" and rim:Slot[@name = 'codingScheme']/rim:ValueList/rim:Value = {_quoted(name)}" if name else "")
            for name, codes in by_scheme.items()
        )
        return f"{kind}/rim:Classification[@classificationScheme = '{scheme}' and ({matches})]"

    return test


def _author(scheme: str) -> _Test:
    def test(kind: str, values: list[str]) -> str:
        slot = "rim:Slot[@name = 'authorPerson']"
        return f"{kind}/rim:Classification[@classificationScheme = '{scheme}']/{slot}/{_like(values)}"

    return test


def _slot(name: str) -> _Test:
    return lambda kind, values: f"{kind}/rim:Slot[@name = '{name}']/{_like(values)}"


def _like(values: list[str]) -> str:
    """A slot's value by SQL's LIKE, of which % at the beginning and at the end is taken."""
    tests = []
    for value in values:
        inner = value.strip("%")
        if "%" in inner or "_" in inner:
            raise ValueError(f"in {value[:60]!r} % is permitted at the beginning and at the end only, _ nowhere")
        literal, before, after = _quoted(inner), value.startswith("%"), value.endswith("%")
        if before and after:
            tests.append(f"contains(., {literal})")
        elif after:
            tests.append(f"starts-with(., {literal})")
        elif before:
            tests.append(f"substring(., string-length(.) - {len(inner) - 1}) = {literal}")
        else:
            tests.append(f". = {literal}")
    return f"rim:ValueList/rim:Value[{_any(tests)}]"


class _Query(NamedTuple):
    """A query: the type of its results, its slots, and its mandatory slot."""

    kind: str
    slots: Mapping[str, _Test]
    required: str = ""


_ENTRY_SLOTS: Mapping[str, _Test] = {
    "$XDSDocumentEntryClassCode": _code("urn:uuid:41a5887f-8865-4c09-adf7-e362475b143a"),
    "$XDSDocumentEntryTypeCode": _code("urn:uuid:f0306f51-975f-434e-a61c-c59651d33983"),
    "$XDSDocumentEntryPracticeSettingCode": _code("urn:uuid:cccf5598-8b07-4b77-a05e-ae952c785ead"),
    "$XDSDocumentEntryHealthcareFacilityTypeCode": _code("urn:uuid:f33fb8ac-18af-42cc-ae0e-ed0b0bdb91e1"),
    "$XDSDocumentEntryEventCodeList": _code("urn:uuid:2c6b8cb7-8b2a-4051-b291-b1ae6a575ef4"),
    "$XDSDocumentEntryConfidentialityCode": _code("urn:uuid:f4f85eac-e6cb-4883-b524-f2705394840f"),
    "$XDSDocumentEntryFormatCode": _code("urn:uuid:a09d5840-386c-46f2-b5ad-9c3699a4309d"),
    "$XDSDocumentEntryAuthorPerson": _author("urn:uuid:93606bcf-9494-43ec-9b4e-a7748d1a838d"),
    "$XDSDocumentEntryReferenceIdList": _slot("urn:ihe:iti:xds:2013:referenceIdList"),
}

_ENTRY_PATIENT = "$XDSDocumentEntryPatientId"

_SET_SLOTS: Mapping[str, _Test] = {
    "$XDSSubmissionSetSourceId": _identifier("urn:uuid:554ac39e-e3fe-47fe-b233-965d2a147832"),
    "$XDSSubmissionSetAuthorPerson": _author("urn:uuid:a7058bb9-b4e4-4307-ba5b-e3f0ab85e12d"),
    "$XDSSubmissionSetAuthor": _author("urn:uuid:a7058bb9-b4e4-4307-ba5b-e3f0ab85e12d"),
    "$XDSSubmissionSetIntendedRecipient": _slot("intendedRecipient"),
}

_SET_PATIENT = "$XDSSubmissionSetPatientId"

_QUERIES: Mapping[str, _Query] = {
    "urn:uuid:aa2332d0-f8fe-11e0-be50-0800200c9a66": _Query(
        _ENTRY,
        {**_ENTRY_SLOTS, _ENTRY_PATIENT: _identifier("urn:uuid:58a6f841-87b3-4a3e-92fd-a8ffeff98427")},
        _ENTRY_PATIENT,
    ),
    "urn:uuid:742790e0-aba6-43d6-9f1f-e43ed9790b79": _Query(_ENTRY, _ENTRY_SLOTS),
    "urn:uuid:fbede94e-dbdc-4f6b-bc1f-d730e677cece": _Query(
        _SET,
        {**_SET_SLOTS, _SET_PATIENT: _identifier("urn:uuid:6b5aea1a-874d-4603-a4bc-96a0a7b38446")},
        _SET_PATIENT,
    ),
    "urn:uuid:868cad3d-ec09-4565-b66c-1be10d034399": _Query(_SET, _SET_SLOTS),
}


def read_query(element: etree._Element) -> tuple[XPathFilter, ...]:
    """A rim:AdhocQuery as conditions, one for each of its slots. Raises UnknownFilters, which names the slot."""
    identifier = element.get("id", "").strip()
    query = _QUERIES.get(identifier)
    if query is None:
        _refuse(f"the query {identifier[:100]!r} is not a supported query of ITI-52")
    found: dict[str, list[XPathFilter]] = defaultdict(list)
    for slot in element.iterchildren(f"{{{RIM}}}Slot"):
        name = slot.get("name", "").strip()
        test = query.slots.get(name)
        if test is None:
            _refuse(
                f"the slot {name[:100]!r} is not supported in this query; supported are: "
                f"{', '.join(sorted(query.slots))}"
            )
        try:
            condition = XPathFilter(XPATH_1, test(query.kind, list(_values(slot))), {"rim": RIM})
            compile_condition(condition)
        except (ValueError, ConditionError) as error:
            _refuse(f"the slot {name}: {error}")
        found[name].append(condition)
    if query.required and len(found[query.required]) != 1:
        _refuse(f"the slot {query.required} must be there, once")
    if not any(found.values()):
        _refuse("it has no slot: a query that names no patient needs at least one")
    return tuple(condition for each in found.values() for condition in each)


def _values(slot: etree._Element) -> Iterator[str]:
    texts = [value.text or "" for value in slot.iterfind(f"{{{RIM}}}ValueList/{{{RIM}}}Value")]
    if not texts:
        raise ValueError("it has no rim:Value")
    for text in texts:
        if _VALUES.fullmatch(text) is None:
            raise ValueError(f"{text.strip()[:60]!r} is neither 'text' nor ('text', 'text')")
        for value in _VALUE.findall(text):
            inside = value[1:-1].replace("''", "'").strip()
            if not inside.strip("%"):
                raise ValueError("a value is empty")
            yield inside


def _refuse(why: str) -> NoReturn:
    raise UnknownFilters(f"rim:AdhocQuery: {why}", (QUERY,))


class EntryNotification(NamedTuple):
    """A notification of a publish. Conditions are evaluated with `subject`, or with the payload if that is empty."""

    topic: TopicPath
    payload: bytes
    subject: bytes = b""


def published(payload: bytes) -> list[EntryNotification]:
    """The notifications for an lcm:SubmitObjectsRequest without a topic. Raises InvalidRequest."""
    root, document = read_xml(payload, what="the lcm:SubmitObjectsRequest")
    source = Source(document, root, 3)
    made: list[EntryNotification] = []
    for objects in root.iterchildren(f"{{{RIM}}}RegistryObjectList"):
        nodes = source.node(objects).children
        parts = [(part, source.fragment(node)) for part, node in zip(objects, nodes, strict=True)]
        classified = {
            part.get("classifiedObject", ""): fragment
            for part, fragment in parts
            if part.tag == f"{{{RIM}}}Classification" and part.get("classificationNode") == _IS_SET
        }
        for part, fragment in parts:
            if part.tag == f"{{{RIM}}}ExtrinsicObject":
                entry = _submitted(fragment)
                reference = f"<rim:ObjectRef id={quoteattr(part.get('id', ''))}/>".encode()
                made += (
                    EntryNotification(FULL_ENTRY, entry),
                    EntryNotification(MINIMAL_ENTRY, _submitted(reference), entry),
                )
            elif part.tag == f"{{{RIM}}}RegistryPackage":
                # Once: with one large Classification, thousands of packages of the same id would exhaust the memory.
                beside = classified.pop(part.get("id", ""), b"")
                within = part.iterchildren(f"{{{RIM}}}Classification")
                if beside or any(each.get("classificationNode") == _IS_SET for each in within):
                    made.append(EntryNotification(SUBMISSION_SET, _submitted(fragment + beside)))
            if len(made) > 2 * _MOST:
                raise InvalidRequest(
                    f"a lcm:SubmitObjectsRequest may publish {_MOST} entries and submission sets, not more"
                )
    if not made:
        raise InvalidRequest("the lcm:SubmitObjectsRequest has no document entry and no submission set to publish")
    return made


def _submitted(objects: bytes) -> bytes:
    return (
        f'<lcm:SubmitObjectsRequest xmlns:lcm="{LCM}" xmlns:rim="{RIM}"><rim:RegistryObjectList>'.encode()
        + objects
        + b"</rim:RegistryObjectList></lcm:SubmitObjectsRequest>"
    )
