"""Rich's console, made so that what is printed can do nothing to the terminal; see `terminal`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from core.printable import printable


class PrintableConsole(Console):
    """Its own control codes (colours, a cursor that is moved) are beside the text in rich's segments, so all that
    is in the text is foreign."""

    def __init__(self, **named: Any) -> None:
        # Topics and addresses have colons, which would be taken for the names of emoji.
        super().__init__(emoji=False, **named)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Whatever is printed comes by here, nested things several times."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def render_str(self, text: str, **named: Any) -> Text:
        """Texts once more before they are measured, so that a table makes room for what is written out."""
        return super().render_str(printable(text), **named)
