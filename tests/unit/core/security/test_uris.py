"""IRIs and their URIs. What is expected was written by hand, out of RFC 3987 and the registries' own examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.security.uris import to_uri


@pytest.mark.parametrize(
    ("iri", "uri"),
    [
        ("http://host/é", "http://host/%C3%A9"),
        ("http://host/a%20b/é?ü=ß#Ж", "http://host/a%20b/%C3%A9?%C3%BC=%C3%9F#%D0%96"),
        ("http://host?é", "http://host?%C3%A9"),
        ("http://host/𝄞", "http://host/%F0%9D%84%9E"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://BÜCHER.example:8080/x", "http://xn--bcher-kva.example:8080/x"),
        ("http://bu\u0308cher.example/", "http://xn--bcher-kva.example/"),
        ("http://straße.de/", "http://xn--strae-oqa.de/"),
        ("http://例え.テスト/", "http://xn--r8jz45g.xn--zckzah/"),
        ("http://a_b.é/", "http://a_b.xn--9ca/"),
        ("http://[::1]:80/é", "http://[::1]:80/%C3%A9"),
        ("http://Host/A?b=%7e&c=[d]", "http://Host/A?b=%7e&c=[d]"),
        ("no url", "no url"),
        ("é", "é"),
    ],
)
def test_iris(iri: str, uri: str) -> None:
    assert to_uri(iri) == uri
    assert to_uri(uri) == uri


@pytest.mark.parametrize(
    "iri",
    [
        "http://\uff11\uff12\uff17.0.0.1/",  # full-width digits
        "http://127\u30020\u30020\u30021/",  # ideographic full stops
        "http://host\uff0fpath/",
        "http://" + "é" * 70 + ".example/",
        "http://\u200d.example/",
        "http://host:\uff18\uff10/",
        "http://host/\ud800",
        "http:é",
        "http://é\u202e.example/",
    ],
)
def test_what_cannot_be_converted_is_refused(iri: str) -> None:
    refusal = AddressPolicy().check_url(iri)
    assert refusal is not None
    assert refusal.rule == "spelling"


def test_an_iri_is_judged_like_its_uri() -> None:
    policy = AddressPolicy(OutboundSettings(ports="443"), frozenset({("xn--9ca.example", 443)}))
    for iri in ("http://é.example/", "https://é.example/é", "https://ö.example/", "http://é@h/", "http://10.0.0.1/é"):
        assert policy.check_url(iri) == policy.check_url(to_uri(iri))
    assert policy.check_url("https://ö.example/é") is None
    assert str(policy.check_url("https://É.example/")).endswith("(outbound rule: own-port)")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(), st.text())
def test_whatever_is_taken_is_ascii(host: str, path: str, query: str) -> None:
    iri = f"http://{host}/{path}?{query}"
    if AddressPolicy().check_url(iri) is None:
        assert to_uri(iri).isascii()
