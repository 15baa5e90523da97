"""What a demo is written on: sentences, lines of Python that are shown and then run, and pictures of small grids.

Everything is ASCII and reads the same without colour: a winner stands in brackets.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import dedent, fill
from types import SimpleNamespace
from typing import Any, TypeAlias

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

NARROWEST, WIDEST = 60, 88  # columns: pictures need the first, and sentences read badly beyond the second

WINNER, CODE, TITLE, FAINT = "bold green", "cyan", "bold", "dim"

Picture: TypeAlias = list[Text]


class Page:
    """Standard output, and the Python session the demo goes through."""

    def __init__(self) -> None:
        self.console = Console(markup=False, emoji=False, highlight=False)
        self.console.width = min(max(self.console.width, NARROWEST), WIDEST)
        self.names: dict[str, Any] = {}
        self.sections = 0

    def title(self, text: str) -> None:
        self.console.print("", Text(text, TITLE), "", sep="\n")

    def section(self, title: str, sentence: str) -> None:
        self.sections += 1
        heading = Text(f"{self.sections}. {title}", TITLE)
        self.console.print("", Rule(heading, characters="-", align="left", style=FAINT), sep="\n")
        self.say(sentence)

    def say(self, sentence: str) -> None:
        self.console.print(fill(sentence, self.console.width - 1), "", sep="\n")

    def enter(self, code: str) -> SimpleNamespace:
        """Show ``code`` as typed at a prompt, run it, and give back every name the session has so far.

        What is shown is what is run, so a reader who types it gets what the page draws.
        """
        lines = dedent(code).strip().splitlines()
        prompts = ("..." if line[:1] in ("", " ") else ">>>" for line in lines)
        self.type([f"{prompt} {line}".rstrip() for prompt, line in zip(prompts, lines, strict=True)])
        exec("\n".join(lines), self.names)
        return SimpleNamespace(**self.names)

    def type(self, lines: Sequence[str]) -> None:
        """Show lines as they are typed."""
        for line in lines:
            self.console.print(Text(line, CODE), soft_wrap=True)
        self.console.print()

    def draw(self, *pictures: Picture) -> None:
        """Pictures side by side."""
        widths = [max(map(len, picture)) for picture in pictures]
        for parts in zip_longest(*pictures, fillvalue=Text()):
            line = Text(" ")
            for part, width in zip(parts, widths, strict=True):
                line.append(" ").append_text(part).append(" " * (width - len(part) + 2))
            line.rstrip()
            self.console.print(line, soft_wrap=True)
        self.console.print()


def grid(rows: Iterable[Iterable[Text]], title: str = "", width: int = 0) -> Picture:
    """Cells in columns of one width, aligned on the right, under a title."""
    cells = [list(row) for row in rows]
    width = width or 1 + max(len(cell) for row in cells for cell in row)
    lines = [Text.assemble(*(part for cell in row for part in (" " * (width - len(cell)), cell))) for row in cells]
    return [Text(title, TITLE), *lines] if title else lines


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> Picture:
    """Rows under a header, aligned on the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]

    def line(row: Sequence[str], style: str = "") -> Text:
        return Text("   ".join(map(str.ljust, row, widths)), style)

    return [line(header, TITLE), *map(line, cells)]


def number(value: object, wins: bool = False) -> Text:
    """A number, in brackets if it wins; the digits line up either way."""
    digits = f"{value:g}" if isinstance(value, float) else str(value)
    return Text(f"[{digits}]", WINNER) if wins else Text(f"{digits} ")


# --- as HTML: loads nothing, and reads well at any width, in light and dark -------------------------------------------

CLASSES = {WINNER: "wins", TITLE: "title"}

STYLE = """
header, main { max-width: 56rem; }
pre { margin: 0.6rem 0; padding: 0.7rem 0.9rem; overflow-x: auto; line-height: 1.35; border-radius: 6px; }
pre.typed { background: var(--code); border: 1px solid var(--line); color: var(--link); }
.pictures { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.pictures pre { padding: 0; max-width: 100%; }
.title { font-weight: 600; }
.wins { font-weight: 700; color: var(--winner); }
"""


class HtmlPage(Page):
    """The same session; what a terminal would show is collected."""

    def __init__(self) -> None:
        super().__init__()
        self._plain = Console(color_system=None)
        self._title = ""
        self._sections: list[tuple[str, list[tuple[str, Any]]]] = [("", [])]
        """Headings, and what is said, typed and drawn below each."""

    def title(self, text: str) -> None:
        self._title = text

    def section(self, title: str, sentence: str) -> None:
        self.sections += 1
        self._sections.append((f"{self.sections}. {title}", []))
        self.say(sentence)

    def say(self, sentence: str) -> None:
        self._add("say", sentence)

    def type(self, lines: Sequence[str]) -> None:
        self._add("type", "\n".join(lines))

    def draw(self, *pictures: Picture) -> None:
        self._add("draw", [[self._spans(text) for text in picture] for picture in pictures])

    def _add(self, kind: str, content: object) -> None:
        self._sections[-1][1].append((kind, content))

    def _spans(self, text: Text) -> list[tuple[str, str]]:
        """The parts of a line, each with its class."""
        segments = Text.assemble(text).render(self._plain)
        return [(CLASSES[str(s.style)] if s.style else "", s.text) for s in segments]

    def written(self) -> str:
        from gradspec.conformance.report.templates import render_page

        (_, opening), *sections = self._sections
        return render_page("demo/page.html", self._title, style=STYLE, opening=opening, sections=sections)
