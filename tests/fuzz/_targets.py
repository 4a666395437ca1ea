"""What is fuzzed: by name, the check, good inputs, and pieces to put into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arborcast.core.security.keyring import KeyRing
from tests.fuzz._checks_framed import FRAME_SEEDS, PART, ZMQ_SEEDS, check_frames, check_zeromq
from tests.fuzz._checks_http import HTTP_SEEDS, HTTP_SNIPPETS, check_http
from tests.fuzz._checks_records import (
    check_control,
    check_datagram,
    check_envelope,
    check_log_records,
    check_peers,
    control_seeds,
    datagram_seeds,
    envelope_seeds,
    log_seeds,
    peer_seeds,
)
from tests.fuzz._checks_texts import check_alternatives, check_condition, check_expression, check_ldif, check_secrets
from tests.fuzz._checks_wire import (
    ENCODED_SEEDS,
    ENCODING_SNIPPETS,
    GATEWAY_SEEDS,
    HEADER_SEEDS,
    check_encoding,
    check_fragments,
    check_gateway,
    check_headers,
    check_legacy,
    check_push,
)
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap


@dataclass(frozen=True)
class Target:
    """One thing to fuzz: its check, good inputs, and pieces to put into them."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    snippets: tuple[bytes, ...]


KEYS = KeyRing({"k1": b"k" * 32})
_SECRET = "whsec_" + "QUFB" * 8

_XML_SNIPPETS = (
    *(b"<", b">", b"&", b'"', b"'", b"/", b":", b"]]>", b"<!--", b"-->", b"<![CDATA[", b"<?", b"?>", b"=", b"-"),
    *(
        *(b"&lt;", b"&amp;", b"&#0;", b"&#x110000;", b"&x;", b"<!DOCTYPE a>", b"<!DOCTYPE a [<!ENTITY x 'y'>]>"),
        *(b"[", b"{"),
    ),
    *(b"xmlns=''", b"xmlns:s='urn:x'", b"xml:lang='x'", b"<a>" * 300, b"<?xml version='1.0' encoding='utf-16'?>"),
    *(
        *(b"wsnt:Notify", b"wsnt:Topic", b"wsa:Address", b"s:Body", b"s:Header", b"PT1S", b"P9999Y"),
        b"2030-01-01T00:00:00Z",
    ),
    *(b"wsnt:Unsubscribe", b"wsnt:Renew", b"p:Signing", b"p:Secret", b"urn:arborcast:policy", b"xsi:nil='1'"),
)


_TOPIC_TEXTS = (
    *(b"t:a/b", b"a//.|t:b/*", b"//x:b//.", b"*/a", b"a:b:c", b"t:a//*/x:c", b"{urn:t}a/b", b"boolean(//t:a[b])"),
)
_TOPIC_SNIPPETS = (
    *(b"/", b"//", b"//.", b"*", b"|", b":", b".", b"..", b"{", b"}", b"{}", b"t:", b"x:", b"q:", b"a", b"/a" * 40),
    *(b"|a" * 40, b"//*" * 20, b"[", b"]", b"(", b")", b"@", b"count(", b"=", b"1", b"'", b'"', b"self::", b" or "),
)
_XPATH_SNIPPETS = (
    *(b"/", b"//", b"..", b"*", b"|", b"[", b"]", b"(", b")", b"@", b"'", b'"', b",", b"$x", b"ancestor::", b"id("),
    *(b"document('file:///etc/passwd')", b"count(", b"not(", b"string(", b"position()", b"last()", b"//*" * 30),
    *(
        b"[*" * 30,
        *(b" and ", b" or ", b" div ", b" mod ", b"1e400"),
        b"-" * 40,
        *(b"preceding::*", b"re:test(", b"o:x", b"<", b">"),
    ),
)

_FRAME_SNIPPETS = (
    *(b"ARBC", b"ARBC\x01", b"\x00" * 4, b"\xff" * 4, b"\x01", b"\x03", b"\x05", b"\x63", b"\x81", b"\xa5topic"),
    *(b"\xa7payload", b"\xc4\x04<x/>", b"\xa1a", b"\xaaproperties", b"\xaaexpression", b"\xa3a//", b"\xc0", b"\xde"),
)

