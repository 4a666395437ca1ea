"""Faults: the table of the faults that the standards declare, and their schema-valid rendering.

A fault is a SOAP Fault with one element of BaseFaultType in its detail: Timestamp (required), Description, then the
element's own children. Exceptions have the local name of their fault (`PeerError.fault`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from arborcast.core.errors import InfrastructureError, PeerError
from arborcast.topic_model.namespaces import (
    ARBORCAST_OUTBOUND,
    PREFIXES,
    SOAP12,
    WSA,
    WSA_FAULT_ACTION,
    WSN_BR,
    WSN_FAULT_ACTION,
    WSNT,
    WSRF_BF,
    WSRF_FAULT_ACTION,
    WSRF_R,
    WSRF_RL,
    WSRF_RP,
    WSSE,
    wsnt,
)
from arborcast.topic_model.subscriptions import SoapVersion
from arborcast.wire import answers, times
from arborcast.wire.answers import text
from arborcast.wire.envelope import Addressing
from arborcast.wire.errors import (
    AccessRefused,
    Compressed,
    ConsumerRefused,
    MalformedMessage,
    NotAuthenticated,
    NotUnderstood,
    Packaged,
    TooLarge,
    UnacceptableTermination,
    UnknownFilters,
    UnrecognizedPolicy,
    UnsupportedPolicy,
)

DECLARED: dict[str, str] = dict.fromkeys(
    (
        "InvalidFilterFault",
        "TopicExpressionDialectUnknownFault",
        "InvalidTopicExpressionFault",
        "TopicNotSupportedFault",
        "InvalidProducerPropertiesExpressionFault",
        "InvalidMessageContentExpressionFault",
        "UnacceptableInitialTerminationTimeFault",
        "UnrecognizedPolicyRequestFault",
        "UnsupportedPolicyRequestFault",
        "NotifyMessageNotSupportedFault",
        "SubscribeCreationFailedFault",
        "NoCurrentMessageOnTopicFault",
        "MultipleTopicsSpecifiedFault",
        "UnacceptableTerminationTimeFault",
        "UnableToDestroySubscriptionFault",
        "PauseFailedFault",
        "ResumeFailedFault",
        "UnableToCreatePullPointFault",
        "UnableToGetMessagesFault",
        "UnableToDestroyPullPointFault",
    ),
    WSNT,
) | {
    "PublisherRegistrationRejectedFault": WSN_BR,
    "PublisherRegistrationFailedFault": WSN_BR,
    "ResourceNotDestroyedFault": WSN_BR,
    "ResourceUnknownFault": WSRF_R,
    "ResourceUnavailableFault": WSRF_R,
    "InvalidResourcePropertyQNameFault": WSRF_RP,
    "TerminationTimeChangeRejectedFault": WSRF_RL,
}
"""The namespace of each declared fault element, by local name."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer with a SOAP body."""

    status: int
    body: bytes
    content_type: bytes
    retry_after_s: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


def of_peer(error: PeerError, soap: SoapVersion, addressing: Addressing | None, now: datetime) -> Answer:
    """The answer to a request that broke a rule."""
    namespace = DECLARED.get(error.fault)
    if namespace is not None:
        body = _fault(soap, "Client", str(error), detail=_declared(error, namespace, now))
        action = WSN_FAULT_ACTION if namespace in (WSNT, WSN_BR) else WSRF_FAULT_ACTION
        return _answer(500, soap, body, action, addressing)
    answer = _answer(_status(error), soap, _undeclared(error, soap), WSA_FAULT_ACTION, addressing)
    return replace(answer, headers=tuple(error.headers())) if isinstance(error, AccessRefused) else answer


def of_infrastructure(error: InfrastructureError, soap: SoapVersion, addressing: Addressing | None) -> Answer:
    """The answer to a failure of the infrastructure: 503 with Retry-After."""
    body = _fault(soap, "Server", str(error))
    return replace(_answer(503, soap, body, WSA_FAULT_ACTION, addressing), retry_after_s=seconds_until(error))


def seconds_until(error: InfrastructureError) -> int:
    """The value of Retry-After."""
    # Without a value most clients never retry, and an operator may repair a permanent cause.
    return 30 if error.retry_after is None else max(1, round(error.retry_after))


def of_defect(soap: SoapVersion, addressing: Addressing | None) -> Answer:
    """The answer to an unexpected exception; the log has its details."""
    return _answer(500, soap, _fault(soap, "Server", "internal error"), WSA_FAULT_ACTION, addressing)


def _answer(status: int, soap: SoapVersion, body: str, action: str, addressing: Addressing | None) -> Answer:
    return Answer(status, answers.envelope(soap, body, action, addressing), answers.media_type(soap))


