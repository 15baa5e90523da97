"""Arrays as grids of cells in SVG: one grid for a row or a plane, several for more axes, cut to what is marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from math import frexp, isfinite, prod
from typing import Any, TypeAlias

from markupsafe import Markup
from numpy.typing import NDArray

from gradspec.conformance.report.templates import FOLDER, render
from gradspec.spec.tensor import Index

Margins: TypeAlias = tuple[tuple[int, int], ...]

SIGNS = {"winner": "★", "theirs": "✗", "wrong": "!"}
"""What is written into a marked cell, so that its colour is not all there is to see."""
SHARP = frozenset(SIGNS)
"""The marks that must be seen when a plane is cut."""

MOST_SLICES = 4
WIDTH, HEIGHT = 58, 32
LEFT, TOP = 26, 40
LONGEST = 7
"""Characters that fit in a cell."""


@dataclass(frozen=True)
class MarkedPlane:
    """An array with marks on some of its cells; coordinates outside of it are padding, which holds ``filling``."""

    title: str
    values: NDArray[Any]
    marks: Mapping[Index, frozenset[str]] = field(default_factory=dict)
    margins: Margins = ()
    filling: str = ""
    most: tuple[int, int] = (9, 9)
    """Rows and columns that are drawn of a large one."""

    def extent(self) -> list[range]:
        """Along each axis, the coordinates that there are: real ones, padding, and whatever is marked."""
        sides = self.margins or ((0, 0),) * self.values.ndim
        marked = [[place[axis] for place in self.marks] for axis in range(self.values.ndim)]
        axes = zip(self.values.shape, sides, marked, strict=True)
        return [range(min([-lo, *own]), max([n + hi, *(m + 1 for m in own)])) for n, (lo, hi), own in axes]

    @cached_property
    def focus(self) -> list[Index]:
        """The cells that must be seen."""
        return [place for place, marks in self.marks.items() if marks & SHARP] or sorted(self.marks)

    @cached_property
    def view(self) -> list[range]:
        """The rows and columns that are drawn: all of a short axis, and of a long one those around the marks."""
        axes = range(self.values.ndim)[-2:]
        limits, spans = self.most[-len(axes) :], self.extent()
        firsts = [min((place[axis] for place in self.focus), default=0) for axis in axes]
        return [_cut(spans[axis], most, first) for axis, most, first in zip(axes, limits, firsts, strict=True)]

    @cached_property
    def slices(self) -> list[Index]:
        """The slices of the axes before those: the ones with marks, or the first, and never too many."""
        marked = dict.fromkeys(place[:-2] for place in (*self.focus, *sorted(self.marks)))
        every = product(*(range(n) for n in self.values.shape[:-2]))
        return sorted(islice(marked or every, MOST_SLICES))

    @property
    def is_cut(self) -> bool:
        spans = self.extent()
        return self.view != spans[-2:] or len(self.slices) < prod(map(len, spans[:-2]))

    def text(self, place: Index) -> str:
        """What a cell holds, in full."""
        return written(self.values[place]) if self.is_real(place) else self.filling

    def is_real(self, place: Index) -> bool:
        return all(0 <= p < n for p, n in zip(place, self.values.shape, strict=True))


def _cut(span: range, most: int, focus: int) -> range:
    if len(span) <= most:
        return span
    start = min(max(focus - 1, span.start), span.stop - most)
    return range(start, start + most)


# --- numbers ---------------------------------------------------------------------------------------------------------


def written(value: object) -> str:
    """A number in full, without a fraction that is zero.

    >>> written(np.float32(0.1)), written(np.float16(-2)), written(np.int8(7)), written(None)
    ('0.1', '-2', '7', '')
    """
    return "" if value is None else str(value).removesuffix(".0")


def short(text: str) -> str:
    """A number that fits in a cell.

    >>> [short(text) for text in ("0.1", "16777216", "1.1754944e-38", "-0.33333334", "1.2345679e-30")]
    ['0.1', '2^24', '2^-126', '-0.3333', '1.2e-30']
    """
    if len(text) <= LONGEST:
        return text
    try:
        value = float(text)
    except ValueError:
        return text[: LONGEST - 1] + "…"
    tried = (*_power_of_two(value), *(format(value, how) for how in (".5g", ".4g", ".3g", ".2g", ".0e")))
    return next((shorter for shorter in tried if len(shorter) <= LONGEST), text[: LONGEST - 1] + "…")


def _power_of_two(value: float) -> Iterator[str]:
    """``2^k``, if a number is within half a unit of float32 of it: written decimals are not exact."""
    if value and isfinite(value):
        fraction, exponent = frexp(value)
        if abs(abs(fraction) - 0.5) < 2.0**-25 or abs(abs(fraction) - 1) < 2.0**-25:
            yield f"{'-' if value < 0 else ''}2^{exponent - (abs(fraction) < 0.75)}"


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw_grids(plane: MarkedPlane) -> list[Markup]:
    """One grid for each slice of the leading axes."""
    *rows, columns = plane.view
    return [_grid(plane, outer, rows[0] if rows else None, columns) for outer in plane.slices]


def _grid(plane: MarkedPlane, outer: Index, rows: range | None, columns: range) -> Markup:
    lines: Sequence[int | None] = [None] if rows is None else rows
    title = f"{plane.title}, slice {list(outer)}" if outer else plane.title
    at = {
        (*outer, *(() if y is None else (y,)), x): (LEFT + WIDTH * i, TOP + HEIGHT * j)
        for j, y in enumerate(lines)
        for i, x in enumerate(columns)
    }
    labels = [(LEFT + WIDTH * (i + 0.5), TOP - 8.0, x) for i, x in enumerate(columns)]
    labels += [(LEFT - 11.0, TOP + HEIGHT * (j + 0.5), y) for j, y in enumerate(lines) if y is not None]
    return render(
        f"{FOLDER}/plane.html",
        title=title,
        description=describe_marks(plane, set(at)),
        width=max(LEFT + WIDTH * len(columns) + 3, int(7.6 * len(title))),
        height=TOP + HEIGHT * len(lines) + 3,
        wide=len(columns) > 5,
        labels=labels,
        cells=[_cell(plane, place, *corner) for place, corner in at.items()],
        WIDTH=WIDTH,
        HEIGHT=HEIGHT,
    )


def _cell(plane: MarkedPlane, place: Index, x: int, y: int) -> dict[str, object]:
    marks, text = plane.marks.get(place, frozenset()), plane.text(place)
    classes = ["cell", *([] if plane.is_real(place) else ["padding"]), *sorted(marks)]
    signs = [(name, sign) for name, sign in SIGNS.items() if name in marks]
    return {"x": x, "y": y, "text": text, "short": short(text), "signs": signs, "classes": classes}


def describe_marks(plane: MarkedPlane, shown: set[Index]) -> str:
    """The marks in words."""
    parts = []
    for mark in ("tap", *SIGNS):
        places = sorted(place for place, marks in plane.marks.items() if mark in marks and place in shown)
        if places:
            listed = ", ".join(f"{list(place)} = {plane.text(place) or 'empty'}" for place in places[:12])
            parts.append(f"{mark}: {listed}{', …' if len(places) > 12 else ''}")
    return "; ".join(parts) or "no cell is marked"
