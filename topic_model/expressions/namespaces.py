"""Prefixes of an expression, resolved by the declarations in scope at its element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from arborcast.topic_model.namespaces import PREFIXES, SOAP11, SOAP12, WSTOP
from arborcast.topic_model.patterns.grammar import refuse
from arborcast.topic_model.topics import is_namespace

ENVELOPE_NAMESPACES: Final = frozenset({SOAP11, SOAP12, WSTOP, "http://www.onvif.org/ver10/events/wsdl", *PREFIXES})
"""Namespaces of messages, which have no topics.

Those of WSRF too: clients generated from the WSDL by JAXB declare every namespace of the schemas in each message, and
an arbitrary one as the default.
"""


class Declarations:
    """Resolves prefixes and collects the declarations that an expression uses.

    The default namespace is under the key "". The standard does not define whether it applies to an unprefixed root
    topic: for an xsd:QName it does, in XPath it does not. Here it does, since the schema types these as QNames, except
    for an envelope namespace: many clients write `<TopicExpression xmlns="...wsn/b-2">alarm</TopicExpression>` for a
    topic in no namespace.
    """

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        self._namespaces = namespaces
        self.used: dict[str, str] = {}

    def resolve(self, prefix: str, text: str, position: int) -> str:
        """The namespace of a prefix. Raises ExpressionError if it is not declared."""
        namespace = self._namespaces.get(prefix, "")
        if not namespace:
            known = ", ".join(sorted(filter(None, self._namespaces))) or "none"
            refuse(text, position, f"the prefix {prefix!r} is not declared here (declared: {known[:200]})")
        self._check(namespace, text, position)
        self.used[prefix] = namespace
        return namespace

    def default(self, text: str, position: int) -> str:
        """The namespace of an unprefixed root topic."""
        namespace = self._namespaces.get("", "")
        if not namespace or namespace in ENVELOPE_NAMESPACES:
            return ""
        self._check(namespace, text, position)
        self.used[""] = namespace
        return namespace

    @staticmethod
    def _check(namespace: str, text: str, position: int) -> None:
        if not is_namespace(namespace):
            refuse(text, position, f"the namespace {namespace[:200]!r} is not a valid URI")
