"""The terminal, for text that strangers wrote: names of files, cases, hosts and images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from iobench.core.errors import printable


class Screen(Console):
    """A console that takes text as text: neither rich's markup nor a terminal's escapes act."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is written: everything that is printed comes through here."""
        for segment in super().render(renderable, options):
            inert = segment.text if segment.control else printable(segment.text, "\n")
            yield Segment(inert, segment.style, segment.control)
