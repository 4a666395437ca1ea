"""Requests that are wrong, and the answer that each must get. None of them may change anything.

The same table is held against the application alone and against the real process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support import soap_messages as soap

BROKER = "/wsn/NotificationBroker"
LIMIT = 200_000
"""The body limit that the table expects (gateway.max_body_bytes)."""

_BOMB = (
    '<!DOCTYPE b [<!ENTITY a "xxxxxxxxxx">'
    + "".join(f'<!ENTITY {n} "{f"&{p};" * 10}">' for p, n in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)


@dataclass(frozen=True)
class BadRequest:
    """`fault` is the detail element's name, or the fault code's where there is no detail; empty for no SOAP answer."""

    name: str
    body: bytes
    status: int
    fault: str
    says: str
    path: str = BROKER
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def _subscribe(*, says: str, fault: str, name: str, to: str = "http://127.0.0.1:9/c", **parts: str) -> BadRequest:
    return BadRequest(name, soap.envelope(soap.subscribe(to, **parts)), 500, fault, says)


def _notify(*messages: str, says: str, fault: str, name: str) -> BadRequest:
    return BadRequest(name, soap.envelope(soap.notify(*messages)), 500, fault, says)


ENVELOPES = [
    BadRequest("not XML", b"hello", 400, "Client", "not well-formed"),
    BadRequest("nothing", b"", 400, "Client", "not well-formed"),
    BadRequest("cut off", soap.envelope(soap.notify())[:-20], 400, "Client", "not well-formed"),
    BadRequest("two roots", soap.envelope(soap.notify()) * 2, 400, "Client", "not well-formed"),
    BadRequest(
        "invalid UTF-8",
        soap.envelope(soap.notify()).replace(b">1<", b">\xff\xfe<"),
        400,
        "Client",
        "not in its declared encoding",
    ),
    BadRequest(
        "unknown charset",
        soap.envelope(soap.notify()),
        400,
        "Client",
        "encoding klingon of the request is not accepted",
        headers={"Content-Type": "text/xml; charset=klingon"},
    ),
    BadRequest(
        "a MIME package",
        b"--b\r\nContent-Type: application/xop+xml\r\n\r\n" + soap.envelope(soap.notify()) + b"\r\n--b--\r\n",
        415,
        "Client",
        "without MTOM",
        headers={"Content-Type": 'Multipart/Related; boundary=b; type="application/xop+xml"'},
    ),
    BadRequest("an undeclared prefix", soap.envelope("<x:Notify/>"), 400, "Client", "prefix x"),
    BadRequest("not SOAP", b"<html/>", 400, "Client", "SOAP Envelope is expected"),
    BadRequest(
        "another SOAP",
        soap.envelope("").replace(b"http://schemas.xmlsoap.org/soap/envelope/", b"urn:soap-2.0"),
        500,
        "VersionMismatch",
        "urn:soap-2.0",
    ),
    BadRequest("no body", soap.envelope("").replace(b"<s:Body></s:Body>", b""), 400, "Client", "no Body"),
    BadRequest("an empty body", soap.envelope(""), 400, "Client", "it has none"),
    BadRequest("two operations", soap.envelope(soap.notify() * 2), 400, "Client", "it has 2 elements"),
    BadRequest("two bodies", soap.envelope("<a/></s:Body><s:Body><b/>"), 400, "Client", "there is another"),
    BadRequest("a DTD", b"<!DOCTYPE a>" + soap.envelope(soap.notify()), 400, "Client", "document type declaration"),
    BadRequest(
        "a DTD from elsewhere",
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1:9/x.dtd">' + soap.envelope(soap.notify()),
        400,
        "Client",
        "document type declaration",
    ),
    BadRequest("an entity bomb", (_BOMB + "<b>&i;</b>").encode(), 400, "Client", "amplification"),
    BadRequest("a bomb in an attribute", (_BOMB + '<b c="&i;"/>').encode(), 400, "Client", "amplification"),
    BadRequest(
        "a file as entity",
        b'<!DOCTYPE b [<!ENTITY f SYSTEM "file:///etc/passwd">]>' + soap.envelope("<b>&f;</b>"),
        400,
        "Client",
        "document type declaration",
    ),
    BadRequest("20,000 levels", soap.envelope("<a>" * 20_000 + "</a>" * 20_000), 400, "Client", "depth"),
    BadRequest("too large", b" " * (LIMIT + 1), 413, "Client", f"more than {LIMIT}"),
]

HEADERS = [
    BadRequest(
        "a mandatory header",
        soap.envelope(soap.notify(), header='<x:Pay xmlns:x="urn:x" s:mustUnderstand="1"/>'),
        500,
        "MustUnderstand",
        "{urn:x}Pay",
    ),
    BadRequest(
        "a mandatory header of SOAP 1.2",
        soap.envelope(soap.notify(), "1.2", header='<x:Pay xmlns:x="urn:x" s:mustUnderstand="true"/>'),
        500,
        "MustUnderstand",
        "{urn:x}Pay",
    ),
]

OPERATIONS = [
    BadRequest("unknown operation", soap.envelope('<x:Do xmlns:x="urn:x"/>'), 500, "ActionNotSupported", "{urn:x}Do"),
    BadRequest("unknown operation, 1.2", soap.envelope("<wsnt:Do/>", "1.2"), 500, "ActionNotSupported", "}Do"),
    BadRequest(
        "Subscribe to a subscription",
        soap.envelope(soap.subscribe()),
        500,
        "ActionNotSupported",
        "not offered at this address",
        path="/wsn/subscriptions/x",
    ),
    *(
        BadRequest(
            f"{operation} of an unknown subscription",
            soap.envelope(f"<wsnt:{operation}/>" if operation != "Renew" else soap.renew("PT1M")),
            500,
            "ResourceUnknownFault",
            "no subscription 'x'",
            path="/wsn/subscriptions/x",
        )
        for operation in ("Renew", "Unsubscribe", "PauseSubscription", "ResumeSubscription")
    ),
    BadRequest(
        "Unsubscribe of nobody",
        soap.envelope("<wsnt:Unsubscribe/>"),
        500,
        "ResourceUnknownFault",
        "no subscription is named",
    ),
    BadRequest(
        "an unknown pull point",
        soap.envelope("<wsnt:GetMessages/>"),
        500,
        "ResourceUnknownFault",
        "no pull point 'x'",
        path="/wsn/pullpoints/x",
    ),
    BadRequest(
        "an unknown registration",
        soap.envelope('<b:DestroyRegistration xmlns:b="http://docs.oasis-open.org/wsn/br-2"/>'),
        500,
        "ResourceUnknownFault",
        "no registration 'x'",
        path="/wsn/registrations/x",
    ),
    BadRequest(
        "CreatePullPoint with a long name",
        soap.envelope(f'<wsnt:CreatePullPoint pullPointQueueName="{"x" * 201}"/>'),
        500,
        "UnableToCreatePullPointFault",
        "200 characters",
        path="/wsn/CreatePullPoint",
    ),
    BadRequest(
        "RegisterPublisher with a demand for nothing",
        soap.envelope(
            '<b:RegisterPublisher xmlns:b="http://docs.oasis-open.org/wsn/br-2"><b:Demand>1</b:Demand></b:RegisterPublisher>'
        ),
        500,
        "PublisherRegistrationRejectedFault",
        "Demand needs a wsn-br:PublisherReference",
    ),
]

_GET_CURRENT_MESSAGE = "<wsnt:GetCurrentMessage>{}</wsnt:GetCurrentMessage>"


def _current(name: str, topic: str, fault: str, says: str) -> BadRequest:
    return BadRequest(name, soap.envelope(_GET_CURRENT_MESSAGE.format(topic)), 500, fault, says)


CURRENT_MESSAGES = [
    _current("the current message of nothing", "", "Client", "no wsnt:Topic"),
    _current(
        "a topic that keeps none", soap.topic("t:a"), "NoCurrentMessageOnTopicFault", "does not keep its last message"
    ),
    _current("the current message of many", soap.topic("t:a//.", "Full"), "MultipleTopicsSpecifiedFault", "one topic"),
    _current("the current message of no topic", soap.topic("t:a b"), "InvalidTopicExpressionFault", "t:a b"),
    _current("a current message in klingon", soap.topic("t:a", "K"), "TopicExpressionDialectUnknownFault", "K"),
]

SUBSCRIBES = [
    BadRequest("no consumer", soap.envelope("<wsnt:Subscribe/>"), 500, "Client", "no wsnt:ConsumerReference"),
    _subscribe(name="no address", to=" ", fault="Client", says="no wsa:Address"),
    _subscribe(name="not http", to="ftp://h/x", fault="SubscribeCreationFailedFault", says="http or https"),
    _subscribe(name="a file", to="file:///etc/passwd", fault="SubscribeCreationFailedFault", says="http or https"),
    _subscribe(name="no host", to="http:///x", fault="SubscribeCreationFailedFault", says="names no usable host"),
    _subscribe(name="a bad port", to="http://h:99999/", fault="SubscribeCreationFailedFault", says="not a URL"),
    _subscribe(
        name="port 0", to="http://h:0/", fault="SubscribeCreationFailedFault", says="names no usable host and port"
    ),
    _subscribe(name="a password", to="http://u:p@h/", fault="SubscribeCreationFailedFault", says="user name"),
    _subscribe(name="inside", to="http://10.0.0.1/", fault="SubscribeCreationFailedFault", says="private network"),
    _subscribe(name="metadata", to="http://169.254.169.254/", fault="SubscribeCreationFailedFault", says="cloud"),
    _subscribe(name="odd numbers", to="http://0x7f.1/", fault="SubscribeCreationFailedFault", says="ends in a number"),
    _subscribe(name="a space", to="http://h/a b", fault="SubscribeCreationFailedFault", says="characters"),
    _subscribe(name="too long", to="http://h/" + "x" * 2048, fault="SubscribeCreationFailedFault", says="longer than"),
    _subscribe(
        name="anonymous", to=f"{soap.WSA}/anonymous", fault="SubscribeCreationFailedFault", says="not a usable address"
    ),
    _subscribe(name="an unknown filter", filters='<x:F xmlns:x="urn:x"/>', fault="InvalidFilterFault", says="{urn:x}F"),
    _subscribe(
        name="a content filter that is no XPath",
        filters=soap.content_filter("o:order["),
        fault="InvalidMessageContentExpressionFault",
        says="too early",
    ),
    _subscribe(
        name="a content filter that costs too much",
        filters=soap.content_filter("//a = //b"),
        fault="InvalidMessageContentExpressionFault",
        says="one side of =",
    ),
    _subscribe(
        name="a content filter with an unbound prefix",
        filters=soap.content_filter("nope:a"),
        fault="InvalidMessageContentExpressionFault",
        says="nope",
    ),
    _subscribe(
        name="a content filter of another dialect",
        filters=soap.content_filter("true()", dialect="http://www.onvif.org/ver10/tev/messageContentFilter/ItemFilter"),
        fault="InvalidMessageContentExpressionFault",
        says="ItemFilter",
    ),
    _subscribe(
        name="a query of IHE's that is not offered",
        filters='<r:AdhocQuery xmlns:r="urn:oasis:names:tc:ebxml-regrep:xsd:rim:3.0" id="urn:uuid:1"/>',
        fault="InvalidFilterFault",
        says="urn:uuid:1",
    ),
    _subscribe(
        name="too many content filters",
        filters=soap.content_filter("true()") * 17,
        fault="InvalidMessageContentExpressionFault",
        says="16",
    ),
    _subscribe(
        name="a producer filter that is no XPath",
        filters=soap.content_filter("document('http://h/')", "ProducerProperties"),
        fault="InvalidProducerPropertiesExpressionFault",
        says="not available",
    ),
    _subscribe(
        name="an unknown dialect",
        filters='<wsnt:TopicExpression Dialect="urn:x">a</wsnt:TopicExpression>',
        fault="TopicExpressionDialectUnknownFault",
        says="urn:x",
    ),
    _subscribe(
        name="a bad expression",
        filters=soap.topic_expression("a//|"),
        fault="InvalidTopicExpressionFault",
        says="position 3",
    ),
    _subscribe(
        name="an unbound prefix",
        filters=soap.topic_expression("nope:a"),
        fault="InvalidTopicExpressionFault",
        says="nope",
    ),
    _subscribe(
        name="an expression with elements",
        filters="<wsnt:TopicExpression><a/></wsnt:TopicExpression>",
        fault="InvalidTopicExpressionFault",
        says="text, not elements",
    ),
    _subscribe(
        name="over at once",
        termination="PT0S",
        fault="UnacceptableInitialTerminationTimeFault",
        says="not in the future",
    ),
    _subscribe(
        name="no time at all", termination="soon", fault="UnacceptableInitialTerminationTimeFault", says="'soon'"
    ),
    BadRequest(
        "a Subscribe as large as a notification may be",
        soap.envelope(soap.subscribe(more=f"<x>{'x' * 70_000}</x>")),
        413,
        "Client",
        "a Subscribe may have 65536 bytes",
    ),
    _subscribe(
        name="an unknown policy",
        more='<wsnt:SubscriptionPolicy><x:P xmlns:x="urn:x"/></wsnt:SubscriptionPolicy>',
        fault="UnrecognizedPolicyRequestFault",
        says="{urn:x}P",
    ),
]

NOTIFIES = [
    BadRequest("no message", soap.envelope("<wsnt:Notify/>"), 500, "Client", "no wsnt:NotificationMessage"),
    _notify(
        "<wsnt:NotificationMessage><wsnt:Message><a/></wsnt:Message></wsnt:NotificationMessage>",
        name="no topic",
        fault="InvalidTopicExpressionFault",
        says="has no wsnt:Topic",
    ),
    _notify(
        "<wsnt:NotificationMessage><wsnt:Topic>a</wsnt:Topic></wsnt:NotificationMessage>",
        name="no payload element",
        fault="Client",
        says="no wsnt:Message",
    ),
    _notify(soap.message(payload="text"), name="text as payload", fault="Client", says="with 0 elements"),
    _notify(soap.message(payload="<a/><b/>"), name="two payloads", fault="Client", says="with 2 elements"),
    _notify(
        soap.message(),
        soap.message(topic="t:a//."),
        name="the second message's topic is none",
        fault="InvalidTopicExpressionFault",
        says="is not allowed here",
    ),
    BadRequest(
        "a huge namespace that every message would repeat",
        soap.envelope(soap.notify(*[soap.message("a", "<h:n/>")] * 200)).replace(
            b"<s:Body>", b"<s:Body xmlns:h='urn:" + b"h" * 50_000 + b"'>"
        ),
        413,
        "Client",
        "too large",
    ),
    _notify(soap.message("t:" + "a/" * 70 + "a"), name="too deep", fault="InvalidTopicExpressionFault", says="64"),
]

PLACES = [
    BadRequest("GET at the broker", b"", 405, "", "by POST, not GET", method="GET"),
    BadRequest("GET at a subscription", b"", 405, "", "by POST", method="GET", path="/wsn/subscriptions/x"),
    BadRequest("elsewhere", soap.envelope(soap.notify()), 404, "", "/wsn/NotificationBroker", path="/"),
    BadRequest("no id", soap.envelope("<wsnt:Unsubscribe/>"), 404, "", "no such address", path="/wsn/subscriptions/"),
    BadRequest("below an id", b"<a/>", 404, "", "no such address", path="/wsn/subscriptions/x/y"),
]

CASES = [*ENVELOPES, *HEADERS, *OPERATIONS, *CURRENT_MESSAGES, *SUBSCRIBES, *NOTIFIES, *PLACES]
