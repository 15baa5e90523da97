"""The demo as one HTML page, which loads nothing and reads well at any width, in light and dark."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gradspec.conformance.report.markup import Markup, document, element, joined, section
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
        self._sections: list[tuple[str, list[Markup]]] = [("", [])]

    def title(self, text: str) -> None:
        self._title = text

    def section(self, title: str, sentence: str) -> None:
        self.sections += 1
        self._sections.append((f"{self.sections}. {title}", []))
        self.say(sentence)

    def say(self, sentence: str) -> None:
        self._add(element("p", sentence))

    def type(self, lines: Sequence[str]) -> None:
        self._add(element("pre", "\n".join(lines), class_="typed"))

    def draw(self, *pictures: Picture) -> None:
        drawn = (element("pre", joined(*(line for text in p for line in (self._marked(text), "\n")))) for p in pictures)
        self._add(element("div", *drawn, class_="pictures"))

    def _add(self, part: Markup) -> None:
        self._sections[-1][1].append(part)

    def _marked(self, text: Text) -> Markup:
        """A line with what is styled in elements of their own."""
        segments = Text.assemble(text).render(self._plain)
        return joined(*(element("span", s.text, class_=CLASSES[str(s.style)]) if s.style else s.text for s in segments))

    def written(self) -> str:
        (_, first), *rest = self._sections
        parts = [section(f"part{i}", title, *content) for i, (title, content) in enumerate(rest, 1)]
        return document(self._title, element("header", element("h1", self._title), *first), parts, style=STYLE)
