"""A proof, or the lack of one, as an HTML page: what was stated, margins, and pictures of what costs the most width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from gradspec.conformance.report.markup import Markup, document, element, joined, scroller, section, table, term
from gradspec.graph.ir import Array
from gradspec.verify.answers import Answer
from gradspec.verify.solving import Question

KINDS = {"unsat": "pass", "sat": "defect", "unknown": "undecided"}
"""The colours of the answers are those of the judge's kinds."""

STATED = {
    "unsat": "Proved: no input of the boxes is sent into the unsafe set, {of}.",
    "sat": "Refuted: the witness below is an input whose outputs are unsafe, exactly and as the compiled kernels run.",
    "unknown": "Neither proved nor refuted in the time that was given.",
}
OF = {
    "any": "whatever conforming kernels compute it, in the precision of the model",
    "real": "as a function of real numbers; what floats round is left out",
}

MOST_PLANES, MOST_CELLS, MOST_MARGINS = 6, 64, 200
"""Planes of inputs that are drawn, cells along their axes, and conjunctions that are listed."""

STYLE = """
.heat rect { fill: var(--link); }
.heat .frame { fill: none; stroke: var(--line); stroke-width: 1; }
.widths .boxes { fill: var(--not-offered-bar); }
.widths .lines { fill: var(--link); }
.widths text, .heat text { fill: var(--ink); font: 12px var(--mono); }
.widths .soft { fill: var(--soft); }
.key.boxes { background: var(--not-offered-bar); } .key.lines { background: var(--link); }
figure { margin: 0.6rem 0; overflow-x: auto; }
"""

View = Mapping[str, Any]
"""A ``RootView`` as JSON."""


def page(asked: Question, answer: Answer, views: Sequence[View] | None, why: str = "") -> str:
    """The page; ``why`` says why there are no views.

    >>> text = page(Question("net.onnx", "p.vnnlib"), Answer("unsat", 1.5, 3, 0.25), None, "time was up")
    >>> "Proved" in text, "time was up" in text, "https://" in text
    (True, True, False)
    """
    title = f"gradspec verify {Path(asked.network).name} {Path(asked.property).name}"
    return document(title, _header(asked, answer), _sections(answer, views, why), style=STYLE)


def _header(asked: Question, answer: Answer) -> Markup:
    stated = STATED[answer.answer].format(of=OF[answer.kernels])
    facts = {
        "network": asked.network,
        "property": asked.property,
        "kernels": answer.kernels,
        "time": f"{answer.seconds:,.1f} s of {asked.seconds:g} s",
        "parts": f"{answer.parts:,}",
        "margin": "" if answer.margin is None else f"{answer.margin:.6g}",
    }
    return element(
        "header",
        element("p", "gradspec verify", class_="brand"),
        element("h1", Path(asked.property).name),
        element("p", f"{answer.answer}. {stated}", class_=f"verdict {KINDS[answer.answer]}"),
        *([element("p", f"! {answer.error}", class_="trouble")] if answer.error else []),
        element("dl", *(term(name, value) for name, value in facts.items() if value), class_="facts"),
    )


def _sections(answer: Answer, views: Sequence[View] | None, why: str) -> Iterable[Markup]:
    if answer.witness:
        rows = (
            element("tr", element("td", element("code", n)), element("td", element("code", v)))
            for n, v in answer.witness
        )
        head = (element("th", name, scope="col") for name in ("variable", "number"))
        yield section("witness", "Witness", scroller(table(head, rows), "Witness"))
    if views is None:
        yield section("widths", "What costs the most width", element("p", f"Not known: {why}."))
        return
    for view in views:
        yield from _of_view(view)
    yield section("reading", "How to read this page", *(element("p", words) for words in READING))


READING = (
    "Nothing is split yet in what the pictures show: they are of whole boxes of inputs. A search splits what they "
    "leave open, so that margins below 0 there can still end in a proof.",
    "A margin is how far a linear function of the outputs is proved to be above the bound that makes it unsafe: one "
    "row of a conjunction above 0 is enough. A layer is the operand of something that is not affine, such as relu. "
    "Its cells are bounded by boxes, an interval for each operation, and by lines, which see that cells move together. "
    "A cell is undecided if a kink lies inside of its bounds: only these lose anything. What an input costs is its "
    "slope in the bound of the worst row, times half the width of its box.",
)


def _of_view(view: View) -> Iterable[Markup]:
    number, of = view["case"] + 1, f" of case {view['case'] + 1} of {view['cases']}" if view["cases"] > 1 else ""
    found = view["explanation"]
    yield section(f"margins-{number}", f"Margins{of}", _margins(view["margins"]))
    if found["layers"]:
        yield section(f"layers-{number}", f"Layers{of}: mean widths", _layers(found["layers"]))
    costs = [np.reshape(np.array(i["cost"], np.float64), i["shape"]) for i in found["inputs"]]
    total = sum(float(cost.sum()) for cost in costs)
    intro = (
        f"The inputs cost {_short(total)} of the bound of {view['worst']}, which is the worst row: a darker cell, more."
    )
    maps = (_heat(name, cost) for name, cost in zip(view["input_names"], costs, strict=False))
    yield section(f"inputs-{number}", f"Inputs{of}: what each costs", element("p", intro), *maps)


