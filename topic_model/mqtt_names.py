"""Conversion between MQTT topics and topic paths; MQTT filters, and templates of topics. Pure.

A level of an MQTT topic becomes a name: each character that is not allowed in the name, and each `_` that would begin
an escape, is written `_xHHHH_` (8 digits beyond U+FFFF), as in SQL/XML and .NET's XmlConvert; an empty level is `_x_`.
A name becomes a level by unescaping, except for characters that no level of a published topic may have (`/`, `+`, `#`,
U+0000; `$` at the beginning of the topic), which stay escaped. So every MQTT topic survives the round trip.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from urllib.parse import quote, unquote, urlsplit

from arborcast.core.errors import TopicError
from arborcast.topic_model.topics import TopicPath, is_ncname, parse_path, split_path

_EMPTY = "_x_"

_AMBIGUOUS = re.compile(r"_(?=x(?:[0-9A-Fa-f]{4}|_))")
_WRITTEN = re.compile(r"_x([0-9A-Fa-f]{8}|[0-9A-Fa-f]{4})_")

_NOT_IN_LEVELS = frozenset("/+#\0")

# Parts of a template: `{topic}`, `{#}`, `{1}` or literal text, in which a namespace may have slashes.
_RULE_PARTS = re.compile(r"(?:\{[^{}]*\}|[^/{}])+")
_PLACE = re.compile(r"\{(topic|#|[1-9][0-9]?)\}")

MAX_TOPIC_BYTES = 65_535
"""Maximum length of an MQTT topic in bytes."""


def name_of(level: str) -> str:
    """The name for a level of an MQTT topic."""
    if not level:
        return _EMPTY
    if is_ncname(level) and "_x" not in level:
        return level
    written = ""
    for character in _AMBIGUOUS.sub("_x005F_", level):
        if is_ncname(f"{written and '_'}{character}"):
            written += character
        else:
            written += f"_x{ord(character):0{4 if character <= chr(0xFFFF) else 8}X}_"
    return written


def level_of(name: str) -> str:
    """The level for a name."""
    if name == _EMPTY:
        return ""

    def read(match: re.Match[str]) -> str:
        code = int(match[1], 16)
        legal = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF and chr(code) not in _NOT_IN_LEVELS
        return chr(code) if legal else match[0]

    return _WRITTEN.sub(read, name)


def levels_of(path: TopicPath) -> list[str]:
    """The levels for a topic path; a namespace precedes its name as in the path."""
    levels: list[str] = []
    parent = ""
    for namespace, name in split_path(path):
        before = "" if namespace == parent else f"{{{namespace}}}"
        parent = namespace
        for character in _NOT_IN_LEVELS:
            before = before.replace(character, f"_x{ord(character):04X}_")
        levels.append(before + level_of(name))
    return levels


def is_mqtt(address: str) -> bool:
    """Whether this address of a subscription is at an MQTT broker."""
    return address.startswith(("mqtt://", "mqtts://"))


class Template:
    """A topic with placeholders: parts with slashes between them, each a placeholder or literal text. Raises
    TopicError."""

    def __init__(self, text: str, places: int, *, rest: bool) -> None:
        """`places` is the greatest number of a placeholder; `rest`: `{#}` is allowed."""
        self.text = text
        self._parts = _RULE_PARTS.findall(text)
        if "/".join(self._parts) != text or not text:
            raise TopicError(f"{text[:200]!r} is not parts with slashes between them")
        for part in self._parts:
            place = _PLACE.fullmatch(part)
            if place is None and _PLACE.search(part):
                raise TopicError(f"{text[:200]!r}: a placeholder must be a complete level, unlike {part[:60]!r}")
            if place is not None and place[1].isdecimal() and int(place[1]) > places:
                raise TopicError(f"{text[:200]!r}: {part} exceeds the number of wildcards + in the filter")
            if part == "{#}" and not rest:
                raise TopicError(f"{text[:200]!r}: {{#}} is allowed only with a filter that has #")

    def filled(self, everything: Sequence[str], places: Sequence[str], rest: Sequence[str] = ()) -> list[str]:
        """The parts with `{topic}`, `{1}` … and `{#}` replaced. Raises TopicError for a number without a value."""
        found: list[str] = []
        for part in self._parts:
            place = _PLACE.fullmatch(part)
            if place is None:
                found.append(part)
            elif place[1] == "topic":
                found += everything
            elif place[1] == "#":
                found += rest
            elif int(place[1]) <= len(places):
                found.append(places[int(place[1]) - 1])
            else:
                raise TopicError(f"{self.text[:200]!r} has {part}, but the topic has {len(places)} levels")
        return found


class TopicsOut:
    """The addresses of MQTT topics for notifications, by a template: `{topic}` is the topic, `{1}` … are its levels.
    `address` is the address of a subscription, with the template as its topic."""

    def __init__(self, address: str) -> None:
        """Raises TopicError for a template that yields no valid MQTT topic."""
        parts = urlsplit(address)
        text = unquote(parts.path[1:])
        check_published(text.replace("{#}", ""))
        if "{" in _PLACE.sub("", text):
            raise TopicError(f"{text[:200]!r}: the placeholders are {{topic}}, {{1}}, {{2}} …")
        self._template = Template(text, 99, rest=False)
        self._parts = parts

    def topic(self, path: TopicPath) -> str:
        """The MQTT topic of a notification. Raises TopicError if it would be invalid."""
        levels = levels_of(path)
        topic = "/".join(self._template.filled(levels, levels))
        if topic.startswith("$"):
            topic = f"_x0024_{topic[1:]}"
        check_published(topic)
        return topic

    def url(self, path: TopicPath) -> str:
        """The address of the MQTT topic. Raises TopicError as `topic`."""
        return self._parts._replace(path=f"/{quote(self.topic(path))}").geturl()


def address_of(base: str, template: str, *, retain: bool) -> str:
    """The address of a subscription that publishes to these topics of the broker at `base`, which ends with /."""
    return f"{base}{quote(template)}{'?retain' if retain else ''}"


def check_published(topic: str) -> None:
    """Raises TopicError for an invalid topic of a PUBLISH."""
    if not topic or topic.startswith("$") or any(each in topic for each in "+#\0"):
        raise TopicError(f"{topic[:200]!r} cannot be published to: it is empty, begins with $, or has + or #")
    if len(topic.encode(errors="replace")) > MAX_TOPIC_BYTES:
        raise TopicError(f"an MQTT topic has at most {MAX_TOPIC_BYTES} bytes")


class TopicsIn:
    """The topic paths for the MQTT topics that a filter selects, by a template with `{topic}`, `{1}` … for each `+`,
    and `{#}`. Raises TopicError for an invalid filter or template."""

    def __init__(self, text: str, template: str) -> None:
        self.filter = text
        self._levels = text.split("/")
        check_filter(self._levels)
        self._template = Template(template, self._levels.count("+"), rest=self._levels[-1] == "#")
        parse_path("/".join(self._template.filled(["a"], ["a"] * 99, ["a"])))

    def topic(self, mqtt: str) -> TopicPath | None:
        """The path for an MQTT topic; None if the filter does not select it. Raises TopicError."""
        levels = mqtt.split("/")
        rest = len(self._levels) - 1 if self._levels[-1] == "#" else None
        if rest is None and len(levels) != len(self._levels):
            return None
        # `#` also selects the level above it; no wildcard selects topics that begin with $.
        if len(levels) < len(self._levels[:rest]) or (mqtt.startswith("$") and self._levels[0] in ("+", "#")):
            return None
        places = []
        for expected, level in zip(self._levels[:rest], levels, strict=False):
            if expected == "+":
                places.append(name_of(level))
            elif expected != level:
                return None
        names = list(map(name_of, levels))
        return parse_path("/".join(self._template.filled(names, places, [] if rest is None else names[rest:])))

    def overlaps(self, other: TopicsIn) -> bool:
        """Whether both filters can select the same topic."""
        for number, (ours, theirs) in enumerate(zip_longest(self._levels, other._levels)):
            both = {ours, theirs}
            if number == 0 and both & {"+", "#"} and any(each.startswith("$") for each in both):
                return False
            if "#" in both:  # also selects the level above
                return True
            if ours != theirs and ("+" not in both or None in both):
                return False
        return True


def check_filter(levels: Sequence[str]) -> None:
    """Raises TopicError for an invalid topic filter, or a shared one."""
    text = "/".join(levels)
    if not text or len(text.encode(errors="replace")) > MAX_TOPIC_BYTES or "\0" in text:
        raise TopicError(f"{text[:200]!r} is not an MQTT topic filter")
    if levels[0] == "$share":
        raise TopicError(f"{text[:200]!r} is a shared subscription, which has no order: use its filter alone")
    for number, level in enumerate(levels):
        if ("+" in level and level != "+") or ("#" in level and (level != "#" or number < len(levels) - 1)):
            raise TopicError(f"{text[:200]!r}: + must be a complete level, and # the last one")
