"""Values of `admin` as JSON."""

from __future__ import annotations

from typing import Any

from arborcast.admin.times import iso


def document(value: Any) -> Any:
    """A value of `admin` as JSON shows it: a struct as an object. A time (`x_ms`) is text under the name `x`, and empty
    if it is 0."""
    fields = getattr(value, "__struct_fields__", None) or getattr(value, "_fields", None)
    if fields is not None:
        return dict(_member(name, getattr(value, name)) for name in fields)
    if isinstance(value, dict):
        return {name: document(each) for name, each in value.items()}
    return [document(each) for each in value] if isinstance(value, list | tuple) else value


def _member(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith("_ms"):
        return name, document(value)
    return name.removesuffix("_ms"), iso(value) if value else "" if value == 0 else value
