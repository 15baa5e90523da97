"""The demo as one HTML page, which loads nothing and reads well at any width, in light and dark."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from gradspec.conformance.report.templates import render_page
from gradspec.demo.page import TITLE, WINNER, Page, Picture

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
        (_, opening), *sections = self._sections
        return render_page("demo/page.html", self._title, style=STYLE, opening=opening, sections=sections)