TARGETS: Mapping[str, Target] = {
    "frames": Target(check_frames, FRAME_SEEDS, _FRAME_SNIPPETS),
    "zeromq": Target(
        check_zeromq,
        ZMQ_SEEDS,
        (PART, PART * 8, b"\x01", b"\x00", b"<", b"{", b"}", b"{}", b'{"a": ""}', b"/", b":", b"//", b"a", b"a/" * 40),
    ),
    "headers": Target(
        check_headers,
        HEADER_SEEDS,
        (*_XML_SNIPPETS, b"\n", b"urn:x", b"http://", b"[::1]", b"00-", b"PT", b"Z", b"+", b"true", b"{urn:t}", b"\t"),
    ),
    "http": Target(check_http, HTTP_SEEDS, HTTP_SNIPPETS),
    "gateway": Target(check_gateway, GATEWAY_SEEDS, _XML_SNIPPETS),
    "legacy": Target(
        check_legacy,
        tuple(
            text.encode()
            for text in (
                legacy.subscribe("all:alarm:alarm1", "http://host:9002/wsn-subscribe"),
                legacy.unsubscribe("all:alarm:alarm1", "http://host:9002/wsn-subscribe"),
                legacy.notify("all:alarm:alarm1", "<level n='1'>3 &lt; 4</level>"),
                legacy.notify("all", "text & more", "1-0-1-2"),
                legacy.notify("all", "<half a tag", "1-1-0-0"),
                legacy.create_pull_point(),
            )
        ),
        (*_XML_SNIPPETS, b"<wsnt:Message>", b"</wsnt:Message>", b"<Fragment>", b"0-", b"all:"),
    ),
    "peers": Target(check_peers, peer_seeds(), (*_XML_SNIPPETS, *_TOPIC_TEXTS, b"G/a", b"\x91", b"\xc4\x04")),
    "datagrams": Target(check_datagram, datagram_seeds(), (b"ACD1", b"\n", b"v1,", b"G/a", b"\x91", b"\xc4\x04")),
    "fragments": Target(
        check_fragments,
        (
            "<a b='1'>R&amp;D é告<c/><![CDATA[ & ]]></a>".encode(),
            "1 < 2 & more Ã© ".encode(),
            legacy.notify("a", "<x/>", "1-1-0-0").encode(),
            b"1-1-1-7;me%2C1",
        ),
        (*_XML_SNIPPETS, b"<wsnt:Message>", b"</wsnt:Message>", b"</Identification>", b"<Fragment>1-1-0-3</Fragment>"),
    ),
    "push": Target(
        check_push, (*GATEWAY_SEEDS[:2], soap.envelope("<o:raw xmlns:o='urn:o'>1</o:raw>", "1.2")), _XML_SNIPPETS
    ),
    "encoding": Target(check_encoding, ENCODED_SEEDS, ENCODING_SNIPPETS),
    "expression": Target(check_expression, _TOPIC_TEXTS, _TOPIC_SNIPPETS),
    "alternatives": Target(
        check_alternatives,
        (
            b"t:a//b|t:a//c/b|t:a//a//a|t:a/*/b",
            b"a//b//c|a//b|a/b/c//.|//b|//b/*|*/b|x:b//t:c",
            b"t:a//b//c//b//c|t:a//*/c|t:a/*/*/b|t:a//b//*|//c//.|t:a//a/a//a",
            b"|".join(b"t:a//%c//%c/*" % (first, second) for first in b"abc" for second in b"abc"),
            b"//a|//b|//c|//t:a|//x:b//c|//*|t:a|a",
        ),
        (
            *(
                *(b"|", b"//", b"/", b"*", b".", b"//.", b"/*", b"//*", b"t:", b"x:", b"a", b"b", b"c", b"|a//b"),
                b"|t:a//b",
            ),
            *(b"//a" * 8, b"/*" * 8, b"|t:a//b//c" * 20, b"|//b" * 10, b"//b/*//c", b"|*", b"//t:b", b"/x:c"),
        ),
    ),
    "condition": Target(
        check_condition,
        (
            *(b"//o:x[@b] = 1", b"count(/o:order/*) > 2 and not(//y/z)", b"string-length(normalize-space(o:x)) + 1"),
            b"o:x|y/z",
        ),
        _XPATH_SNIPPETS,
    ),
    "envelope": Target(
        check_envelope, envelope_seeds(), (*_XML_SNIPPETS, b"\\r\\n", b'\\"', b"\\ud800", b"legacy", b"raw")
    ),
    "control": Target(
        check_control,
        control_seeds(),
        (
            *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b'"v":2', b'"v":99', b"//.", b"|"),
            *(b"xpath:", b"\\ud800"),
        ),
    ),
    "records": Target(
        check_log_records, log_seeds(), (b"\x80", b"\xdf\xff\xff\xff\xff", b"\xcf", b"\xc0", b"\xda\xff\xff", b"\t")
    ),
    "ldif": Target(
        check_ldif,
        (
            b"version: 1\n\ndn: ou=topics,dc=x\nobjectClass: organizationalUnit\nou: topics\n\n# c\ndn:: b3U9YSxkYz14\n"
            b"cn: a\n b\n",
            b"dn: cn=a\\,b+ou=\\C3\\A4,dc=x\ncn;lang-de: a,b\ndescription:: AAAA\n",
            b"cn=a\\20,ou=#0401,dc=x",
        ),
        (
            *(b"dn:", b"\n\n", b"\n ", b":: ", b":< ", b"changetype: add\n", b"\\", b"\\2", b"+", b",", b"=", b'"'),
            *(b"#", b";"),
        ),
    ),
    "secrets": Target(
        check_secrets,
        (
            _SECRET.encode(),
            KEYS.seal(b"x" * 32, "context").encode(),
            b"k1 " + b"QUFB" * 10 + b"QUE=\n",
            b"1800000000",
            b"v1,AAAA v1,BBBB",
        ),
        (b"whsec_", b"k1:", b"v1,", b"v1a,", b"=", b"+", b"/", b"\n", b"#", b" "),
    ),
}
"""By the names that `tests.fuzz.run` takes."""
