"""A run in one picture: a square for each operator and mode, with the worst that was found there, as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files

from gradspec.conformance.model.problem import MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import KINDS
from gradspec.conformance.report.finding import places
from gradspec.conformance.report.markup import Markup, element, joined
from gradspec.conformance.report.overview import short
from gradspec.conformance.report.words import KIND_WORDS, MODE_WORDS, in_order, kind_words

COLUMNS = 3
"""Of operators, beside each other."""
NAME, CELL, ROW = 132, 42, 22
WIDTH, HEAD = NAME + len(MODES) * CELL + 18, 24
STYLE = """
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.head { fill: var(--soft); font-size: 11px; }
.cell rect { fill: var(--fill); }
.cell text { fill: var(--fore); font-weight: 600; font-size: 11px; }
.never text { fill: var(--strong); }
.never rect { fill: none; }
"""


def picture(run: Run) -> str:
    """All operators of a run by their modes; rows of one layer are added up.

    >>> run = Run("mine", "1.0", "a machine", seed=7)
    >>> run.tally.count("max_pool", "value", (), "pass")
    >>> "<title>max_pool, value: 1 pass</title>" in picture(run)
    True
    """
    counts, found = _counts(run), _findings(run)
    names = in_order(op for op, _ in counts)
    rows = -(-len(names) // COLUMNS) or 1
    parts = [_column(names[i : i + rows], counts, found, WIDTH * k) for k, i in enumerate(range(0, len(names), rows))]
    width, height = COLUMNS * WIDTH, HEAD + rows * ROW + 30
    label = f"What was found in {run.target}, by operator and mode"
    attributes = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height, "role": "img"}
    legend = _legend(HEAD + rows * ROW + 22)
    xmlns = "http://www.w3.org/2000/svg"
    return element("svg", _style(), *parts, legend, xmlns=xmlns, aria_label=label, **attributes) + "\n"


def _style() -> Markup:
    """The colours of the page of a run, light and dark, and the shapes of this picture."""
    colours, _, _ = files(__package__).joinpath("page/style.css").read_text().partition("\n\n")
    return element("style", Markup(colours + STYLE))


def _counts(run: Run) -> dict[tuple[str, str], Counter[str]]:
    """Cases by kind, of each operator and mode."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for (op, mode, kind), number in run.tally.modes.items():
        found.setdefault((op.partition(" ")[0], mode), Counter())[kind] += number
    return found


def _findings(run: Run) -> Counter[tuple[str, str, str]]:
    """How many findings of a kind an operator and mode have."""
    every = ({(op.partition(" ")[0], mode, f.kind) for op, mode, _ in places(f)} for f in run.findings)
    return Counter(place for places_ in every for place in places_)


def _column(
    names: Sequence[str],
    counts: dict[tuple[str, str], Counter[str]],
    found: Counter[tuple[str, str, str]],
    left: int,
) -> Markup:
    return joined(*_heads(left), *(part for i, op in enumerate(names) for part in _row(op, i, counts, found, left)))


def _heads(left: int) -> Iterator[Markup]:
    for k, mode in enumerate(MODES):
        middle = left + NAME + CELL * k + CELL / 2
        yield element(
            "text", {"second": "2nd"}.get(mode, MODE_WORDS[mode]), x=middle, y=15, text_anchor="middle", class_="head"
        )


def _row(
    op: str,
    row: int,
    counts: dict[tuple[str, str], Counter[str]],
    found: Counter[tuple[str, str, str]],
    left: int,
) -> Iterator[Markup]:
    top = HEAD + row * ROW
    yield element("text", op, x=left + NAME - 8, y=top + 14, text_anchor="end")
    for k, mode in enumerate(MODES):
        told = counts.get((op, mode), Counter())
        kind = next((kind for kind in KINDS if found[op, mode, kind]), None) or _unfound(told)
        number = found[op, mode, kind] or told[kind]
        words = ", ".join(kind_words(k).counted(told[k]) for k in KINDS if told[k]) or "never tried"
        yield _cell(kind, number, f"{op}, {MODE_WORDS[mode]}: {words}", left + NAME + k * CELL, top)


def _unfound(counts: Counter[str]) -> str:
    return next((kind for kind in ("pass", "undecided", "not_offered") if counts[kind]), "never")


def _cell(kind: str, number: int, title: str, left: float, top: float) -> Markup:
    is_told = kind not in ("never", "not_offered")
    text = f"{kind_words(kind).symbol}{short(number) if is_told else ''}" if kind != "never" else "·"
    return element(
        "g",
        element("title", title),
        element("rect", x=left, y=top, width=CELL - 2, height=ROW - 3, rx=3),
        element("text", text, x=left + CELL / 2 - 1, y=top + 14, text_anchor="middle"),
        class_=f"cell {kind}",
    )


def _legend(top: float) -> Markup:
    said = {
        "pass": "cases that passed, nothing found",
        "defect": "defects",
        "convention": "conventions",
        "reduced": "reduced precision",
        "undecided": "undecided cases alone",
        "not_offered": "not offered",
    }
    parts, left = list[Markup](), 8.0
    for kind, words in said.items():
        symbol = element("text", KIND_WORDS[kind].symbol, x=left + 9, y=top, text_anchor="middle")
        box = element("rect", x=left, y=top - 13, width=18, height=17, rx=3)
        text = element("text", words, x=left + 24, y=top, class_="head")
        parts += [element("g", box, symbol, class_=f"cell {kind}"), text]
        left += 44 + 6.2 * len(words)
    return joined(*parts)