def _status(error: PeerError) -> int:
    if isinstance(error, AccessRefused):
        return error.status
    if isinstance(error, TooLarge):
        return 413
    if isinstance(error, (Compressed, Packaged)):
        return 415
    if isinstance(error, MalformedMessage):
        return 400
    return 500


def _undeclared(error: PeerError, soap: SoapVersion) -> str:
    match error.fault:
        case "VersionMismatch":
            return _fault(soap, "VersionMismatch", str(error))
        case "MustUnderstand":
            header = error.header if isinstance(error, NotUnderstood) else ""
            return _fault(soap, "MustUnderstand", f"{error} ({header})" if header not in str(error) else str(error))
        case "ActionNotSupported":
            return _fault(soap, "Client", str(error), subcode="ActionNotSupported")
        case fault if isinstance(error, NotAuthenticated):
            return _fault(soap, "Client", str(error), subcode=fault, prefix="wsse", namespace=WSSE)
        case _:
            return _fault(soap, "Client", str(error))


def _fault(
    soap: SoapVersion,
    code: str,
    reason: str,
    *,
    subcode: str = "",
    detail: str = "",
    prefix: str = "wsa",
    namespace: str = WSA,
) -> str:
    """The Fault element; `code` is a code of SOAP 1.1, `subcode` a name of WS-Addressing or another namespace."""
    match soap:
        case "1.1":
            # SOAP 1.1 has no subcodes: the subcode replaces the code, as in WS-Addressing's SOAP binding.
            name, declaration = f"soap:{code}", ""
            if subcode:
                name, declaration = f"{prefix}:{subcode}", f' xmlns:{prefix}="{namespace}"'
            detail = f"<detail>{detail}</detail>" if detail else ""
            return (
                f"<soap:Fault><faultcode{declaration}>{name}</faultcode>"
                f"<faultstring>{text(reason)}</faultstring>{detail}</soap:Fault>"
            )
        case "1.2":
            value = {"Client": "Sender", "Server": "Receiver"}.get(code, code)
            inner = (
                f'<soap:Subcode><soap:Value xmlns:{prefix}="{namespace}">{prefix}:{subcode}</soap:Value></soap:Subcode>'
                if subcode
                else ""
            )
            detail = f"<soap:Detail>{detail}</soap:Detail>" if detail else ""
            return (
                f'<soap:Fault xmlns:soap="{SOAP12}"><soap:Code><soap:Value>soap:{value}</soap:Value>{inner}</soap:Code>'
                f'<soap:Reason><soap:Text xml:lang="en">{text(reason)}</soap:Text></soap:Reason>{detail}</soap:Fault>'
            )
        case _:
            assert_never(soap)


def _declared(error: PeerError, namespace: str, now: datetime) -> str:
    prefix = PREFIXES[namespace]
    name = f"{prefix}:{error.fault}"
    return (
        f'<{name} xmlns:{prefix}="{namespace}" xmlns:wsrf-bf="{WSRF_BF}">'
        f"<wsrf-bf:Timestamp>{times.written(now)}</wsrf-bf:Timestamp>{_error_code(error)}"
        f'<wsrf-bf:Description xml:lang="en">{text(str(error))}</wsrf-bf:Description>'
        f"{_extra_children(error, now)}</{name}>"
    )


def _error_code(error: PeerError) -> str:
    """The rule that an address broke, for programs: the fault has many reasons, and subscribers can correct this
    one."""
    if not isinstance(error, ConsumerRefused) or not error.rule:
        return ""
    return f'<wsrf-bf:ErrorCode dialect="{ARBORCAST_OUTBOUND}">{text(error.rule)}</wsrf-bf:ErrorCode>'


def _extra_children(error: PeerError, now: datetime) -> str:
    """Required children of particular faults, in the namespace of base notification."""
    match error:
        case UnknownFilters(names=names):
            return _names("UnknownFilter", names)
        case UnrecognizedPolicy(names=names):
            return _names("UnrecognizedPolicy", names)
        case UnsupportedPolicy(names=names):
            return _names("UnsupportedPolicy", names)
        case UnacceptableTermination(minimum=minimum):
            return f"<wsnt:MinimumTime>{times.written(minimum)}</wsnt:MinimumTime>"
    # Raised without the required value: then the complete filter is named, or the current time.
    match error.fault:
        case "InvalidFilterFault":
            return _names("UnknownFilter", (wsnt("Filter"),))
        case "UnacceptableInitialTerminationTimeFault" | "UnacceptableTerminationTimeFault":
            return f"<wsnt:MinimumTime>{times.written(now)}</wsnt:MinimumTime>"
    return ""


def _names(element: str, names: tuple[str, ...]) -> str:
    parts = []
    for name in names:
        value, declaration = answers.qname(name)
        parts.append(f"<wsnt:{element}{declaration}>{value}</wsnt:{element}>")
    return "".join(parts)
