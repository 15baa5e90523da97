"""Sentences, lists and tables for a terminal of any width and encoding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradspec.system.terminal import ascii_text, printable

WIDEST = 100
"""Columns: sentences read badly beyond that."""

Rows = Iterable[Sequence[Text | str]]


class TerminalPage:
    """A console whose every line fits, and that shows no character it cannot."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = min(console.width, WIDEST)
        self.is_ascii = not (console.encoding or "").lower().startswith("utf")

    def clean(self, text: str) -> str:
        return ascii_text(text) if self.is_ascii else printable(text)

    def say(self, text: str = "", style: str = "") -> None:
        """A sentence, broken between words."""
        self.console.print(Text(self.clean(text), style), width=self.width)

    def verbatim(self, text: str) -> None:
        """Lines that somebody may copy: never broken."""
        self.console.print(Text(self.clean(text)), soft_wrap=True)

    def heading(self, text: str, style: str = "bold") -> None:
        title = self.clean(text)
        dashes = "-" * max(0, self.width - len(title) - 1)
        self.console.print("", Text.assemble((f"{title} ", style), (dashes, "dim")), sep="\n", width=self.width)

    def fields(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names on the left, and what they stand for."""
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            if value:
                table.add_row(name, Text(self.clean(value)))
        self.console.print(table, width=self.width)

    def table(
        self, header: Sequence[str], rows: Rows, right: Collection[int] = (), whole: Collection[int] = ()
    ) -> None:
        """Columns, of which some stand to the right, and the ``whole`` ones are never broken."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i in right else "left", overflow="fold", no_wrap=i in whole)
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(self.clean(cell)) for cell in row))
        self.console.print(table, width=self.width)
