"""Expressions as elements of messages that we write."""

from __future__ import annotations

from collections.abc import Mapping

from ingest import answers
from ingest.namespaces import PREFIXES, WSNT


def expression_element(
    element: str, dialect: str, expression: str, namespaces: Mapping[str, str], namespace: str = WSNT
) -> str:
    """An expression as an element, by default of base notification, with the prefixes that it uses."""
    declared = "".join(
        f" xmlns:{prefix}={answers.attribute(uri)}" if prefix else f" xmlns={answers.attribute(uri)}"
        for prefix, uri in namespaces.items()
    )
    # A declaration of theirs may take our prefix: the element brings one of its own that theirs cannot be.
    own = PREFIXES[namespace]
    while own in namespaces:
        own += "_"
    return (
        f'<{own}:{element} xmlns:{own}="{namespace}"{declared} Dialect={answers.attribute(dialect)}>'
        f"{answers.text(expression)}</{own}:{element}>"
    )
