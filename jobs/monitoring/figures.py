"""Numbers as people read them, and series of them as small charts made of characters."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN = str.maketrans(_BARS + "…", "_.,-=+*#~")


def sparkline(values: Sequence[float | None], width: int, top: float = 0.0) -> str:
    """A chart of one line, the newest value on the right; what is not known is left blank.

    It reaches from 0 to the largest value, or to `top` if that is larger.
    """
    shown = list(values[-width:]) if width > 0 else []
    most = max((value for value in shown if value is not None), default=0.0)
    most = max(most, top)
    bars = "".join(" " if value is None else _bar(value / most if most > 0 else 0.0) for value in shown)
    return bars.rjust(width)


def _bar(share: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]


def plain(text: str) -> str:
    """The charts in a text made of characters that every terminal has."""
    return text.translate(_PLAIN)


def count(value: float | None) -> str:
    """Seven characters at most: 0, 0.3, 12, 1,234, 12.3 k, 4.5 M."""
    if value is None:
        return "-"
    if value >= 999_950:
        return f"{value / 1e6:,.1f} M"
    if value >= 9_999.5:
        return f"{value / 1e3:.1f} k"
    return f"{value:.1f}" if 0 < value < 9.95 and value != int(value) else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """Eight characters at most, with the unit that suits."""
    if value is None:
        return "-"
    if value < 0.9995:
        milliseconds = value * 1_000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f} s"


def size(value: float | None) -> str:
    """Bytes, in binary units."""
    if value is None:
        return "-"
    if value >= 2**30:
        return f"{value / 2**30:.1f} GiB"
    if value >= 2**20:
        return f"{value / 2**20:.0f} MiB"
    return f"{value / 1024:.0f} KiB"


def percent(share: float | None) -> str:
    """Of one core, or of a whole."""
    return "-" if share is None else f"{share * 100:.0f} %"


def shortened(text: str, width: int) -> str:
    """At most so many characters; the middle goes, because addresses differ at both ends."""
    if len(text) <= width:
        return text
    left = (width - 1) // 2
    return text[:left] + "…" + text[len(text) - (width - 1 - left) :]


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: endpoints are what strangers have written."""
    return "".join(character if character.isprintable() else "?" for character in text)