def _margins(margins: Sequence[tuple[str, float]]) -> Markup:
    worst_first = sorted(margins, key=lambda pair: pair[1])[:MOST_MARGINS]
    rows = (
        element(
            "tr",
            element("td", element("code", words)),
            element("td", _short(margin), class_="number"),
            element("td", "refuted by lines" if margin > 0 else "open"),
            class_=None if margin > 0 else "unusual",
        )
        for words, margin in worst_first
    )
    head = (element("th", name, scope="col") for name in ("unsafe if", "margin", ""))
    more = len(margins) - len(worst_first)
    return joined(scroller(table(head, rows), "Margins"), element("p", f"and {more} more above these") if more else "")


# --- pictures ---------------------------------------------------------------------------------------------------------


def _layers(layers: Sequence[Mapping[str, Any]]) -> Markup:
    """Two bars for each layer, on a scale of powers of ten."""
    widths = [w for layer in layers for w in (layer["by_boxes"], layer["by_lines"]) if isfinite(w) and w > 0]
    least, most = (log10(f(widths)) for f in (min, max)) if widths else (0.0, 1.0)
    low, span = least - 0.5, max(most - least + 0.5, 0.5)
    name_width, bar, high = 190, 420, 44

    def length(width: float) -> float:
        return 0.0 if not width > 0 else bar if not isfinite(width) else bar * max(0.01, (log10(width) - low) / span)

    parts = list[Markup]()
    for place, layer in enumerate(layers):
        y = place * high
        name = layer["name"] if len(layer["name"]) <= 24 else f"{layer['name'][:23]}…"
        parts += [
            element("text", name, x=0, y=y + 14),
            element("text", f"{', '.join(layer['operators'])} {list(layer['shape'])}", x=0, y=y + 30, class_="soft"),
            element("rect", x=name_width, y=y + 3, width=f"{length(layer['by_boxes']):.1f}", height=13, class_="boxes"),
            element(
                "rect", x=name_width, y=y + 18, width=f"{length(layer['by_lines']):.1f}", height=13, class_="lines"
            ),
            element("text", _short(layer["by_boxes"]), x=name_width + length(layer["by_boxes"]) + 6, y=y + 14),
            element("text", _short(layer["by_lines"]), x=name_width + length(layer["by_lines"]) + 6, y=y + 29),
            element("text", f"{100 * layer['undecided']:.1f} % undecided", x=name_width + bar + 90, y=y + 22),
        ]
    width, height = name_width + bar + 240, high * len(layers)
    picture = element(
        "svg", *parts, viewBox=f"0 0 {width} {height}", width=width, height=height, class_="widths", role="img",
        aria_label="Mean widths of layers by boxes and by lines",
    )  # fmt: skip
    keys = (element("li", element("span", class_=f"key {name}"), f"by {name}") for name in ("boxes", "lines"))
    return element("figure", element("ul", *keys, class_="keys"), picture)


def _heat(name: str, cost: Array) -> Markup:
    """The planes of an input that cost the most; a vector is folded into rows."""
    finite = np.nan_to_num(cost, posinf=0.0)
    planes = finite.reshape(-1, *finite.shape[-2:]) if finite.ndim > 1 else _fold(finite)[None]
    order = np.argsort([-plane.sum() for plane in planes], kind="stable")[:MOST_PLANES]
    coarse = {int(i): _coarsen(planes[i]) for i in sorted(order)}
    most = max((float(plane.max(initial=0.0)) for plane in coarse.values()), default=0.0) or 1.0
    left_out = len(planes) - len(coarse)
    drawn = (_plane(f"{name}[{i}]" if len(planes) > 1 else name, plane, most) for i, plane in coarse.items())
    caption = f"darkest: {_short(most)} a cell" + (
        f"; {left_out} planes that cost less are left out" if left_out else ""
    )
    return element("figure", element("div", *drawn, class_="planes"), element("figcaption", caption), class_="picture")


def _plane(title: str, plane: Array, most: float) -> Markup:
    rows, columns = plane.shape
    side = max(4, min(24, 320 // max(rows, columns)))
    cells = (
        element("rect", x=side * c, y=20 + side * r, width=side, height=side, fill_opacity=f"{plane[r, c] / most:.2f}")
        for r, c in np.argwhere(plane > 0.005 * most)
    )
    width, height = max(side * columns, 8 * len(title)) + 1, side * rows + 21
    frame = element("rect", x=0, y=20, width=side * columns, height=side * rows, class_="frame")
    heading = element("text", title, x=0, y=12)
    box = f"0 0 {width} {height}"
    return element("svg", heading, *cells, frame, viewBox=box, width=width, height=height, class_="heat", role="img",
                   aria_label=f"What each cell of {title} costs")  # fmt: skip


def _fold(vector: Array) -> Array:
    columns = min(len(vector), MOST_CELLS) or 1
    rows = -(-len(vector) // columns)
    return np.pad(vector, (0, rows * columns - len(vector))).reshape(rows, columns)


def _coarsen(plane: Array) -> Array:
    """Blocks of cells, each as large as its largest cell, so that no axis has too many."""
    for axis in (0, 1):
        block = -(-plane.shape[axis] // MOST_CELLS)
        if block > 1:
            plane = np.maximum.reduceat(plane, np.arange(0, plane.shape[axis], block), axis=axis)
    return plane


def _short(number: float) -> str:
    return f"{number:.4g}" if isfinite(number) else "unbounded"
