"""Requests to pull points, and their answers."""

from __future__ import annotations

from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer

FACTORY = "/wsn/CreatePullPoint"


def create(parts: GatewayParts, attributes: str = "", path: str = FACTORY) -> str:
    """The path of a new pull point."""
    answer = parts.post(soap.envelope(f"<wsnt:CreatePullPoint {attributes}/>"), path)
    assert answer.status == 200, answer.reason
    address = answer.text("Address") or ""
    assert address.startswith("http://127.0.0.1:8080/wsn/pullpoints/")
    return address.removeprefix("http://127.0.0.1:8080")


def get(maximum: object = None, attributes: str = "") -> bytes:
    """A GetMessages."""
    number = "" if maximum is None else f"<wsnt:MaximumNumber>{maximum}</wsnt:MaximumNumber>"
    return soap.envelope(f"<wsnt:GetMessages {attributes}>{number}</wsnt:GetMessages>")


def payloads(answer: HttpAnswer) -> list[str]:
    """The payloads in the answer to a GetMessages."""
    assert answer.status == 200, answer.reason
    return [element.text or "" for element in answer.root.iterfind(".//{urn:o}order")]


def fill(parts: GatewayParts, path: str, *texts: str) -> None:
    """Put these messages into a pull point."""
    messages = [soap.message(payload=f'<o:order xmlns:o="urn:o">{text}</o:order>') for text in texts]
    assert parts.post(soap.envelope(soap.notify(*messages)), path).status == 202
